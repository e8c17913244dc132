"""Starting a detached supervisor: an own session, nothing of the command kept open, and one line back when it stands."""

import errno
import os
import select
import signal
import sys
import time

from . import fastjson, files
from .fault import Fault, reason

READY_SECONDS = 20.0
LINE_MAX = 1 << 20
STDERR_TAIL = 2000

# Held by everyone who takes part in a start, from before the directory is known to anyone until the supervisor stands.
START_LOCK = ".starting"
START_LOCK_FD = 3


def python_path():
    """The interpreter's own path; sys.executable may be empty where argv[0] says nothing."""
    return sys.executable or os.path.realpath("/proc/self/exe")


def start(base, runner, directory, start_lock, spec, bound):
    """Start the kernel of `directory` (which exists and is empty) and give its record; Fault where that fails."""
    program = [python_path(), os.path.join(base, "runner-" + runner, "farcell_kernel.py"), directory]
    log = os.open(os.path.join(directory, "runner.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    # File objects, because closing one twice is harmless.
    spec_in, spec_out = _pipe()
    ready_in, ready_out = _pipe()
    with open(log, "ab", 0) as errors, spec_in, spec_out, ready_in, ready_out:
        try:
            middle = os.fork()
        except OSError as error:
            raise _fork_fault(error)
        if middle == 0:
            _middle(program, spec, [spec_in.fileno(), ready_out.fileno(), errors.fileno(), start_lock])
        for ours in (spec_in, ready_out, errors):
            ours.close()
        os.waitpid(middle, 0)
        line = _talk(spec_out, ready_in, files.to_json(spec), min(READY_SECONDS, bound))
    return _understand(line, directory, middle)


def _pipe():
    read, write = os.pipe()
    return open(read, "rb", 0), open(write, "wb", 0)


def _fork_fault(error):
    if error.errno == errno.EAGAIN:
        return Fault("spawn-failed", "no free process on the target", "end processes of this user there, or raise its limit (ulimit -u, pids.max)")
    return Fault("spawn-failed", "cannot fork: " + reason(error), "free some memory on the target" if error.errno == errno.ENOMEM else None)


# --- the child's side: between fork and exec -----------------------------------------------------------------------------------------

def _middle(program, spec, fds):
    """First child: leads the session and is gone at once, so that the supervisor can never get a terminal, and init reaps it."""
    try:
        os.setsid()
        if os.fork() == 0:
            _become(program, spec, fds)
    except OSError as error:
        _complain(fds[1], _fork_fault(error))
    finally:
        os._exit(0)


def _become(program, spec, fds):
    """Second child: becomes the supervisor's program, or says why not."""
    ready = fds[1]
    try:
        restore_signals()
        enter(spec)
        # Move all out of the way first: a descriptor may have the number that another one is to get.
        high = [_above(fd, 10) for fd in fds]
        for target, fd in enumerate(high):
            os.dup2(fd, target, inheritable=True)
        ready = 1
        os.closerange(START_LOCK_FD + 1, _open_max())
        os.execve(program[0], program, environment(spec))
    except Fault as fault:
        _complain(ready, fault)
    except OSError as error:
        hint = "the environment of the kernel is too large" if error.errno == errno.E2BIG else None
        _complain(ready, Fault("spawn-failed", "cannot start %s: %s" % (program[0], reason(error)), hint))
    finally:
        os._exit(0)


def _above(fd, floor):
    import fcntl
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, floor)


def _open_max():
    # The soft limit may be a billion, and closerange tries every number where the system has no close_range.
    try:
        return max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    except (OSError, ValueError):
        return 1024


def restore_signals():
    """A command in the background ignores SIGINT, one under nohup SIGHUP: both are handed down through exec, so undo them."""
    signal.alarm(0)
    for name in ("SIGINT", "SIGQUIT", "SIGHUP", "SIGTERM", "SIGPIPE", "SIGALRM", "SIGCHLD", "SIGUSR1", "SIGUSR2", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def enter(spec):
    cwd = spec.get("cwd")
    if cwd is None:
        home = os.environ.get("HOME")
        for path in (home if home and os.path.isabs(home) else "/", "/"):
            try:
                os.chdir(path)
                return
            except OSError:
                continue
        return
    try:
        os.chdir(os.path.expanduser(cwd) if cwd.startswith("~") else cwd)
    except (OSError, ValueError) as error:
        raise Fault("spawn-failed", "cannot enter the working directory %s: %s" % (cwd, reason(error)), "make it on the target, or leave it out")


def environment(spec):
    # A copy, not os.environ itself: a name or value that cannot be set must not stop the others half-way.
    env = {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
    for name, value in (spec.get("env") or {}).items():
        if not name or "=" in name or "\0" in name + value:
            raise Fault("spawn-failed", "env has a name or value that cannot be set: %r" % name)
        env[name.encode("utf-8", "surrogateescape")] = value.encode("utf-8", "surrogateescape")
    # The mark by which all that descends from a kernel is found, even after its supervisor was killed.
    env[b"FARCELL_KERNEL"] = spec["id"].encode("ascii")
    return env


def _complain(fd, fault):
    try:
        files.write_all(fd, files.to_json({"ok": False, "error": fault.as_json()}) + b"\n")
    except OSError:
        pass


# --- the parent's side -----------------------------------------------------------------------------------------------------------------

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


def _understand(line, directory, group):
    if line is None:
        _kill(group)
        raise Fault("spawn-failed", "the supervisor did not answer in time" + _tail(directory), "the target may be overloaded; try again")
    try:
        answer = fastjson.loads(line)
        if answer.get("ok") is True:
            return answer["kernel"]
        error = answer["error"]
    except (ValueError, KeyError, AttributeError):
        _kill(group)
        raise Fault("spawn-failed", "the supervisor ended before it stood" + _tail(directory))
    raise Fault(error.get("code") or "spawn-failed", error.get("message") or "the supervisor gave no reason", error.get("hint"))


def _kill(group):
    """End what was started; the supervisor is in the group of the first child, whose number stays taken as long as it lives."""
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
