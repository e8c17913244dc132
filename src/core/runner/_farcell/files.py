"""Files that several processes share: atomic writes, publishing without replacing, locks and wake-up FIFOs."""

import errno
import fcntl
import os
import time

from . import fastjson

# The longest pause between two tries for a lock; the first is a hundredth of it.
_RETRY_MAX = 0.02

_READ_SIZE = 1 << 16

_counter = 0

# In a kernel's directory, held by everyone who takes part in a start, from before the directory is known to anyone until the supervisor stands.
START_LOCK = ".starting"

# What stands in a reply in the place of output that is only in the records.
GATHERED = b',"gathered":true,"stdout":"","stderr":""'

DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class LockTimeout(Exception):
    """A lock could not be had within its bound."""


def cell_path(directory, kind, number):
    """The path of one cell's file; `kind` is req, run, res or out."""
    return "%s/cells/cell_%s_%06d%s" % (directory, kind, number, "" if kind == "out" else ".json")


def cell_numbers(directory, kind):
    """The numbers of all files of one kind (req, run, res, out), in order."""
    prefix = "cell_%s_" % kind
    suffix = "" if kind == "out" else ".json"
    numbers = []
    try:
        names = os.listdir(os.path.join(directory, "cells"))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return []
        raise
    for name in names:
        if name.startswith(prefix) and name.endswith(suffix):
            digits = name[len(prefix):len(name) - len(suffix)]
            if digits.isdigit():
                numbers.append(int(digits))
    numbers.sort()
    return numbers


class Written(object):
    """A long request that its host has written out: it is shipped as it came, and of what stands in it only the id can be asked for."""

    def __init__(self, cell_id, pieces):
        # type: (str, list) -> None
        self._fields = {"id": cell_id}
        self.pieces = pieces  # of its text

    def __getitem__(self, name):
        return self._fields[name]


def content(request):
    """What its file is to hold: bytes, or a list of pieces of them."""
    return request.pieces if isinstance(request, Written) else to_json(request)


def to_json(value):
    """Compact JSON as ASCII bytes: lone surrogates survive it, and no byte is ever invalid UTF-8."""
    return fastjson.dumps(value).encode("ascii")


def write_all(fd, data):
    """Write everything, however many pieces it takes."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view):]
        except BlockingIOError:
            # Somebody who shares the descriptor made it non-blocking.
            import select
            select.select([], [fd], [])


def open_tmp(directory, mode=0o600):
    """A new empty file under a name that nobody looks for, in the directory where it will be published; gives (descriptor, path)."""
    global _counter
    while True:
        _counter += 1
        path = "%s/.tmp-%d-%d" % (directory, os.getpid(), _counter)
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode), path
        except FileExistsError:
            # Left by a process of the same pid that was killed in the middle.
            continue


def fill_tmp(fd, path, data):
    """Write the whole content of such a file, and close it; it is gone where that fails."""
    try:
        try:
            for piece in data if isinstance(data, list) else (data,):
                write_all(fd, piece)
        finally:
            # close(2) can be the first to tell of a full quota, so it must be inside the guard too.
            os.close(fd)
    except BaseException:
        remove(path)
        raise


def write_tmp(directory, data, mode=0o600):
    """Write a new file as open_tmp makes it; gives its path."""
    fd, path = open_tmp(directory, mode)
    fill_tmp(fd, path, data)
    return path


def atomic_write(path, data, mode=0o600):
    """Put `data` under `path`, replacing what is there; a reader sees the old file or the new one, never a part."""
    tmp = write_tmp(os.path.dirname(path) or ".", data, mode)
    try:
        os.rename(tmp, path)
    except BaseException:
        remove(tmp)
        raise


def publish_new(tmp, final):
    """Make `tmp` visible as `final`, which must not exist yet; False where it does. The name `tmp` is the caller's to remove, if it is still there."""
    try:
        os.link(tmp, final, follow_symlinks=False)
        return True
    except FileExistsError:
        return False
    except (OSError, NotImplementedError) as error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.EROFS):
            raise
        # No hard links here (some FUSE and vfat mounts, or a security module): check and rename, one at a time.
        return _publish_locked(tmp, final)


def _publish_locked(tmp, final):
    """The slow way to publish: all writers take the directory's lock, so nobody can step between check and rename."""
    with locked(os.path.dirname(final) or ".", 10.0, name=".publish"):
        if os.path.lexists(final):
            return False
        os.rename(tmp, final)
        return True


def remove(path):
    """Unlink; True if it was there."""
    try:
        os.unlink(path)
        return True
    except FileNotFoundError:
        return False


def read_bytes(path):
    """The content of a plain file, or None where there is none; a link is not followed."""
    try:
        # O_NONBLOCK: a FIFO in its place must not hold us.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    parts = []
    try:
        size = os.fstat(fd).st_size
        while True:
            # One more than there should be: a read that finds no more than that has found the end.
            data = os.read(fd, max(size + 1, _READ_SIZE))
            if data and len(data) == size and not parts:
                return data
            if not data:
                return b"".join(parts)
            parts.append(data)
    except BlockingIOError:
        return None
    finally:
        os.close(fd)


def read_json(path):
    """The JSON object in a file; None where the file is not there or holds no object."""
    data = read_bytes(path)
    if data is None:
        return None
    try:
        value = fastjson.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def is_locked(directory):
    """Whether a supervisor holds this kernel directory. Shared and non-blocking: probes never disturb each other."""
    try:
        fd = os.open(directory, DIR_FLAGS)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise
    try:
        return not try_lock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def try_lock(fd, how=fcntl.LOCK_EX):
    """Take a flock at once or not at all; closing the descriptor gives it back."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
        return True
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
            return False
        raise


def unlock(fd):
    """Give back the lock of a descriptor that stays open."""
    fcntl.flock(fd, fcntl.LOCK_UN)


def lock(fd, timeout, how=fcntl.LOCK_EX):
    """Take a flock within `timeout` seconds, else LockTimeout. flock(2) itself knows no bound."""
    if try_lock(fd, how):
        return
    end = time.monotonic() + timeout
    pause = _RETRY_MAX / 100
    while True:
        time.sleep(pause)
        if try_lock(fd, how):
            return
        if time.monotonic() >= end:
            raise LockTimeout("no lock after %.1f s" % timeout)
        pause = min(pause * 2, _RETRY_MAX)


class locked:
    """Context manager: the exclusive flock of a directory, or of the file `name` in it, within a bound."""

    def __init__(self, directory, timeout, name=None):
        self.directory = directory
        self.timeout = timeout
        self.name = name
        self.fd = -1

    def __enter__(self):
        if self.name is None:
            self.fd = os.open(self.directory, DIR_FLAGS)
        else:
            path = os.path.join(self.directory, self.name)
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            lock(self.fd, self.timeout)
        except BaseException:
            os.close(self.fd)
            self.fd = -1
            raise
        return self.fd

    def __exit__(self, *_exc):
        fd, self.fd = self.fd, -1
        os.close(fd)


def filled_pipe(data):
    """The reading end of a pipe that holds `data`, which is small, and nothing more."""
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        if os.write(writer, data) < len(data):
            raise OSError(errno.EMSGSIZE, "too long for a pipe")
    except OSError:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    return reader


def make_fifo(path):
    """Make a FIFO of ours; False where this file system cannot."""
    try:
        os.mkfifo(path, 0o600)
        return True
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOENT, errno.ENOSPC, errno.EDQUOT):
            raise
        return False
    except AttributeError:
        return False


def poke(path):
    """Write one byte into a FIFO if somebody has it open for reading; False where nobody has."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise
    try:
        os.write(fd, b"\n")
    except OSError as error:
        # EAGAIN: it is full, so its reader has something to wake up for anyway. EPIPE: the reader left just now.
        return error.errno == errno.EAGAIN
    finally:
        os.close(fd)
    return True


def has_reader(path):
    """Whether somebody has a FIFO open for reading."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC))
        return True
    except OSError:
        return False


def answer_path(directory, number, call):
    """The path of the answer to one call of one cell."""
    return "%s/rpc/res_%06d_%d.json" % (directory, number, call)


def remove_tree(path):
    """Remove a directory with everything in it, never following a link; what is gone already is no error."""
    try:
        fd = os.open(path, DIR_FLAGS)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            remove(path)
            return
        raise
    try:
        _empty(fd)
    finally:
        os.close(fd)
    try:
        os.rmdir(path)
    except FileNotFoundError:
        pass


def _empty(dir_fd):
    """Remove all entries of an open directory; names are resolved against the descriptor, so nobody can swap a parent."""
    for name in os.listdir(dir_fd):
        try:
            os.unlink(name, dir_fd=dir_fd)
            continue
        except FileNotFoundError:
            continue
        except OSError as error:
            # EISDIR on Linux, EPERM elsewhere.
            if error.errno not in (errno.EISDIR, errno.EPERM):
                raise
        child = os.open(name, DIR_FLAGS, dir_fd=dir_fd)
        try:
            _empty(child)
        finally:
            os.close(child)
        os.rmdir(name, dir_fd=dir_fd)
