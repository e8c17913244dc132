"""Where kernels live on a machine: choosing, checking and filling the base directory."""

import errno
import os
import stat
import time

from . import files
from .fault import Fault, reason

SHARED_MEMORY = "/dev/shm"
FIXED_PARENTS = ("/tmp", "/var/tmp")
MEMORY_MIN_FREE = 8 << 20
PROBE_BYTES = 4096
REMEMBERED_SECONDS = 60.0


def owner_name(uid):
    """A user's name for messages; the number where the machine has no entry for it."""
    try:
        import pwd
        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return "uid %d" % uid


def base_name():
    return "farcell-%d" % os.geteuid()


# --- may others interfere? -------------------------------------------------------------------------------------------------------

def own_problem(path):
    """Why `path` cannot be trusted as a directory of ours, or None. A link is never followed."""
    try:
        info = os.lstat(path)
    except OSError as error:
        return reason(error)
    if stat.S_ISLNK(info.st_mode):
        return "it is a symbolic link, owned by %s" % owner_name(info.st_uid)
    if not stat.S_ISDIR(info.st_mode):
        return "it is not a directory (owner %s)" % owner_name(info.st_uid)
    if info.st_uid != os.geteuid():
        return "it belongs to %s" % owner_name(info.st_uid)
    if info.st_mode & 0o022:
        return "others can write to it (mode %04o)" % stat.S_IMODE(info.st_mode)
    return None


def check_own(path, tighten=False):
    """Refuse `path` by name unless it is a directory of ours that nobody else can write to."""
    problem = own_problem(path)
    if problem:
        raise Fault("unsafe-directory", "%s cannot be used: %s" % (path, problem),
                    "remove it, or name another directory with dir=; farcell does not touch what others may have planted")
    if tighten and stat.S_IMODE(os.lstat(path).st_mode) & 0o055:
        os.chmod(path, 0o700)


def _trusted_owners():
    owners = {0, os.geteuid()}
    # In a user namespace the host's root has no number of its own: its directories show the overflow uid.
    if _first_line("/proc/self/uid_map").split() not in ([], ["0", "0", "4294967295"]):
        overflow = _first_line("/proc/sys/kernel/overflowuid")
        owners.add(int(overflow) if overflow.isdigit() else 65534)
    return owners


def parent_problem(path):
    """Why a directory cannot hold our base, or None: every directory on the way must be safe from other users."""
    if not os.path.isabs(path):
        return "it is not an absolute path"
    if not os.path.isdir(path):
        return "it is not a directory" if os.path.lexists(path) else "it does not exist"
    real = os.path.realpath(path)
    owners = _trusted_owners()
    at = real
    while True:
        try:
            info = os.stat(at)
        except OSError as error:
            return "%s: %s" % (at, reason(error))
        where = "it" if at == real else at
        if info.st_uid not in owners:
            return "%s belongs to %s" % (where, owner_name(info.st_uid))
        if not info.st_mode & stat.S_ISVTX:
            if info.st_mode & 0o002:
                return "others can write to %s and the sticky bit is missing" % where
            # A group of the same number as its user is that user's own (the usual scheme), root's is root.
            if info.st_mode & 0o020 and info.st_gid not in (0, info.st_uid):
                return "its group can write to %s and the sticky bit is missing" % where
        if at == "/":
            return None
        at = os.path.dirname(at)


# --- which directories come into question -----------------------------------------------------------------------------------------

def _first_line(path):
    try:
        with open(path, "rb") as file:
            return file.readline(4096).decode("ascii", "replace").strip()
    except OSError:
        return ""


def has_logind():
    return os.path.isdir("/run/systemd/seats")


def is_lingering():
    name = owner_name(os.geteuid())
    return "/" not in name and os.path.exists("/var/lib/systemd/linger/" + name)


def in_container():
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return True
    try:
        with open("/proc/1/environ", "rb") as file:
            if any(entry.startswith(b"container=") for entry in file.read(65536).split(b"\0")):
                return True
    except OSError:
        pass
    try:
        with open("/proc/1/cgroup", "rb") as file:
            text = file.read(65536)
    except OSError:
        return False
    return any(word in text for word in (b"docker", b"kubepods", b"libpod"))


def memory_problem():
    """Why shared memory is no place for kernels, or None. logind empties it at the last logout of a regular user (RemoveIPC)."""
    if not os.path.isdir(SHARED_MEMORY):
        return "it does not exist"
    if has_logind() and not (os.geteuid() < 1000 or is_lingering() or in_container()):
        return "logind empties it when this user logs out"
    try:
        free = free_bytes(SHARED_MEMORY)
    except OSError as error:
        return reason(error)
    if free < MEMORY_MIN_FREE:
        return "only %d bytes are free" % free
    return None


def free_bytes(path):
    info = os.statvfs(path)
    return info.f_bavail * info.f_frsize


def _parents():
    """The candidates in order, each as (directory, why it is out of the question or None)."""
    yield SHARED_MEMORY, memory_problem()
    tmpdir = os.environ.get("TMPDIR")
    if tmpdir:
        yield tmpdir, None
    for parent in FIXED_PARENTS:
        yield parent, None
    home = os.environ.get("HOME")
    if home and os.path.isabs(home) and os.path.isdir(home):
        yield os.path.join(home, ".cache"), None
    try:
        yield os.getcwd(), None
    except OSError as error:
        yield "the working directory", reason(error)


def _make_parent(path):
    """A home directory need not have a .cache yet; no other parent is made. Gives why that fails, or None."""
    if path != os.path.join(os.environ.get("HOME") or "/", ".cache"):
        return None
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        return reason(error)
    return None


def _wish(header):
    place = header.get("place")
    wish = place.get("dir") if isinstance(place, dict) else None
    if isinstance(wish, str) and wish.startswith("~") and "\0" not in wish:
        wish = os.path.expanduser(wish)
    if wish is not None and (not isinstance(wish, str) or not os.path.isabs(wish) or "\0" in wish):
        raise Fault("bad-request", "place.dir must be an absolute path")
    return os.path.normpath(wish) if wish else None


def existing_bases(header):
    """All bases of ours that exist and are safe: just the one that was named, else whatever a search finds."""
    if header.get("base"):
        named = [header["base"]]
    elif _wish(header):
        named = [_wish(header)]
    else:
        named = []
        for parent, _problem in _parents():
            base = os.path.join(os.path.realpath(parent), base_name())
            if base not in named:
                named.append(base)
    return [base for base in named if own_problem(base) is None]


# --- choosing ----------------------------------------------------------------------------------------------------------------------

def choose(header, key=None):
    """The base directory to use, made where it is missing; gives (path, refused candidates)."""
    for named, tighten in ((header.get("base"), True), (_wish(header), False)):
        if named:
            return _remembered(named) or _remember(named, _named(named, tighten)), []
    if key:
        # A key that has a home keeps it, even if a better place (more room, another TMPDIR) has come up since.
        for base in existing_bases(header):
            if os.path.exists(os.path.join(base, "keys", key)):
                return base, []
    refused = []
    for parent, problem in _parents():
        if any(parent == entry["dir"] for entry in refused):
            continue
        base = None
        problem = problem or _make_parent(parent) or parent_problem(parent)
        if problem is None:
            base = os.path.join(os.path.realpath(parent), base_name())
            problem = _make(base) or _probe(base)
        if problem is None:
            return base, refused
        refused.append({"dir": base or parent, "why": problem})
    raise Fault("no-place", "no directory can hold a kernel: " + "; ".join("%(dir)s: %(why)s" % entry for entry in refused),
                "name a private directory that can be written with dir=")


_chosen = {}  # type: dict


def _remembered(named):
    """What was chosen for this name a moment ago by this process, if that is the same directory, and still ours."""
    real, identity, until = _chosen.get(named, (None, None, 0.0))
    if time.monotonic() >= until or _identity(named) != identity or own_problem(named):
        return None
    return real


def _remember(named, real):
    _chosen[named] = real, _identity(named), time.monotonic() + REMEMBERED_SECONDS
    return real


def _identity(path):
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino


def _named(path, tighten):
    """A directory that was named is used as it is, or refused; there is no other one to fall back to."""
    if not os.path.lexists(path):
        problem = parent_problem(os.path.dirname(path))
        if problem is None:
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                pass
            except OSError as error:
                problem = reason(error)
        if problem:
            raise Fault("no-directory", "%s cannot be made: in %s, %s" % (path, os.path.dirname(path), problem), "name another directory with dir=")
    check_own(path, tighten)
    problem = parent_problem(os.path.dirname(path))
    if problem:
        raise Fault("unsafe-directory", "%s cannot be used: of %s, %s" % (path, os.path.dirname(path), problem), "name another directory with dir=")
    problem = _probe(path)
    if problem:
        raise Fault("no-directory", "%s cannot be used: %s" % (path, problem), "name another directory with dir=")
    return os.path.realpath(path)


def _make(base):
    try:
        os.mkdir(base, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        return reason(error)
    try:
        check_own(base, tighten=True)
    except Fault:
        return own_problem(base)
    return None


def _probe(base):
    """Why kernels cannot live in a directory that looks right, or None: a real write and a real lock."""
    import fcntl
    try:
        files.remove(files.write_tmp(base, b"\0" * PROBE_BYTES))
    except OSError as error:
        return "it cannot be written: " + reason(error)
    try:
        fd = os.open(base, files.DIR_FLAGS)
        try:
            files.try_lock(fd, fcntl.LOCK_SH)
        finally:
            os.close(fd)
    except OSError as error:
        return "directories cannot be locked there: " + reason(error)
    return None


# --- the runner's modules ------------------------------------------------------------------------------------------------------------

def runner_dir(base, runner):
    if not isinstance(runner, str) or not runner.isalnum() or len(runner) > 64:
        raise Fault("bad-request", "runner must be a hash")
    return os.path.join(base, "runner-" + runner)


def own_directory(path):
    """Make a private directory in one of ours, or check the one that is there."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        check_own(path, tighten=True)
    except OSError as error:
        raise disk_fault(error, path)


def disk_fault(error, path):
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Fault("disk-full", "no room for %s: %s" % (path, reason(error)), "free some space on the target, or name another directory with dir=")
    return Fault("no-directory", "%s cannot be written: %s" % (path, reason(error)), "name another directory with dir=")


def install(base, runner, modules):
    """Write the shipped modules, file by file; whatever is there already and differs is replaced."""
    top = runner_dir(base, runner)
    package = os.path.join(top, "_farcell")
    own_directory(top)
    own_directory(package)
    own_directory(os.path.join(package, "__pycache__"))  # else Python makes it, with the mode that the user's umask allows
    manifest = {}
    for name, source in modules.items():
        if not isinstance(source, str) or not name.endswith(".py") or not name.replace("_", "")[:-3].isalnum():
            raise Fault("bad-request", "the bundle has a module named %r" % name)
        data = source.encode("utf-8")
        where = top if name == "farcell_kernel.py" else package
        manifest[os.path.join(os.path.basename(where), name) if where == package else name] = len(data)
        _put(os.path.join(where, name), data)
    _put(os.path.join(top, "manifest.json"), files.to_json(manifest))


def _put(path, data):
    try:
        if files.read_bytes(path) != data:
            files.atomic_write(path, data)
    except OSError as error:
        raise disk_fault(error, path)


def is_complete(base, runner):
    """Whether all modules are still there: a cleaner of temporary files may have taken some."""
    top = runner_dir(base, runner)
    if own_problem(top):
        return False
    manifest = files.read_json(os.path.join(top, "manifest.json"))
    if not manifest:
        return False
    try:
        return all(os.lstat(os.path.join(top, name)).st_size == size for name, size in manifest.items())
    except OSError:
        return False
