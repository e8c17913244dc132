"""The stdio driver's start: this process becomes a supervisor that speaks frames on its own stdin and stdout."""

import os
import signal

from . import detach, files, launch, place
from .fault import Fault, reason


def become(header, stdin, modules):
    """Install the runner and turn into farcell_kernel.py; comes back only as a Fault."""
    if not isinstance(header.get("spec"), dict):
        raise Fault("bad-request", "spec must be an object")
    if _is_ahead(stdin):
        raise Fault("bad-request", "frames came before the answer to the header")
    base, _refused = place.choose(header)
    if modules is not None:
        place.install(base, header["runner"], modules)
    elif not place.is_complete(base, header["runner"]):
        raise Fault("need-runner", "some of the runner's modules are gone")
    full = dict(header, base=base)
    try:
        fd = _as_descriptor(base, files.to_json(full))
        program = [detach.python_path(), detach.program_path(base, header["runner"]), "--pipes", str(fd)]
        detach.restore_signals()
        detach.enter(launch.absolute(full["spec"].get("cwd")), os.environ.get("HOME"))
        os.execve(program[0], program, launch.environment(full["spec"]))
    except OSError as error:
        signal.alarm(5)
        raise Fault("spawn-failed", "cannot start the supervisor: " + reason(error))


def _is_ahead(stdin):
    """Whether our buffer holds bytes that the program we become would miss."""
    os.set_blocking(stdin.fileno(), False)
    try:
        return bool(stdin.peek(1))
    finally:
        os.set_blocking(stdin.fileno(), True)


def _as_descriptor(base, data):
    """An unnamed file with the header: it may hold what must not be in argv or in a file that others find."""
    path = files.write_tmp(base, data)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    finally:
        files.remove(path)
    os.set_inheritable(fd, True)
    return fd
