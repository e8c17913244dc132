"""What putting and getting files have in common: paths as their user means them, what goes wrong, and checksums."""

import errno
import hashlib
import os
import stat

from . import place
from .fault import Fault, reason

BLOCK = 1 << 20  # what is compared when a transfer goes on
BLOCKS_MAX = 1024  # of one step
PERMISSIONS = 0o777


def step(call, steps):
    """Do what the call's `do` names."""
    function = steps.get(call.field("do", str, required=True))
    if function is None:
        raise Fault("bad-request", "do must be one of %s" % ", ".join(sorted(steps)))
    return function(call)


# --- paths: bytes, as the locale of a command may know no more than ASCII -----------------------------------------------------------

def bytes_of(call, name):
    """A path, or a name, of the call."""
    text = call.field(name, str, required=True)
    try:
        path = text.encode("utf-8")
    except UnicodeEncodeError:
        path = b"\0"
    if not path or b"\0" in path:
        raise Fault("bad-request", "%s cannot be a path: %s" % (name, ascii(text)))
    return path


def resolved(call):
    """The path that the call names: `~` is the home directory, and what is relative begins at `cwd`, else there, too."""
    path = bytes_of(call, "path")
    if os.path.isabs(path):
        return path
    if path == b"~" or path.startswith(b"~/"):
        return _home() + path[1:]
    at = bytes_of(call, "cwd") if call.header.get("cwd") is not None else b"~"
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


def text_of(path):
    """A path for an answer."""
    try:
        return path.decode("utf-8")
    except UnicodeDecodeError:
        raise Fault("bad-request", "%s is not UTF-8" % shown(path), "name a path whose directories are")


def fault_of(error, path):
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


def look(path):
    """What is there, links followed; None where nothing is."""
    try:
        return os.stat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise fault_of(error, path)


def is_directory(path):
    info = look(path)
    return info is not None and stat.S_ISDIR(info.st_mode)


# --- content ------------------------------------------------------------------------------------------------------------------------

def digest(fd, size):
    """The checksum of the first `size` bytes."""
    total, at = hashlib.sha256(), 0
    while at < size:
        data = os.pread(fd, min(size - at, BLOCK), at)
        if not data:
            break
        total.update(data)
        at += len(data)
    return total.hexdigest()


def hashed(call, path, fd):
    """The checksums of blocks, so that both sides can see what they have in common."""
    try:
        offset, count = natural(call, "offset"), natural(call, "count")
        if count > BLOCKS_MAX:
            raise Fault("bad-request", "at most %d blocks at once" % BLOCKS_MAX)
        return {"blocks": [hashlib.sha256(read(fd, offset + at * BLOCK, BLOCK)).hexdigest() for at in range(count)]}
    except OSError as error:
        raise fault_of(error, path)
    finally:
        os.close(fd)


def known_base(call):
    """A base directory that has our runner: a command that names it needs not bring that along."""
    if call.header.get("base"):
        return call.header["base"]
    found = (base for base in place.existing_bases(call.header) if place.is_complete(base, call.header["runner"]))
    return next(found, None)


def natural(call, name):
    """A number of bytes or the like."""
    value = call.field(name, int, required=True)
    if value < 0:
        raise Fault("bad-request", "%s must not be negative" % name)
    return value


def read(fd, at, count):
    """So many bytes, or as many as there are."""
    parts = []
    while count:
        data = os.pread(fd, count, at)
        if not data:
            break
        parts.append(data)
        at, count = at + len(data), count - len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)
