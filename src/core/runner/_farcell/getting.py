"""Getting a file from here: what it is, pieces of it, and its checksum."""

import hashlib
import os
import stat

from . import transfer
from .fault import Fault

PIECE_MAX = 64 << 20


def get(call):
    """The `get` operation."""
    return transfer.step(call, _STEPS)


def _source(path):
    """(descriptor, what it is) of a plain file. Nothing else is opened: a device may do something then."""
    info = transfer.look(path)
    if info is None:
        raise Fault("no-file", "there is no file %s" % transfer.shown(path))
    if stat.S_ISDIR(info.st_mode):
        raise Fault("is-directory", "%s is a directory" % transfer.shown(path), "get its files one by one, or pack it first: tar czf")
    if not stat.S_ISREG(info.st_mode):
        raise Fault("not-a-file", "%s is no plain file" % transfer.shown(path))
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise transfer.fault_of(error, path)
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        os.close(fd)
        raise Fault("not-a-file", "%s is no plain file" % transfer.shown(path))
    return fd, info


def _stamp(info):
    return "%x-%x" % (info.st_dev, info.st_ino)


def _same_source(call):
    """(path, descriptor) of the file that an earlier step has opened."""
    path = transfer.bytes_of(call, "path")
    fd, info = _source(path)
    if _stamp(info) != call.field("stamp", str, required=True):
        os.close(fd)
        raise _changed(path)
    return path, fd


def _changed(path):
    return Fault("changed", "%s was changed while it was read" % transfer.shown(path), "get it again, or a copy of it that stays as it is")


def _open(call):
    path = transfer.resolved(call)
    limit = transfer.natural(call, "max")
    fd, info = _source(path)
    try:
        size, answer = info.st_size, {"path": transfer.text_of(path), "mode": stat.S_IMODE(info.st_mode) & transfer.PERMISSIONS, "changed": "%d" % info.st_mtime_ns, "stamp": _stamp(info), "base": transfer.known_base(call)}
        if size <= limit:
            # To its end, wherever that is: files of /proc say that they have none.
            data = transfer.read(fd, 0, limit + 1)
            if len(data) <= limit:
                answer["sha256"] = hashlib.sha256(data).hexdigest()
                call.answer.send("out", data)
                size = len(data)
            elif not size:
                raise Fault("not-a-file", "%s does not say how long it is" % transfer.shown(path), "copy it to a plain file first")
        answer["size"] = size
    except OSError as error:
        raise transfer.fault_of(error, path)
    finally:
        os.close(fd)
    return answer


def _piece(call):
    offset, limit = transfer.natural(call, "offset"), min(transfer.natural(call, "max"), PIECE_MAX)
    path, fd = _same_source(call)
    try:
        data = transfer.read(fd, offset, limit)
    except OSError as error:
        raise transfer.fault_of(error, path)
    finally:
        os.close(fd)
    if len(data) < limit:
        raise _changed(path)
    call.answer.send("out", data)
    return {}


def _check(call):
    path, fd = _same_source(call)
    return transfer.hashed(call, path, fd)


def _digest(call):
    size = transfer.natural(call, "size")
    path, fd = _same_source(call)
    try:
        if os.fstat(fd).st_size < size:
            raise _changed(path)
        return {"sha256": transfer.digest(fd, size)}
    except OSError as error:
        raise transfer.fault_of(error, path)
    finally:
        os.close(fd)


_STEPS = {"open": _open, "piece": _piece, "check": _check, "digest": _digest}
