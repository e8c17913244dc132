"""Files that are put here and got from here, in steps: each can be done twice, and none keeps anything but what is in a file beside the destination."""

import errno
import hashlib
import os
import stat
import time

from . import place
from .fault import Fault, HostGone, reason

BLOCK = 1 << 20  # what is compared when a transfer goes on
BLOCKS_MAX = 1024  # of one step
PIECE_MAX = 64 << 20
STALE_SECONDS = 24 * 3600.0
MARK, TAIL = b".farcell-", b".part"
_CHUNK = 1 << 18
_PERMISSIONS = 0o777


def put(call):
    """The `put` operation."""
    return _step(call, _PUT)


def get(call):
    """The `get` operation."""
    return _step(call, _GET)


def _step(call, steps):
    step = steps.get(call.field("do", str, required=True))
    if step is None:
        raise Fault("bad-request", "do must be one of %s" % ", ".join(sorted(steps)))
    return step(call)


# --- paths: bytes, as the locale of a command may know no more than ASCII -----------------------------------------------------------

def _bytes_of(call, name):
    text = call.field(name, str, required=True)
    try:
        path = text.encode("utf-8")
    except UnicodeEncodeError:
        path = b"\0"
    if not path or b"\0" in path:
        raise Fault("bad-request", "%s cannot be a path: %s" % (name, ascii(text)))
    return path


def _resolved(call):
    """The path that the call names: `~` is the home directory, and what is relative begins at `cwd`, else there, too."""
    path = _bytes_of(call, "path")
    if os.path.isabs(path):
        return path
    if path == b"~" or path.startswith(b"~/"):
        return _home() + path[1:]
    at = _bytes_of(call, "cwd") if call.header.get("cwd") is not None else b"~"
    if at == b"~" or at.startswith(b"~/"):
        at = _home() + at[1:]
    return os.path.join(at if os.path.isabs(at) else os.path.join(_home(), at), path)


def _home():
    home = os.path.expanduser(b"~")
    if not os.path.isabs(home):
        raise Fault("no-file", "this user has no home directory there", "name an absolute path")
    return home.rstrip(b"/") or b"/"


def shown(path):
    """A path for a message, on one line whatever is in it."""
    text = path.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _text(path):
    try:
        return path.decode("utf-8")
    except UnicodeDecodeError:
        raise Fault("bad-request", "%s is not UTF-8" % shown(path), "name a path whose directories are")


def _fault(error, path):
    """What went wrong with a file, as its user would say it."""
    name, number = shown(path), error.errno
    if number == errno.ENOENT:
        return Fault("no-file", "there is no %s" % name)
    if number == errno.ENOTDIR:
        return Fault("no-file", "there is no %s: something on the way is not a directory" % name)
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Fault("denied", "%s: %s for %s" % (name, reason(error), place.owner_name(os.geteuid())), "choose a place that this user may use, or change its permissions")
    if number in (errno.ENOSPC, errno.EDQUOT):
        return Fault("disk-full", "no room for %s: %s" % (name, reason(error)), "free some space on the target, or choose another place")
    if number in (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL):
        return Fault("bad-request", "%s: %s" % (name, reason(error)))
    return Fault("io", "%s: %s" % (name, reason(error)))


def _stat(path):
    """What is there, links followed; None where nothing is."""
    try:
        return os.stat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise _fault(error, path)


def _is_directory(path):
    info = _stat(path)
    return info is not None and stat.S_ISDIR(info.st_mode)


# --- where a file goes ----------------------------------------------------------------------------------------------------------------

def _destination(call):
    """Where the file is to be, as `cp` would have it: in a directory under its own name, else under the name that was given."""
    path, name = _resolved(call), _bytes_of(call, "name")
    if b"/" in name or name in (b".", b".."):
        raise Fault("bad-request", "name must be a name")
    parents = call.field("parents", bool, default=False)
    if _is_directory(path):
        path = os.path.join(path, name)
        if _is_directory(path):
            raise Fault("is-directory", "%s is a directory" % shown(path), "a file does not replace a directory: remove it, or choose another place")
    elif path.endswith(b"/") or call.field("into", bool, default=False):
        _need_directory(path, parents)
        path = os.path.join(path, name)
    else:
        _need_directory(os.path.dirname(path), parents)
    info = _stat(path)
    if info is not None and not stat.S_ISREG(info.st_mode):
        raise Fault("not-a-file", "%s is no plain file, and is not replaced" % shown(path))
    return path


def _need_directory(path, parents):
    if _is_directory(path):
        return
    if _stat(path.rstrip(b"/") or b"/") is not None:
        raise Fault("not-a-directory", "%s is not a directory" % shown(path), "choose another place")
    if not parents:
        raise Fault("no-file", "there is no directory %s" % shown(path), "make it first, or have it made: --parents")
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise _fault(error, path)


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
            raise _fault(error, part)
    raise Fault("io", "%s is made again and again by somebody else" % shown(part))


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
    part = _bytes_of(call, "part")
    name = os.path.basename(part)
    if not os.path.isabs(part) or not name.startswith(MARK) or not name.endswith(TAIL):
        raise Fault("bad-request", "part is not one of ours: %s" % shown(part))
    fd = _old_part(part, flags)
    if fd is None:
        raise Fault("gone", "%s is gone, which held what had arrived" % shown(part), "put the file again")
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
        raise Fault("disk-full", "no room for %s: %d bytes are needed, %d are free" % (shown(path), missing, room.f_bavail * room.f_frsize),
                    "free some space on the target, or choose another place")


# --- put ------------------------------------------------------------------------------------------------------------------------------

def _count(call, name):
    value = call.field(name, int, required=True)
    if value < 0:
        raise Fault("bad-request", "%s must not be negative" % name)
    return value


def _checksum(call):
    value = call.field("sha256", str, required=True)
    if len(value) != 64 or value.strip("0123456789abcdef"):
        raise Fault("bad-request", "sha256 must be 64 hex digits")
    return value


def _put_open(call):
    size, checksum = _count(call, "size"), _checksum(call)
    path = _destination(call)
    part = _part_name(path, size, checksum)
    answer = {"path": _text(path), "part": _text(part), "done": False, "base": _base(call)}
    _sweep(os.path.dirname(part))
    try:
        fd = _new_part(part)
    except OSError as error:
        raise _fault(error, os.path.dirname(path))
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
        raise _fault(error, path)
    finally:
        os.close(fd)
    return answer


def _fill(call, fd, at):
    """Write what stands behind the header to this place."""
    left = _count(call, "bytes")
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


def _put_piece(call):
    offset = _count(call, "offset")
    part, fd = _need_part(call, os.O_WRONLY)
    try:
        _fill(call, fd, offset)
    except OSError as error:
        raise _fault(error, part)
    finally:
        os.close(fd)
    return {}


def _put_check(call):
    part, fd = _need_part(call, os.O_RDONLY)
    return _hashed(call, part, fd)


def _put_finish(call):
    size, checksum = _count(call, "size"), _checksum(call)
    path = _bytes_of(call, "path")
    try:
        part, fd = _need_part(call)
    except Fault as fault:
        # An earlier try may have come to its end, or another transfer of the same.
        if fault.code == "gone" and _is_there(path, size, checksum):
            return {"path": _text(path)}
        raise
    try:
        _complete(call, fd, part, path, size, checksum)
    except OSError as error:
        raise _fault(error, path)
    finally:
        os.close(fd)
    return {"path": _text(path)}


def _complete(call, fd, part, path, size, checksum):
    """Make the part the file, if it is what was sent."""
    if os.fstat(fd).st_size != size or _digest(fd, size) != checksum:
        _forget(part)
        raise Fault("checksum", "what arrived for %s is not what was sent, and was removed: its SHA-256 differs" % shown(path), "send it again")
    os.fchmod(fd, call.field("mode", int, default=0o600) & _PERMISSIONS)
    try:
        os.rename(part, path)
    except FileNotFoundError:
        if not _is_there(path, size, checksum):
            raise Fault("gone", "%s is gone, which held what had arrived" % shown(part), "put the file again")


def _is_there(path, size, checksum):
    """Whether the destination is a plain file with this content."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        info = os.fstat(fd)
        return stat.S_ISREG(info.st_mode) and info.st_size == size and _digest(fd, size) == checksum
    finally:
        os.close(fd)


def _put_drop(call):
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


# --- get ------------------------------------------------------------------------------------------------------------------------------

def _source(path):
    """(descriptor, what it is) of a plain file. Nothing else is opened: a device may do something then."""
    info = _stat(path)
    if info is None:
        raise Fault("no-file", "there is no file %s" % shown(path))
    if stat.S_ISDIR(info.st_mode):
        raise Fault("is-directory", "%s is a directory" % shown(path), "get its files one by one, or pack it first: tar czf")
    if not stat.S_ISREG(info.st_mode):
        raise Fault("not-a-file", "%s is no plain file" % shown(path))
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _fault(error, path)
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        os.close(fd)
        raise Fault("not-a-file", "%s is no plain file" % shown(path))
    return fd, info


def _stamp(info):
    return "%x-%x" % (info.st_dev, info.st_ino)


def _same_source(call):
    """(path, descriptor) of the file that an earlier step has opened."""
    path = _bytes_of(call, "path")
    fd, info = _source(path)
    if _stamp(info) != call.field("stamp", str, required=True):
        os.close(fd)
        raise _changed(path)
    return path, fd


def _changed(path):
    return Fault("changed", "%s was changed while it was read" % shown(path), "get it again, or a copy of it that stays as it is")


def _get_open(call):
    path = _resolved(call)
    limit = _count(call, "max")
    fd, info = _source(path)
    try:
        size, answer = info.st_size, {"path": _text(path), "mode": stat.S_IMODE(info.st_mode) & _PERMISSIONS, "changed": "%d" % info.st_mtime_ns, "stamp": _stamp(info), "base": _base(call)}
        if size <= limit:
            # To its end, wherever that is: files of /proc say that they have none.
            data = _read(fd, 0, limit + 1)
            if len(data) <= limit:
                answer["sha256"] = hashlib.sha256(data).hexdigest()
                call.answer.send("out", data)
                size = len(data)
            elif not size:
                raise Fault("not-a-file", "%s does not say how long it is" % shown(path), "copy it to a plain file first")
        answer["size"] = size
    except OSError as error:
        raise _fault(error, path)
    finally:
        os.close(fd)
    return answer


def _read(fd, at, count):
    parts = []
    while count:
        data = os.pread(fd, count, at)
        if not data:
            break
        parts.append(data)
        at, count = at + len(data), count - len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _get_piece(call):
    offset, limit = _count(call, "offset"), min(_count(call, "max"), PIECE_MAX)
    path, fd = _same_source(call)
    try:
        data = _read(fd, offset, limit)
    except OSError as error:
        raise _fault(error, path)
    finally:
        os.close(fd)
    if len(data) < limit:
        raise _changed(path)
    call.answer.send("out", data)
    return {}


def _get_check(call):
    path, fd = _same_source(call)
    return _hashed(call, path, fd)


def _get_digest(call):
    size = _count(call, "size")
    path, fd = _same_source(call)
    try:
        if os.fstat(fd).st_size < size:
            raise _changed(path)
        return {"sha256": _digest(fd, size)}
    except OSError as error:
        raise _fault(error, path)
    finally:
        os.close(fd)


# --- both -----------------------------------------------------------------------------------------------------------------------------

def _digest(fd, size):
    """The checksum of the first `size` bytes."""
    total, at = hashlib.sha256(), 0
    while at < size:
        data = os.pread(fd, min(size - at, BLOCK), at)
        if not data:
            break
        total.update(data)
        at += len(data)
    return total.hexdigest()


def _hashed(call, path, fd):
    """The checksums of blocks, so that both sides can see what they have in common."""
    try:
        offset, count = _count(call, "offset"), _count(call, "count")
        if count > BLOCKS_MAX:
            raise Fault("bad-request", "at most %d blocks at once" % BLOCKS_MAX)
        return {"blocks": [hashlib.sha256(_read(fd, offset + at * BLOCK, BLOCK)).hexdigest() for at in range(count)]}
    except OSError as error:
        raise _fault(error, path)
    finally:
        os.close(fd)


def _base(call):
    """A base directory that has our runner: a command that names it needs not bring that along."""
    if call.header.get("base"):
        return call.header["base"]
    found = (base for base in place.existing_bases(call.header) if place.is_complete(base, call.header["runner"]))
    return next(found, None)


_PUT = {"open": _put_open, "piece": _put_piece, "check": _put_check, "finish": _put_finish, "drop": _put_drop}
_GET = {"open": _get_open, "piece": _get_piece, "check": _get_check, "digest": _get_digest}
