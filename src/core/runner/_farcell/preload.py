"""The modules that a zygote imports for its kernels, and whether a process that has imported them may still be forked."""

import os
import sys
import time

from . import figures, osdep, streams

_WORDS_MAX = 300
_THREADS_END = 0.2  # a library that ends its threads before a fork (OpenBLAS) has done so by then


def run(names):
    # type: (list) -> object
    """Import them one after the other; (name, why) for the first that cannot be had, else None."""
    if not names:
        return None
    figures.choose_backend()
    # Whoever keeps these streams prints into whatever is descriptor 1 or 2 later, without a delay.
    sys.stdout, sys.stderr = streams.open_standard(1), streams.open_standard(2)
    before = osdep.held_fds()
    path = sys.path[:]
    sys.path[:] = [entry for entry in path if entry]  # not what happens to lie in the working directory
    try:
        for name in names:
            try:
                __import__(name)
            except BaseException as error:  # pylint: disable=broad-except
                return name, _words(error)
            trouble = _unfit(before)
            if trouble:
                return name, trouble
    finally:
        if sys.path == [entry for entry in path if entry]:
            sys.path[:] = path
    return None


def package_folders():
    # type: () -> list
    """Where packages are installed: what is new there may count from the start of Python on (.pth files)."""
    site = sys.modules.get("site")
    user = getattr(site, "USER_SITE", None) if getattr(site, "ENABLE_USER_SITE", False) else None
    found = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    return found + [user] if user and user not in found else found


def loose_files(before, folders):
    # type: (set, list) -> list
    """The files of modules that were imported since then and are not installed ones: somebody may be working on them."""
    installed = tuple(os.path.join(path, "") for path in folders + [os.path.dirname(os.__file__)])
    files = (getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if name not in before)
    return [file for file in files if isinstance(file, str) and not file.startswith(installed)]


def _words(error):
    text = "%s: %s" % (type(error).__name__, error) if str(error) else type(error).__name__
    return text.replace("\n", " ")[:_WORDS_MAX]


def _unfit(before):
    """What a fork would break, or None."""
    if _threads() > 1:
        _trial_fork()
        end = time.monotonic() + _THREADS_END
        while _threads() > 1 and time.monotonic() < end:
            time.sleep(0.002)
        if _threads() > 1:
            return "it leaves threads running, whose locks a fork would keep"
    if _has_children():
        return "it leaves processes running"
    for fd in osdep.held_fds() - before:
        return "it leaves %s open" % os.readlink("/proc/self/fd/%d" % fd)
    return None


def _threads():
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1


def _trial_fork():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _has_children():
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    except ChildProcessError:
        return False
