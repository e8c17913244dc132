"""Putting a file here: where it goes, the part that it is until it is whole, and the steps that fill it."""

import errno
import hashlib
import os
import stat
import time

from . import transfer
from .fault import Fault, HostGone

PIECE_MAX = 64 << 20
STALE_SECONDS = 24 * 3600.0
MARK, TAIL = b".farcell-", b".part"
_CHUNK = 1 << 18


def put(call):
    """The `put` operation."""
    return transfer.step(call, _STEPS)


# --- where a file goes ----------------------------------------------------------------------------------------------------------------

def _destination(call):
    """Where the file is to be, as `cp` would have it: in a directory under its own name, else under the name that was given."""
    path, name = transfer.resolved(call), transfer.bytes_of(call, "name")
    if b"/" in name or name in (b".", b".."):
        raise Fault("bad-request", "name must be a name")
    parents = call.field("parents", bool, default=False)
    if transfer.is_directory(path):
        path = os.path.join(path, name)
        if transfer.is_directory(path):
            raise Fault("is-directory", "%s is a directory" % transfer.shown(path), "a file does not replace a directory: remove it, or choose another place")
    elif path.endswith(b"/") or call.field("into", bool, default=False):
        _need_directory(path, parents)
        path = os.path.join(path, name)
    else:
        _need_directory(os.path.dirname(path), parents)
    info = transfer.look(path)
    if info is not None and not stat.S_ISREG(info.st_mode):
        raise Fault("not-a-file", "%s is no plain file, and is not replaced" % transfer.shown(path))
    return path


def _need_directory(path, parents):
    if transfer.is_directory(path):
        return
    if transfer.look(path.rstrip(b"/") or b"/") is not None:
        raise Fault("not-a-directory", "%s is not a directory" % transfer.shown(path), "choose another place")
    if not parents:
        raise Fault("no-file", "there is no directory %s" % transfer.shown(path), "make it first, or have it made: --parents")
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise transfer.fault_of(error, path)


def _part_name(path, size, digest):
    """Where a file is until it is whole: the same for the same content and destination, so that a later transfer finds it."""
    named = b"%s\0%d\0%s" % (os.path.basename(path), size, digest.encode("ascii"))
    return os.path.join(os.path.dirname(path), MARK + hashlib.sha256(named).hexdigest()[:16].encode("ascii") + TAIL)


def _new_part(part):
    """A descriptor of the part, ours alone: one that is there and may have been planted is removed."""
    for _try in range(3):
        try:
            return os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            fd = _old_part(part)
            if fd is not None:
                return fd
        try:
            os.unlink(part)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise transfer.fault_of(error, part)
    raise Fault("io", "%s is made again and again by somebody else" % transfer.shown(part))


def _old_part(part, flags=os.O_RDWR):
    """A descriptor of a part that is there; None where it is nothing that we have made."""
    try:
        fd = os.open(part, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EACCES, errno.EPERM):
            return None
        raise
    info = os.fstat(fd)
    if stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid() and info.st_nlink == 1:
        return fd
    os.close(fd)
    return None


def _need_part(call, flags=os.O_RDWR):
    """(path, descriptor) of the part that the call names."""
    part = transfer.bytes_of(call, "part")
    name = os.path.basename(part)
    if not os.path.isabs(part) or not name.startswith(MARK) or not name.endswith(TAIL):
        raise Fault("bad-request", "part is not one of ours: %s" % transfer.shown(part))
    fd = _old_part(part, flags)
    if fd is None:
        raise Fault("gone", "%s is gone, which held what had arrived" % transfer.shown(part), "put the file again")
    return part, fd


def _sweep(directory):
    """Remove what transfers left that nobody has gone on with."""
    before = time.time() - STALE_SECONDS
    try:
        with os.scandir(directory) as entries:
            stale = [entry for entry in entries if entry.name.startswith(MARK) and entry.name.endswith(TAIL)]
        for entry in stale:
            info = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid() and info.st_mtime < before:
                os.unlink(entry.path)
    except OSError:
        pass  # it is only tidying up


def _need_room(fd, size, path):
    """Say that a file will not fit before it is sent."""
    try:
        info, room = os.fstat(fd), os.fstatvfs(fd)
    except OSError:
        return
    missing = size - min(info.st_blocks * 512, size)
    if room.f_blocks and missing > room.f_bavail * room.f_frsize:
        raise Fault("disk-full", "no room for %s: %d bytes are needed, %d are free" % (transfer.shown(path), missing, room.f_bavail * room.f_frsize),
                    "free some space on the target, or choose another place")


# --- the steps ------------------------------------------------------------------------------------------------------------------------------

def _checksum(call):
    value = call.field("sha256", str, required=True)
    if len(value) != 64 or value.strip("0123456789abcdef"):
        raise Fault("bad-request", "sha256 must be 64 hex digits")
    return value


def _open(call):
    size, checksum = transfer.natural(call, "size"), _checksum(call)
    path = _destination(call)
    part = _part_name(path, size, checksum)
    answer = {"path": transfer.text_of(path), "part": transfer.text_of(part), "done": False, "base": transfer.known_base(call)}
    _sweep(os.path.dirname(part))
    try:
        fd = _new_part(part)
    except OSError as error:
        directory = os.path.dirname(path)
        if error.errno == errno.ENOENT and transfer.is_directory(directory):
            raise Fault("denied", "no file can be made in %s" % transfer.shown(directory), "choose another place")
        raise transfer.fault_of(error, directory)
    try:
        _need_room(fd, size, path)
        answer["have"] = os.fstat(fd).st_size
        if answer["have"] > size:
            os.ftruncate(fd, 0)
            answer["have"] = 0
        if call.header.get("bytes") is not None:
            _fill(call, fd, 0)
            _complete(call, fd, part, path, size, checksum)
            answer["done"] = True
    except Fault:
        _forget(part)
        raise
    except OSError as error:
        _forget(part)
        raise transfer.fault_of(error, path)
    finally:
        os.close(fd)
    return answer


def _fill(call, fd, at):
    """Write what stands behind the header to this place."""
    left = transfer.natural(call, "bytes")
    if left > PIECE_MAX:
        raise Fault("bad-request", "a piece has at most %d bytes" % PIECE_MAX)
    while left:
        data = call.stdin.read(min(left, _CHUNK))
        if not data:
            raise HostGone()
        left -= len(data)
        view = memoryview(data)
        while view:
            count = os.pwrite(fd, view, at)
            at, view = at + count, view[count:]


def _piece(call):
    offset = transfer.natural(call, "offset")
    part, fd = _need_part(call, os.O_WRONLY)
    try:
        _fill(call, fd, offset)
    except OSError as error:
        raise transfer.fault_of(error, part)
    finally:
        os.close(fd)
    return {}


def _check(call):
    part, fd = _need_part(call, os.O_RDONLY)
    return transfer.hashed(call, part, fd)


def _finish(call):
    size, checksum = transfer.natural(call, "size"), _checksum(call)
    path = transfer.bytes_of(call, "path")
    try:
        part, fd = _need_part(call)
    except Fault as fault:
        # An earlier try may have come to its end, or another transfer of the same.
        if fault.code == "gone" and _is_there(path, size, checksum):
            return {"path": transfer.text_of(path)}
        raise
    try:
        _complete(call, fd, part, path, size, checksum)
    except OSError as error:
        raise transfer.fault_of(error, path)
    finally:
        os.close(fd)
    return {"path": transfer.text_of(path)}


def _complete(call, fd, part, path, size, checksum):
    """Make the part the file, if it is what was sent."""
    if os.fstat(fd).st_size != size or transfer.digest(fd, size) != checksum:
        _forget(part)
        raise Fault("checksum", "what arrived for %s is not what was sent, and was removed: its SHA-256 differs" % transfer.shown(path), "send it again")
    os.fchmod(fd, call.field("mode", int, default=0o600) & transfer.PERMISSIONS)
    try:
        os.rename(part, path)
    except FileNotFoundError:
        if not _is_there(path, size, checksum):
            raise Fault("gone", "%s is gone, which held what had arrived" % transfer.shown(part), "put the file again")


def _is_there(path, size, checksum):
    """Whether the destination is a plain file with this content."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        info = os.fstat(fd)
        return stat.S_ISREG(info.st_mode) and info.st_size == size and transfer.digest(fd, size) == checksum
    finally:
        os.close(fd)


def _drop(call):
    try:
        part, fd = _need_part(call, os.O_RDONLY)
    except Fault as fault:
        if fault.code != "gone":
            raise
    else:
        os.close(fd)
        _forget(part)
    return {}


def _forget(part):
    try:
        os.unlink(part)
    except OSError:
        pass


_STEPS = {"open": _open, "piece": _piece, "check": _check, "finish": _finish, "drop": _drop}
