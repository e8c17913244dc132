"""jupyter_client and ipykernel: locally as its KernelManager does it, elsewhere with forwarded or published ports."""

import itertools
import json
import random
import secrets
import socket
import subprocess

import ipykernel
import jupyter_client
from adapter import Adapter, serve
from bare import command
from jupyter_client import BlockingKernelClient, KernelManager

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
# The kernel of another machine gets its connection file by stdin, so that its key is in no command line.
LAUNCH = """
import os, sys, tempfile
handle, name = tempfile.mkstemp(suffix='.json')
os.write(handle, sys.stdin.buffer.readline())
sys.argv[1:] = ['-f', name]
from ipykernel import kernelapp
kernelapp.launch_new_instance()
"""


class Jupyter(Adapter):
    def __init__(self, target):
        super().__init__(target)
        self.made = []
        self.ports = free_ports()
        if target["kind"] == "ssh":
            self.note = "its five ports forwarded by the ssh that starts it"
        elif target["kind"] == "docker":
            self.note = "its five ports at the container's address"

    @staticmethod
    def version():
        return "%s, ipykernel %s" % (jupyter_client.__version__, ipykernel.__version__)

    def spawn(self):
        kernel = Local() if self.target["kind"] == "local" else Far(self.target, self.ports)
        self.made.append(kernel)
        # Without a heartbeat where it takes a while for the way to be there: the client would take the kernel for dead.
        kernel.client.start_channels(hb=isinstance(kernel, Local))
        kernel.client.wait_for_ready(timeout=60)
        return kernel

    def run(self, kernel, code):
        printed = []

        def show(message):
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])

        reply = kernel.client.execute_interactive(code, output_hook=show, timeout=120)
        if reply["content"]["status"] != "ok":
            raise RuntimeError(str(reply["content"])[:500])
        return "".join(printed)

    def stop(self, kernel):
        kernel.stop()
        self.made.remove(kernel)

    def close(self):
        for kernel in list(self.made):
            self.stop(kernel)


class Local:
    def __init__(self):
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel()
        self.client = self.manager.client()

    def stop(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


class Far:
    def __init__(self, target, ports):
        if target["kind"] == "ssh":
            # The box is this machine: ports that are free here are free there.
            here, there = ({name: next(ports) for name in CHANNELS} for _ in range(2))
            host, address = "127.0.0.1", "127.0.0.1"
            argv = command({**target, "python": target["venv_python"]}, ["-c", LAUNCH])
            forwards = [word for name in CHANNELS for word in ("-L", "%d:127.0.0.1:%d" % (here[name], there[name]))]
            argv[1:1] = ["-o", "ExitOnForwardFailure=yes", *forwards]
        else:
            there = here = {name: next(ports) for name in CHANNELS}
            host, address = "0.0.0.0", container_address(target["container"])
            argv = command(target, ["-c", LAUNCH])
        info = {"transport": "tcp", "signature_scheme": "hmac-sha256", "key": secrets.token_hex(16), "kernel_name": ""}
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self.process.stdin.write((json.dumps({**info, **as_fields(there), "ip": host}) + "\n").encode())
        self.process.stdin.flush()
        self.client = BlockingKernelClient()
        self.client.load_connection_info({**info, **as_fields(here), "ip": address})

    def stop(self):
        if self.process.poll() is not None:
            # The way to it has gone, and it with the fixture that it was in.
            return
        self.client.shutdown()
        self.client.stop_channels()
        self.process.stdin.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()


def as_fields(ports):
    return {name + "_port": port for name, port in ports.items()}


def free_ports():
    """Ports one after the other, below those that connections are given, which would be free now and taken a moment later."""
    for port in itertools.count(random.randrange(10000, 25000)):
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
        yield port


def container_address(container):
    return subprocess.check_output(["docker", "inspect", "-f", "{{.NetworkSettings.IPAddress}}", container], text=True).strip()


if __name__ == "__main__":
    serve(Jupyter)
