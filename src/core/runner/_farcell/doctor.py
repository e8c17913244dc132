"""Facts about a target, each found by trying it rather than by asking for a version."""

import os
import select
import sys

from . import detach, files, kernels, osdep, place
from .fault import Fault

WAIT_MS = 2000


def facts(header):
    """The `doctor` answer."""
    try:
        base, refused = place.choose(header)
    except Fault as fault:
        # No place is a finding like any other; the message has all the reasons.
        base, refused = None, [{"dir": header.get("base") or "every candidate", "why": fault.message}]
    uid = os.geteuid()
    fifo, pidfd = bool(base) and has_fifo(base), has_pidfd()
    return {
        "python": detach.python_path(), "version": "%d.%d.%d" % sys.version_info[:3], "platform": sys.platform,
        "base": base, "memory_backed": bool(base) and is_memory(base), "free_bytes": place.free_bytes(base) if base else 0,
        "fifo": fifo, "inotify": bool(base) and has_inotify(base), "pidfd": pidfd, "wake": osdep.wake_word(fifo, pidfd),
        "flock": bool(base) and has_flock(base), "fork": has_fork(), "subreaper": has_subreaper(),
        "uid": uid, "user": user_name(uid), "home": os.environ.get("HOME") or None,
        "logind": place.has_logind(), "lingering": place.is_lingering(),
        "encoding": sys.getfilesystemencoding(), "cpu": cpus(), "limits": limits(), "refused": refused,
        "modules": {name: has_module(name) for name in ("ctypes", "ssl")},
        "ready": sum(kernels.ready(base) for base in place.existing_bases(header)),
        "kernels": sum(1 for base in place.existing_bases(header) for name in kernels.names(base) if files.is_locked(os.path.join(base, name))),
    }


def user_name(uid):
    name = place.owner_name(uid)
    return None if name.startswith("uid ") else name


def is_memory(path):
    """Whether the file system of `path` lives in memory: the last mount that covers it counts."""
    real, best, kind = os.path.realpath(path), "", ""
    try:
        with open("/proc/self/mounts", "r", errors="replace") as file:
            for line in file:
                fields = line.split()
                mount = fields[1].replace("\\040", " ")
                if (real + "/").startswith(mount.rstrip("/") + "/") and len(mount) >= len(best):
                    best, kind = mount, fields[2]
    except OSError:
        return False
    return kind in ("tmpfs", "ramfs")


def has_fifo(base):
    """Make one, and send a byte through it."""
    path = os.path.join(base, ".doctor-" + os.urandom(8).hex())
    try:
        if not files.make_fifo(path):
            return False
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return files.poke(path) and bool(select.select([fd], [], [], WAIT_MS / 1000.0)[0])
        finally:
            os.close(fd)
    except OSError:
        return False
    finally:
        files.remove(path)


def has_flock(base):
    """Whether a lock taken through one descriptor is seen through another: some network file systems only pretend."""
    path = os.path.join(base, ".doctor-" + os.urandom(8).hex())
    try:
        os.mkdir(path, 0o700)
        fd = os.open(path, files.DIR_FLAGS)
        try:
            return not files.is_locked(path) and files.try_lock(fd) and files.is_locked(path)
        finally:
            os.close(fd)
            os.rmdir(path)
    except OSError:
        return False


def has_inotify(base):
    """Watch the base, make a file, and see it told."""
    try:
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except (ImportError, AttributeError, OSError):
        return False
    if fd < 0:
        return False
    try:
        in_create = 0x100
        if libc.inotify_add_watch(fd, os.fsencode(base), in_create) < 0:
            return False
        files.remove(files.write_tmp(base, b""))
        return bool(select.select([fd], [], [], WAIT_MS / 1000.0)[0])
    except OSError:
        return False
    finally:
        os.close(fd)


def has_pidfd():
    """A descriptor for a process that becomes readable at its end."""
    fd = osdep.pidfd_open(os.getpid())
    if fd >= 0:
        os.close(fd)
    return fd >= 0


def has_fork():
    try:
        pid = os.fork()
    except (OSError, AttributeError):
        return False
    if pid == 0:
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def has_subreaper():
    """In a child, because it cannot be asked without becoming one."""
    try:
        pid = os.fork()
    except (OSError, AttributeError):
        return False
    if pid == 0:
        try:
            os._exit(0 if osdep.set_subreaper() else 1)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def has_module(name):
    try:
        __import__(name)
        return True
    except ImportError:
        return False


def cpus():
    """Those that we may use, where that can be told."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def limits():
    import resource
    found = {}
    for name, number in (("processes", "RLIMIT_NPROC"), ("open_files", "RLIMIT_NOFILE")):
        soft = resource.getrlimit(getattr(resource, number))[0] if hasattr(resource, number) else resource.RLIM_INFINITY
        found[name] = None if soft == resource.RLIM_INFINITY else soft
    return found
