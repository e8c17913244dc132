"""Starting a detached supervisor: an own session, nothing of the command kept open, and one line back when it stands."""

import os
import select
import signal
import time

from . import detach, fastjson, files, log, osdep, place, warm
from .fault import Fault, reason

READY_SECONDS = 20.0
LINE_MAX = 1 << 20
STDERR_TAIL = 2000


def start(base, runner, directory, start_lock, spec, bound):
    """Start the kernel of `directory` (which exists and is empty) and give its record; Fault where that fails."""
    environ = environment(spec)
    spec = dict(spec, cwd=absolute(spec.get("cwd")))
    bound = min(READY_SECONDS, bound)
    forked, told = warm.start(base, runner, directory, start_lock, spec, environ, bound)
    if forked:
        return _understand(told, directory, lambda: osdep.kill_marked(spec["id"]))
    if not place.is_complete(base, runner):
        raise Fault("need-runner", "some of the runner's modules are gone from %s" % place.runner_dir(base, runner))
    if told and spec.get("preload"):
        spec = dict(spec, note="nothing was preloaded: " + told)
    if told:
        log.Log(os.path.join(directory, "runner.log"))("not forked from a zygote: %s", told)
    return _start_cold(base, runner, directory, start_lock, spec, environ, bound)


def absolute(cwd):
    """A path means what it means here, not in a zygote's working directory."""
    return cwd and os.path.abspath(os.path.expanduser(cwd))


def _start_cold(base, runner, directory, start_lock, spec, environ, bound):
    program = [detach.python_path(), detach.program_path(base, runner), directory]
    errors_fd = os.open(os.path.join(directory, "runner.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    # File objects, because closing one twice is harmless.
    spec_in, spec_out = _pipe()
    ready_in, ready_out = _pipe()
    with open(errors_fd, "ab", 0) as errors, spec_in, spec_out, ready_in, ready_out:
        group = detach.start(program, environ, spec.get("cwd"), [spec_in.fileno(), ready_out.fileno(), errors.fileno(), start_lock])
        for ours in (spec_in, ready_out, errors):
            ours.close()
        line = _talk(spec_out, ready_in, files.to_json(spec), bound)
    # The supervisor is in the group of the first child, whose number stays taken as long as it lives.
    return _understand(line, directory, lambda: _kill_group(group))


def environment(spec):
    # A copy, not os.environ itself: a name or value that cannot be set must not stop the others half-way.
    env = dict(os.environb)
    for name, value in (spec.get("env") or {}).items():
        if not name or "=" in name or "\0" in name + value:
            raise Fault("spawn-failed", "env has a name or value that cannot be set: %r" % name)
        env[name.encode("utf-8", "surrogateescape")] = value.encode("utf-8", "surrogateescape")
    # The mark by which all that descends from a kernel is found, even after its supervisor was killed.
    env[b"FARCELL_KERNEL"] = spec["id"].encode("ascii")
    return env


def _pipe():
    read, write = os.pipe()
    return open(read, "rb", 0), open(write, "wb", 0)


def _talk(spec_out, ready_in, data, bound):
    """Send the spec and read one line, both within the bound; None when time is up, what came so far at an early end."""
    end = time.monotonic() + bound
    poll = select.poll()
    for pipe, event in ((spec_out, select.POLLOUT), (ready_in, select.POLLIN)):
        os.set_blocking(pipe.fileno(), False)
        poll.register(pipe, event)
    spec_fd = spec_out.fileno()
    rest = memoryview(data)
    line = b""
    while True:
        left = end - time.monotonic()
        if left <= 0:
            return None
        for fd, _event in poll.poll(int(left * 1000) + 1):
            if fd == spec_fd:
                rest = _send_some(spec_out, rest)
                if not rest:
                    poll.unregister(fd)
                    # Its end is the end of the spec.
                    spec_out.close()
            else:
                piece = ready_in.read(65536)
                line += piece or b""
                if piece == b"" or b"\n" in line or len(line) > LINE_MAX:
                    return line


def _send_some(pipe, rest):
    try:
        return rest[pipe.write(rest) or 0:]
    except BrokenPipeError:
        # It ended already; the other pipe says why.
        return rest[:0]


def _understand(line, directory, kill):
    if line is None:
        kill()
        raise Fault("spawn-failed", "the supervisor did not answer in time" + _tail(directory), "the target may be overloaded; try again")
    try:
        answer = fastjson.loads(line)
        if answer.get("ok") is True:
            return answer["kernel"]
        error = answer["error"]
    except (ValueError, KeyError, AttributeError):
        kill()
        raise Fault("spawn-failed", "the supervisor ended before it stood" + _tail(directory))
    raise Fault(error.get("code") or "spawn-failed", error.get("message") or "the supervisor gave no reason", error.get("hint"))


def _kill_group(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass


def _tail(directory):
    """The last lines of what it said on stderr, on one; of a traceback, the last is the one that tells."""
    data = files.read_bytes(os.path.join(directory, "runner.log")) or b""
    lines = [line.strip() for line in data[-STDERR_TAIL:].decode("utf-8", "replace").splitlines() if line.strip()]
    lines = lines[-1:] if any(line.startswith("Traceback") for line in lines) else lines[-3:]
    return ": " + " | ".join(lines) if lines else ""
