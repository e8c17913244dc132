"""mitogen: a context a kernel, in which a function is called that executes what it gets."""

import logging

import far_side
import mitogen
import mitogen.master
from adapter import Adapter, serve


class Mitogen(Adapter):
    note = "exec in a called function; stdout redirected, no deadline, ends with its connection"

    def __init__(self, target):
        super().__init__(target)
        logging.getLogger("mitogen").setLevel(logging.ERROR)
        self.broker = mitogen.master.Broker()
        self.router = mitogen.master.Router(self.broker)
        self.made = 0

    @staticmethod
    def version():
        return ".".join(str(part) for part in mitogen.__version__)

    def spawn(self):
        # Contexts of one name would be one context.
        self.made += 1
        options = {"name": "kernel%d" % self.made, "python_path": self.target["python"], "connect_timeout": 30}
        if self.target["kind"] == "ssh":
            return self.router.ssh(hostname=self.target["host"], ssh_args=["-F", self.target["config"]], **options)
        if self.target["kind"] == "docker":
            return self.router.docker(container=self.target["container"], **options)
        return self.router.local(**options)

    def run(self, kernel, code):
        return kernel.call(far_side.run, code)

    def stop(self, kernel):
        kernel.shutdown(wait=True)

    def close(self):
        self.broker.shutdown()
        self.broker.join()


if __name__ == "__main__":
    serve(Mitogen)
