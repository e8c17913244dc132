"""Kernel directories as the host's side sees them: which are ours, what they say, and removing dead ones."""

import os
import signal
import stat
import time

from . import cellfiles, files, kinds, lane_files, osdep, place
from .fault import Fault

_NAME_CHARS = frozenset("0123456789abcdefghijklmnopqrstuvwxyz")
READ_MAX = 4 << 20
SWEEP_EVERY = 24 * 3600.0
SWEEP_OLDER = 7 * 24 * 3600.0
COOL_SECONDS = 2.0  # a zygote that is told to end has little to do


def is_name(name):
    return isinstance(name, str) and name.startswith("k-") and 2 < len(name) <= 64 and _NAME_CHARS.issuperset(name[2:])


def names(base):
    try:
        return sorted(name for name in os.listdir(base) if is_name(name))
    except OSError:
        return []


def checked_dir(path):
    """The kernel directory that a request names, if it is one of ours; a path from outside is never trusted."""
    if not isinstance(path, str) or not os.path.isabs(path) or "\0" in path:
        raise Fault("bad-request", "dir must be an absolute path")
    if os.path.normpath(path) != path or not is_name(os.path.basename(path)):
        raise Fault("bad-request", "dir does not name a kernel: %s" % path)
    base = os.path.dirname(path)
    if not os.path.lexists(path):
        raise Fault("no-kernel", "the kernel's directory is gone: %s" % path)
    place.check_own(base)
    place.check_own(path)
    if os.path.realpath(base) != base:
        raise Fault("unsafe-directory", "%s leads through a symbolic link" % base, "use the path that spawn answered")
    return path


def open_private(path, extra=0):
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | extra)


def probe(directory):
    """The fields of a `probe` answer."""
    lane_files.sync(directory)
    alive = files.is_locked(directory)
    record = files.read_json(os.path.join(directory, "kernel.json"))
    running = None
    for number in files.cell_numbers(directory, "run"):
        cell = cellfiles.look(directory, number)
        # A request that cannot be read has no id; it is about to be refused.
        known = cellfiles.cell_id(directory, number) if cell.fate == "running" else None
        if known:
            running = {"number": number, "id": known, "since_ms": round(cellfiles.running_ms(cell), 3)}
    return {
        "alive": alive, "kernel": record, "running": running,
        "waiting": len(files.cell_numbers(directory, "req")), "replies": files.cell_numbers(directory, "res"),
    }


def listing(header):
    """All kernels of all our bases, each as a probe; what vanishes meanwhile is left out."""
    found = []
    for base in place.existing_bases(header):
        for name in names(base):
            path = os.path.join(base, name)
            if place.own_problem(path) is not None:
                continue
            try:
                entry = probe(path)
            except OSError:
                continue
            if entry["kernel"] is not None:
                found.append(entry)
    return found


def read(directory, kind, number, offset, limit):
    """Raw bytes of a record file or of the log: (bytes, size of the file)."""
    path = os.path.join(directory, "runner.log") if kind == "log" else files.cell_path(directory, "out", number)
    try:
        fd = open_private(path)
    except FileNotFoundError:
        if kind != "log" and any(os.path.exists(files.cell_path(directory, other, number)) for other in ("req", "run", "res")):
            return b"", 0  # it has not printed anything
        raise Fault("unknown-cell", "no output of cell %s is kept" % number if kind != "log" else "there is no log")
    try:
        return os.pread(fd, min(limit, READ_MAX), offset), os.fstat(fd).st_size
    finally:
        os.close(fd)


# --- removing --------------------------------------------------------------------------------------------------------------------

def remove(directory):
    """Remove a dead kernel's directory, and its key's entry if it still names it."""
    fd = os.open(directory, files.DIR_FLAGS)
    try:
        # Exclusive, and held to the end: nobody takes it for a living one, and nobody can start in it.
        if not files.try_lock(fd):
            raise Fault("busy", "the kernel is alive, or somebody looks at it: %s" % directory, "stop it first")
        record = files.read_json(os.path.join(directory, "kernel.json")) or {}
        osdep.kill_marked(os.path.basename(directory))
        files.remove_tree(directory)
    finally:
        os.close(fd)
    _forget(os.path.dirname(directory), record.get("key"), os.path.basename(directory))


def _forget(base, key, name):
    if not isinstance(key, str) or not key or key.strip("0123456789abcdef"):
        return
    keys = os.path.join(base, "keys")
    try:
        with files.locked(keys, 0.0, name=key) as fd:
            if os.pread(fd, 256, 0).decode("ascii", "replace").strip() == name:
                # Emptied, not unlinked: another spawn may wait for the lock of this very file.
                os.ftruncate(fd, 0)
    except (OSError, files.LockTimeout):
        # A spawn of that key is under way, and will see for itself that the kernel is gone.
        pass


def sweep(header, older_than):
    """Remove kernels that are dead and unused for `older_than` seconds, and runners that nobody uses; gives their directories' names."""
    removed = []
    for base in place.existing_bases(header):
        removed += _sweep_base(base, header["runner"], time.time() - older_than)
    return removed


def cool(header):
    """End the zygotes: new kernels are started the slow way from here on, until one of those has left a zygote again. Gives how many were ended."""
    return sum(_cool(os.path.join(base, name)) for base in place.existing_bases(header) for name in _zygotes(base))


def _zygotes(base):
    return [name for name in os.listdir(base) if name.startswith("z-")]


def ready(base):
    """How many kernels stand ready in the pools of this base."""
    folders = [os.path.join(base, name) for name in _zygotes(base)]
    return sum(_ready(path) for path in folders if place.own_problem(path) is None)


def _ready(folder):
    try:
        found = [name for name in os.listdir(folder) if name.startswith(kinds.READY_PREFIX)]
    except OSError:
        return 0
    return sum(1 for name in found if files.is_locked(os.path.join(folder, name)))


def _cool(path):
    told = files.read_json(os.path.join(path, "zygote.json")) if place.own_problem(path) is None else None
    if told is None or told.get("boot_id") != osdep.boot_id() or not osdep.kill_exact(told["pid"], told["start_time"], signal.SIGTERM):
        return 0
    end = time.monotonic() + COOL_SECONDS
    while osdep.proc_start_time(told["pid"]) == told["start_time"] and time.monotonic() < end:
        time.sleep(0.002)
    return 1


def sweep_if_due(base, runner):
    """Sweep what has been dead for a week, once a day; in passing, so that nobody has to think of it."""
    stamp = os.path.join(base, "swept")
    try:
        if time.time() - os.lstat(stamp).st_mtime < SWEEP_EVERY:
            return
    except OSError:
        pass
    try:
        files.atomic_write(stamp, b"")
        _sweep_base(base, runner, time.time() - SWEEP_OLDER)
    except (OSError, Fault):
        # The kernel that was asked for is more important than old ones that cannot be removed.
        pass


def _sweep_base(base, runner, before):
    removed, used = [], {runner}
    for name in names(base):
        path = os.path.join(base, name)
        record = _sweep_one(path, before)
        if record is None:
            removed.append(path)
        else:
            used.add(record.get("runner"))
    _sweep_runners(base, used, before)
    _sweep_zygotes(base, before)
    _sweep_keys(base, before)
    return removed


def _sweep_one(path, before):
    """None if it was removed, else its record (or an empty one)."""
    record = files.read_json(os.path.join(path, "kernel.json")) or {}
    if place.own_problem(path) is not None or record.get("v", 1) != 1 or _last_use(path) > before:
        return record
    from . import spawn
    if spawn.is_starting(path):
        return record
    try:
        remove(path)
    except Fault:
        return record
    return None


def _last_use(path):
    times = []
    for part in ("", "cells", "cells/next", "kernel.json", "ended.json", "waiters"):
        try:
            times.append(os.lstat(os.path.join(path, part) if part else path).st_mtime)
        except OSError:
            pass
    return max(times, default=0.0)


def _sweep_runners(base, used, before):
    for name in os.listdir(base):
        path = os.path.join(base, name)
        if name.startswith("runner-") and name[7:] not in used and place.own_problem(path) is None and os.lstat(path).st_mtime < before:
            files.remove_tree(path)


def _sweep_zygotes(base, before):
    """Remove what zygotes have left that were killed; one that lives holds the lock of its directory."""
    for name in os.listdir(base):
        path = os.path.join(base, name)
        if name.startswith("z-") and place.own_problem(path) is None and os.lstat(path).st_mtime < before and not files.is_locked(path):
            files.remove_tree(path)


def _sweep_keys(base, before):
    """Remove entries without a kernel. One that is locked is in use; one that was emptied long ago is waited for by nobody."""
    keys = os.path.join(base, "keys")
    if place.own_problem(keys) is not None:
        return
    for name in os.listdir(keys):
        path = os.path.join(keys, name)
        info = os.lstat(path)
        if stat.S_ISREG(info.st_mode) and info.st_size == 0 and info.st_mtime < before:
            try:
                with files.locked(keys, 0.0, name=name) as fd:
                    if os.fstat(fd).st_size == 0:
                        files.remove(path)
            except (OSError, files.LockTimeout):
                pass
