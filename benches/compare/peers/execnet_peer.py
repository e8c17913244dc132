"""execnet: a gateway a kernel, with a loop at its far end that executes what comes over a channel.

`--via` measures what it offers for many gateways on one machine: one is connected to, and it starts the others.
"""

import shlex
import sys

import execnet
from adapter import Adapter, Cannot, serve

# execnet has no kernels, so that this is the least that makes one: a namespace that stays, and what was printed as the answer.
LOOP = """
import contextlib, io
names = {"__name__": "__main__"}
for code in channel:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        exec(code, names)
    channel.send(text.getvalue())
"""


class Execnet(Adapter):
    note = "exec in a loop behind a channel; stdout redirected, no deadline, ends with its connection"

    def __init__(self, target):
        super().__init__(target)
        self.group = execnet.Group()

    @staticmethod
    def version():
        return execnet.__version__

    def _spec(self):
        python = self.target["python"]
        if self.target["kind"] == "ssh":
            return "ssh=-F %s %s//python=%s" % (self.target["config"], self.target["host"], python)
        if self.target["kind"] == "docker":
            return "popen//python=docker exec -i %s %s" % (shlex.quote(self.target["container"]), python)
        return "popen//python=%s" % python

    def spawn(self):
        gateway = self.group.makegateway(self._spec())
        return gateway, gateway.remote_exec(LOOP)

    def run(self, kernel, code):
        channel = kernel[1]
        channel.send(code)
        return channel.receive()

    def stop(self, kernel):
        gateway, channel = kernel
        channel.close()
        gateway.exit()

    def close(self):
        self.group.terminate(timeout=2)


class ExecnetVia(Execnet):
    note = "as execnet; each gateway is started by a first one and reached through it"

    def __init__(self, target):
        super().__init__(target)
        if target["kind"] == "local":
            raise Cannot("nothing to go through: it is the same machine")
        self.group.makegateway(super()._spec() + "//id=first")

    def _spec(self):
        return "popen//via=first//python=%s" % self.target["python"]


if __name__ == "__main__":
    serve(ExecnetVia if "--via" in sys.argv else Execnet)
