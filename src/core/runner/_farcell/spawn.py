"""One kernel for one key: reuse the live one, wait for one that is being started, replace a dead one."""

import errno
import os
import time

from . import cellfiles, files, kernels, kinds, osdep, place
from .fault import Fault, reason

# How long another start of the same kernel is waited for, and how long the key may be held by others.
KEY_SECONDS = 25.0


def spawn(header, modules, end):
    """The `spawn` operation: the answer's fields."""
    key, spec = _checked(header)
    base, _refused = place.choose(header, key)
    runner = header["runner"]
    if modules is not None:
        place.install(base, runner, modules)
    keys = os.path.join(base, "keys")
    place.own_directory(keys)
    bound = max(0.0, min(KEY_SECONDS, end - time.monotonic()))
    try:
        # O_NOFOLLOW and our own directory around it: nobody else can have put anything in its place.
        with files.locked(keys, bound, name=key) as key_fd:
            answer = _spawn_locked(base, runner, key, key_fd, spec, end)
    except files.LockTimeout:
        raise Fault("busy", "another command has been starting this kernel for %.0f s" % bound, "try again")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise place.disk_fault(error, base)
        raise
    kernels.sweep_if_due(base, runner)
    return answer


def _checked(header):
    key, spec = header.get("key"), header.get("spec")
    if not isinstance(key, str) or not 0 < len(key) <= 128 or key.strip("0123456789abcdef"):
        raise Fault("bad-request", "key must be hex digits")
    if not isinstance(spec, dict):
        raise Fault("bad-request", "spec must be an object")
    if not kernels.is_name(spec.get("id")):
        raise Fault("bad-request", "spec.id must be k- and letters or digits")
    if not isinstance(spec.get("cwd"), (str, type(None))):
        raise Fault("bad-request", "spec.cwd must be a path or null")
    env = spec.get("env") or {}
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise Fault("bad-request", "spec.env must map names to text")
    trouble = kinds.preload_problem(spec.get("preload") or []) or kinds.pool_problem(spec.get("pool"))
    if trouble:
        raise Fault("bad-request", "spec." + trouble)
    return key, spec


def _spawn_locked(base, runner, key, key_fd, spec, end):
    previous = None
    old = _known(base, key, key_fd)
    if old is not None:
        record = _living(os.path.join(base, old), end)
        if record is not None:
            return {"kernel": record, "reused": True, "previous": None}
        path = os.path.join(base, old)
        if place.own_problem(path) is None:
            osdep.kill_marked(old)
            previous = {"id": old, "dir": path, "why": cellfiles.how_it_ended(path)}
    record = _start(base, runner, key, key_fd, spec, end)
    return {"kernel": record, "reused": False, "previous": previous}


def _known(base, key, key_fd):
    """The id of the kernel under this key, or None."""
    name = os.pread(key_fd, 256, 0).decode("ascii", "replace").strip()
    if kernels.is_name(name):
        return name
    # No entry: a new key, or a cleaner of temporary files took it. A kernel that lives is not to be doubled.
    _known_keys.read(base)
    return next((name for name in _known_keys.kernels(base, key) if files.is_locked(os.path.join(base, name))), None)


class _Keys:
    """The keys of all kernels of a base. Each is read once: a process that spawns many would spend its time on that."""

    def __init__(self):
        self._read = {}  # base: {name of a kernel: its key}

    def read(self, base):
        keys = self._read.setdefault(base, {})
        there = set(os.listdir(base))
        for name in keys.keys() - there:
            del keys[name]
        for name in there - keys.keys():
            if kernels.is_name(name):
                record = files.read_json(os.path.join(base, name, "kernel.json"))
                if record and record.get("key"):
                    keys[name] = record["key"]

    def kernels(self, base, key):
        return [name for name, its_key in self._read[base].items() if its_key == key]


_known_keys = _Keys()


def _living(directory, end):
    """The record of a kernel that lives, waited for where it is just being started; None for a dead one."""
    if place.own_problem(directory) is not None:
        return None
    until = min(end - 1.0, time.monotonic() + KEY_SECONDS)
    pause = 0.001
    while True:
        # In this order: a record without a lock is a dead kernel, whoever else may still be about.
        locked = files.is_locked(directory)
        record = files.read_json(os.path.join(directory, "kernel.json"))
        if record is not None and record.get("v") != 1:
            raise Fault("version", "%s speaks version %r, this side version 1" % (directory, record.get("v")), "use the farcell that started it, or another session")
        if record is not None:
            return record if locked or files.is_locked(directory) else None
        if not locked and not is_starting(directory):
            return None
        if time.monotonic() >= until:
            raise Fault("busy", "the kernel %s is still being started" % os.path.basename(directory), "try again")
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


def is_starting(directory):
    """Whether somebody who takes part in a start lives: the command that began it, or the supervisor on its way."""
    try:
        fd = os.open(os.path.join(directory, files.START_LOCK), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not files.try_lock(fd)
    finally:
        os.close(fd)


def _start(base, runner, key, key_fd, spec, end):
    from . import launch
    directory = os.path.join(base, spec["id"])
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        # An earlier try with this id that failed half-way; nobody is in it, as the caller has seen.
        if files.is_locked(directory) or is_starting(directory) or os.path.exists(os.path.join(directory, "kernel.json")):
            raise Fault("bad-request", "there is a kernel %s already" % spec["id"], "take another id")
        place.check_own(directory)
        files.remove_tree(directory)
        os.mkdir(directory, 0o700)
    full = dict(spec, key=key, base=base, dir=directory, runner=runner)
    try:
        start_lock = os.open(os.path.join(directory, files.START_LOCK), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            files.lock(start_lock, 1.0)
            # The key names it before it lives: should this command die now, the next one finds what it left.
            _write_key(key_fd, spec["id"])
            record = launch.start(base, runner, directory, start_lock, full, end - time.monotonic() - 0.5)
            files.remove(os.path.join(directory, files.START_LOCK))
            return record
        finally:
            os.close(start_lock)
    except BaseException as error:
        _write_key(key_fd, "")
        files.remove_tree(directory)
        if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise Fault("spawn-failed", "cannot prepare %s: %s" % (directory, reason(error)))
        raise


def _write_key(fd, name):
    data = name.encode("ascii")
    os.ftruncate(fd, 0)
    os.pwrite(fd, data, 0)
