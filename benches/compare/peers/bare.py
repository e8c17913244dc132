"""No peer but the floor: a pipe to a Python that executes what comes and says so, without output, errors or anything else."""

import pathlib
import shlex
import subprocess

from adapter import Adapter, Cannot, serve

VERSION = "import platform; print(platform.python_version())"
CHILD = (pathlib.Path(__file__).parent / "child.py").read_text()


def command(target, python_arguments):
    """The command that starts the target's Python with these arguments."""
    argv = [target["python"], *python_arguments]
    if target["kind"] == "ssh":
        return ["ssh", "-F", target["config"], "-T", target["host"], shlex.join(argv)]
    if target["kind"] == "docker":
        return ["docker", "exec", "-i", target["container"], *argv]
    return argv


class Bare(Adapter):
    def version(self):
        return subprocess.check_output(command(self.target, ["-c", VERSION]), stdin=subprocess.DEVNULL, text=True).strip()

    def spawn(self):
        return subprocess.Popen(command(self.target, ["-c", CHILD]), stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, kernel, code):
        data = code.encode()
        kernel.stdin.write(len(data).to_bytes(4, "big") + data)
        kernel.stdin.flush()
        if kernel.stdout.read(6) != b"\0\0\0\2ok":
            raise RuntimeError("the child answered something else")
        return ""

    def _expect(self, number, question, expected):
        """It cannot be asked for anything; it checks by itself, and would end."""
        variable = "x" if question == self.work.ASK_COUNT else "len(data)"
        self.run(self.kernels[number], "assert %s == %r" % (variable, expected))

    def do_print(self, kernel, rounds, bytes):
        raise Cannot("it has no output")

    def do_pids(self, kernels):
        raise Cannot("it is no kernel")

    def stop(self, kernel):
        kernel.stdin.close()
        kernel.wait(timeout=10)

    def close(self):
        for kernel in self.kernels:
            if kernel is not None:
                kernel.kill()


if __name__ == "__main__":
    serve(Bare)
