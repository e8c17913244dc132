"""Starting a program that is to outlive us: a session of its own, chosen descriptors, no terminal, and nothing of ours kept open."""

import errno
import fcntl
import os
import signal
import sys

from . import files
from .fault import Fault, reason


def python_path():
    """The interpreter's own path; sys.executable may be empty where argv[0] says nothing."""
    return sys.executable or os.path.realpath("/proc/self/exe")


def program_path(base, runner):
    """The program of every kernel and zygote."""
    return os.path.join(base, "runner-" + runner, "farcell_kernel.py")


def start(program, environ, cwd, fds):
    """Have a program run in a session of its own, with these descriptors as 0, 1, ... and no others; gives the number of its group.

    What goes wrong in it is told, as a line, on what is to be its descriptor 1.
    """
    try:
        middle = os.fork()
    except OSError as error:
        raise _fork_fault(error)
    if middle == 0:
        _middle(program, environ, cwd, fds)
    os.waitpid(middle, 0)
    return middle


def _fork_fault(error):
    if error.errno == errno.EAGAIN:
        return Fault("no-process", "no free process on the target", "end processes of this user there, or raise its limit (ulimit -u, pids.max)")
    return Fault("spawn-failed", "cannot fork: " + reason(error), "free some memory on the target" if error.errno == errno.ENOMEM else None)


# --- between fork and exec -----------------------------------------------------------------------------------------------------------

def _middle(program, environ, cwd, fds):
    """First child: leads the session and is gone at once, so that the supervisor can never get a terminal, and init reaps it."""
    try:
        os.setsid()
        if os.fork() == 0:
            _become(program, environ, cwd, fds)
    except OSError as error:
        complain(fds[1], _fork_fault(error))
    finally:
        os._exit(0)


def _become(program, environ, cwd, fds):
    """Second child: becomes the supervisor's program, or says why not."""
    ready = fds[1]
    try:
        restore_signals()
        enter(cwd, os.environ.get("HOME"))
        # Move all out of the way first: a descriptor may have the number that another one is to get.
        high = [_above(fd, 10) for fd in fds]
        for target, fd in enumerate(high):
            os.dup2(fd, target, inheritable=True)
        ready = 1
        os.closerange(len(fds), _open_max())
        os.execve(program[0], program, environ)
    except Fault as fault:
        complain(ready, fault)
    except OSError as error:
        hint = "the environment of the kernel is too large" if error.errno == errno.E2BIG else None
        complain(ready, Fault("spawn-failed", "cannot start %s: %s" % (program[0], reason(error)), hint))
    finally:
        os._exit(0)


def _above(fd, floor):
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


def enter(cwd, home):
    """Go to the working directory that was asked for, or home."""
    if cwd is None:
        for path in (home if home and os.path.isabs(home) else "/", "/"):
            try:
                os.chdir(path)
                return
            except OSError:
                continue
        return
    try:
        os.chdir(cwd)
    except (OSError, ValueError) as error:
        raise Fault("spawn-failed", "cannot enter the working directory %s: %s" % (cwd, reason(error)), "make it on the target, or leave it out")


def complain(fd, fault):
    try:
        files.write_all(fd, files.to_json({"ok": False, "error": fault.as_json()}) + b"\n")
    except OSError:
        pass
