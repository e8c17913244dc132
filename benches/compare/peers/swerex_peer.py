"""SWE-ReX: a shell session a kernel in one deployment; locally, in a container of its own, or at the far end of a forwarded port.

It has shell sessions only. `--python` measures a `python3` that is started in such a session and driven through its prompt, which its API offers as an
interactive command.
"""

import asyncio
import logging
import secrets
import socket
import subprocess
import sys
import time

import swerex
from adapter import Adapter, BashWork, Cannot, PythonWork, serve
from bare import command
from swerex.deployment.docker import DockerDeployment
from swerex.deployment.local import LocalDeployment
from swerex.deployment.remote import RemoteDeployment
from swerex.runtime.abstract import BashAction, CloseBashSessionRequest, CreateBashSessionRequest

PROMPT = ">>> "


class SweRex(Adapter):
    work = BashWork
    note = "a bash session; a cell is a shell command"

    def __init__(self, target):
        super().__init__(target)
        logging.disable(logging.WARNING)
        self.loop = asyncio.new_event_loop()
        self.server = None
        self.deployment = self._deploy()
        self._wait(self.deployment.start())
        self._wait_until_alive()
        if target["kind"] == "docker":
            self.container = self.deployment.container_name

    @staticmethod
    def version():
        return swerex.__version__

    def spawn(self):
        name = "kernel%d" % len(self.kernels)
        self._wait(self.deployment.runtime.create_session(CreateBashSessionRequest(session=name)))
        return name

    def run(self, kernel, code):
        action = BashAction(session=kernel, command=code, timeout=60)
        try:
            return self._wait(self.deployment.runtime.run_in_session(action)).output
        except OSError as e:
            # E2BIG; its server passes the text of the error on, not the number.
            if "Argument list too long" in str(e):
                raise Cannot("it has each command checked by `bash -n`, as an argument of at most 128 KB") from None
            raise

    def stop(self, kernel):
        self._wait(self.deployment.runtime.close_session(CloseBashSessionRequest(session=kernel)))

    def close(self):
        self._wait(self.deployment.stop())
        if self.server is not None:
            self.server.terminate()
            self.server.wait()

    def _wait(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    def _deploy(self):
        if self.target["kind"] == "local":
            return LocalDeployment()
        if self.target["kind"] == "docker":
            return DockerDeployment(image=self.target["image"], pull="never", startup_timeout=60)
        here, there, token = free_port(), free_port(), secrets.token_hex(16)
        argv = command({**self.target, "python": self.target["venv_python"]}, ["-m", "swerex.server", "--host", "127.0.0.1", "--port", str(there), "--auth-token", token])
        argv[1:1] = ["-L", "%d:127.0.0.1:%d" % (here, there)]
        self.server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return RemoteDeployment(auth_token=token, host="http://127.0.0.1", port=here, timeout=60)

    def _wait_until_alive(self):
        end = time.monotonic() + 60
        while not self._wait(self.deployment.is_alive()):
            if time.monotonic() > end:
                raise TimeoutError("its server does not answer")
            time.sleep(0.05)


class SweRexPython(SweRex):
    work = PythonWork
    note = "a python3 driven through its prompt, in a bash session"

    def spawn(self):
        name = super().spawn()
        python = "python3" if self.target["kind"] == "docker" else self.target["python"]
        # The prompt of newer Pythons expects a terminal with keys.
        self._interact(name, "PYTHON_BASIC_REPL=1 %s -q" % python)
        return name

    def run(self, kernel, code):
        if "\n" in code:
            raise Cannot("a cell has to be one line at Python's prompt")
        if len(code) > 4000:
            raise Cannot("the line discipline of its terminal cuts a line at 4096 bytes")
        return self._interact(kernel, code)

    def _interact(self, name, line):
        action = BashAction(session=name, command=line, is_interactive_command=True, expect=[PROMPT], timeout=60)
        return self._wait(self.deployment.runtime.run_in_session(action)).output


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    serve(SweRexPython if "--python" in sys.argv else SweRex)
