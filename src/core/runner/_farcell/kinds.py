"""The kind of a zygote: a digest of all that a process takes over from its start and cannot change later."""

import os

from . import files

# What Python and the libraries under it read once, when they start.
_NAMES = frozenset((b"LANG", b"TZ", b"TZDIR", b"HOME", b"PATH", b"VIRTUAL_ENV", b"GLIBC_TUNABLES"))
_PREFIXES = (b"PYTHON", b"LD_", b"DYLD_", b"MALLOC_", b"LC_", b"OMP_", b"OPENBLAS_", b"MKL_")
# Who may do what, where it runs, and which limits of others it lives under: a kernel belongs where its command is.
_STATUS = (b"Uid:", b"Gid:", b"Groups:", b"CapInh:", b"CapPrm:", b"CapEff:", b"CapBnd:", b"CapAmb:", b"NoNewPrivs:", b"Seccomp:",
           b"Seccomp_filters:", b"Cpus_allowed:", b"Mems_allowed:")
_SPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
_FILES = ("cgroup", "attr/current", "oom_score_adj")
PRELOAD_MAX = 64
POOL_MAX = 32
READY_PREFIX = "r-"  # of the directory of a ready kernel, in its zygote's

_surroundings = None  # type: object
_last = None  # type: object


def preload_problem(names):
    """Why a list of names cannot be imported whatever the machine has, or None."""
    if not isinstance(names, list) or len(names) > PRELOAD_MAX:
        return "preload must be a list of at most %d names of modules" % PRELOAD_MAX
    for name in names:
        if not isinstance(name, str) or len(name) > 200 or not all(part.isidentifier() for part in name.split(".")):
            return "preload has a name that no module can have: %.100r" % (name,)
    return None


def pool_problem(number):
    """Why a pool cannot be of this size, or None."""
    if number is None or (type(number) is int and 0 <= number <= POOL_MAX):
        return None
    return "pool must be a whole number from 0 to %d, or null" % POOL_MAX


def own_environment(environ, names):
    # type: (dict, list) -> dict
    """The part of an environment that a zygote is started with; `names` are of more variables that its preloaded modules are to see."""
    names = _NAMES.union(names)
    return {name: value for name, value in environ.items() if name in names or name.startswith(_PREFIXES)}


def kind(python, runner, preload, environ):
    # type: (str, str, list, dict) -> str
    """16 hex digits. `environ` is what own_environment() gives."""
    global _surroundings, _last
    info = os.stat(python)
    asked = (python, info.st_size, info.st_mtime_ns, info.st_ino, runner, list(preload), environ)
    if _last is None or _last[0] != asked:
        if _surroundings is None:  # nothing in it changes while a process lives
            _surroundings = _look_around()
        facts = [1, list(asked[:-1]), sorted((name.hex(), value.hex()) for name, value in environ.items()), _surroundings]
        _last = asked, _sha256(files.to_json(facts)).hexdigest()[:16]
    return _last[1]


def _look_around():
    status = _read("status").split(b"\n")
    found = [line.decode("ascii", "replace") for line in status if line.startswith(_STATUS)]
    found.extend(_read(name).decode("utf-8", "replace") for name in _FILES)
    for name in _SPACES:
        try:
            found.append(os.readlink("/proc/self/ns/" + name))
        except OSError:
            found.append("")
    root = os.stat("/")
    return [found, root.st_dev, root.st_ino, os.getpriority(os.PRIO_PROCESS, 0), _limits()]


def _read(name):
    try:
        with open("/proc/self/" + name, "rb", 0) as file:
            return file.read(1 << 16)
    except OSError:
        return b""


def _limits():
    try:
        import resource
    except ImportError:
        return []
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    return [[name, list(resource.getrlimit(getattr(resource, name)))] for name in names]


def _sha256(data):
    # hashlib itself brings all of OpenSSL along, which takes longer than a warm spawn.
    for name in ("_sha256", "_sha2"):
        try:
            return __import__(name).sha256(data)
        except (ImportError, AttributeError):
            continue
    import hashlib
    return hashlib.sha256(data)
