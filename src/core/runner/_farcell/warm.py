"""The quick way to a kernel: have a zygote fork it. Whatever goes wrong on it, there is the other way, and it is taken soon."""

import os
import select
import struct
import time

from . import detach, files, kinds, osdep, place, title
from .fault import Fault, reason

# From the request to the moment when a child of the zygote has taken it: some forks for others, on a busy machine.
TAKEN_SECONDS = 1.5
# The same for a zygote that still imports. Longer imports go on, and nobody waits for them.
IMPORT_SECONDS = 6.0
# A zygote that nobody has asked for so long ends.
IDLE_SECONDS = 600.0
# After one that came to nothing (it crashed, or something that it needs is missing) no other is tried for so long.
FAILED_SECONDS = 600.0
_BEGUN_SECONDS = 0.5  # another command has the lock, and is about to listen
_BACKLOG = 512
_PATH_MAX = 107  # of a socket's address
_LENGTH = struct.Struct(">I")


class _Cold(Exception):
    """Why this kernel is not forked from a zygote; empty where that goes without saying."""


def start(base, runner, directory, start_lock, spec, environ, bound):
    """(True, the supervisor's line or None where it did not come in time), or (False, why) where the kernel has to be started the other way."""
    end = time.monotonic() + bound
    link = None
    try:
        zygote = Zygote(base, runner, spec, environ)
        request = files.to_json({"v": 1, "directory": directory, "spec": spec, "umask": _umask(), "home": os.environ.get("HOME"), "environ": _text(environ)})
        link = zygote.connect()
        patience = min(zygote.patience(), bound / 2)
        return True, _ask(zygote, link, directory, start_lock, request, patience, end)
    except _Cold as cold:
        return False, str(cold)
    except (OSError, Fault, ImportError) as error:
        return False, reason(error)
    finally:
        if link is not None:
            link.close()


def _ask(zygote, link, directory, start_lock, request, patience, end):
    """The line of a supervisor. With an exception it is certain that none will come."""
    link.settimeout(patience)
    try:
        _send(link, start_lock, request)
        taken = link.recv(1)
    except ConnectionError:
        taken = b""
    except _sockets().timeout:
        # From here on the zygote cannot take it any more, for it says so first. If it has, we cannot hear the rest.
        link.shutdown(_sockets().SHUT_RD)
        if not link.recv(1):
            raise _Cold(zygote.give_up())
        return _line_from_record(link, directory, end)
    if not taken:
        raise _Cold("the zygote ended")
    return _line(link, directory, end)


def _line(link, directory, end):
    line = b""
    while not line.endswith(b"\n"):
        left = end - time.monotonic()
        if left <= 0:
            return None
        link.settimeout(left)
        try:
            piece = link.recv(1 << 16)
        except _sockets().timeout:
            return None
        except ConnectionError:
            piece = b""
        if not piece:
            _clear_up(directory)
            raise _Cold("what the zygote had forked ended")
        line += piece
    return line


def _line_from_record(link, directory, end):
    """What a supervisor says that we cannot hear, from what it writes."""
    ended = select.poll()
    ended.register(link, 0)  # for a hang-up alone
    while time.monotonic() < end:
        is_over = bool(ended.poll(5))  # asked first: what was written before the end is seen
        record = files.read_json(os.path.join(directory, "kernel.json"))
        if record is not None and files.is_locked(directory):
            return files.to_json({"ok": True, "kernel": record})
        if is_over:
            _clear_up(directory)
            raise _Cold("what the zygote had forked ended")
    return None


def _clear_up(directory):
    """Nothing of a start that failed is left, neither processes nor what they wrote."""
    osdep.kill_marked(os.path.basename(directory))
    for name in os.listdir(directory):
        if name != files.START_LOCK:
            path = os.path.join(directory, name)
            files.remove_tree(path)


def _send(link, descriptor, data):
    sockets = _sockets()
    data = _LENGTH.pack(len(data)) + data
    sent = link.sendmsg([data], [(sockets.SOL_SOCKET, sockets.SCM_RIGHTS, struct.pack("i", descriptor))])
    if sent < len(data):
        link.sendall(data[sent:])


def _sockets():
    # The C part alone: importing `socket` takes as long as several warm spawns.
    import _socket
    return _socket


def _bind(listener, path):
    before = os.umask(0o077)
    try:
        listener.bind(path)
    finally:
        os.umask(before)


def _umask():
    value = os.umask(0o077)
    os.umask(value)
    return value


def _text(environ):
    return {name.decode("utf-8", "surrogateescape"): value.decode("utf-8", "surrogateescape") for name, value in environ.items()}


class Zygote(object):
    """The zygote of one kind, as those see it who want a kernel of it."""

    def __init__(self, base, runner, spec, environ):
        if not osdep.LINUX or os.environ.get(osdep.MARK):
            # Inside of a kernel: what is started there is to end with it, which only a descendant does.
            raise _Cold("")
        self._base, self._runner = base, runner
        self._preload = spec.get("preload") or []
        # What is asked for by name may be meant for the modules that are imported.
        extra = spec.get("env") or {} if self._preload else {}
        self._environ = kinds.own_environment(environ, [os.fsencode(name) for name in extra])
        self._kind = kinds.kind(detach.python_path(), runner, self._preload, self._environ)
        self._directory = os.path.join(base, "z-" + self._kind)
        self._socket = self._path("sock")
        if len(os.fsencode(self._socket)) > _PATH_MAX:
            raise _Cold("the path of its socket would be too long")
        self._is_ready = False

    def _path(self, name):
        return os.path.join(self._directory, name)

    def connect(self):
        """A socket that leads to the zygote, which is started where there is none."""
        sockets = _sockets()
        end = time.monotonic() + _BEGUN_SECONDS
        while True:
            self._is_ready = os.path.exists(self._path("zygote.json"))
            link = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
            try:
                link.settimeout(TAKEN_SECONDS)
                link.connect(self._socket)
                return link
            except (FileNotFoundError, ConnectionRefusedError):
                link.close()
            except OSError:
                link.close()
                raise
            if not self._begin():
                if time.monotonic() >= end:
                    raise _Cold("another command has been starting the zygote, and it does not listen")
                time.sleep(0.002)

    def patience(self):
        """How long it may take until a request is taken; _Cold where it would be too long."""
        if self._is_ready:
            return TAKEN_SECONDS
        left = IMPORT_SECONDS - max(0.0, time.time() - os.stat(self._socket).st_mtime)
        if left <= 0:
            raise _Cold("the zygote still imports")
        return left

    def give_up(self):
        """It did not take a request in time: end it if it should have been able to, for it would hold up the next one, too. Gives what to say."""
        record = files.read_json(self._path("zygote.json")) if self._is_ready else None
        if record and record.get("boot_id") == osdep.boot_id() and isinstance(record.get("pid"), int):
            osdep.kill_exact(record["pid"], record.get("start_time"), 9)
            return "the zygote did not answer, and was killed"
        return "the zygote did not answer in time"

    def _begin(self):
        """Start it, unless somebody else does or has done; whether we did."""
        try:
            os.mkdir(self._directory, 0o700)
        except FileExistsError:
            place.check_own(self._directory)
        lock = os.open(self._directory, files.DIR_FLAGS)
        try:
            if not files.try_lock(lock) or not _is_same(lock, self._directory):
                return False
            if not place.is_complete(self._base, self._runner) or _inside_a_kernel():
                raise _Cold("")
            self._check_last_time()
            for name in ("sock", "zygote.json"):
                files.remove(self._path(name))
            self._launch(lock)
            return True
        finally:
            os.close(lock)

    def _check_last_time(self):
        """There is a file `begun` from the launch of a zygote until it is ready; with no zygote alive, it tells of one that never was."""
        try:
            age = time.time() - os.lstat(self._path("begun")).st_mtime
        except OSError:
            return
        if 0 <= age < FAILED_SECONDS:
            raise _Cold("a zygote ended before it was ready, %.0f s ago" % age)

    def _launch(self, lock):
        sockets = _sockets()
        settings = files.to_json({"preload": self._preload, "notes": [], "idle_s": IDLE_SECONDS})
        listener = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        try:
            files.atomic_write(self._path("begun"), b"")
            _bind(listener, self._socket)
            # From now on others connect, and wait for it as we do.
            listener.listen(_BACKLOG)
            errors = os.open(self._path("log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            reader = files.filled_pipe(settings)
            try:
                program = [detach.python_path(), detach.program_path(self._base, self._runner), title.OPTION, self._directory, title.FILLER]
                environ = dict(self._environ)
                environ[osdep.MARK.encode("ascii")] = title.SLOT.encode("ascii")
                detach.start(program, environ, "/", [reader, errors, errors, lock, listener.fileno()])
            finally:
                os.close(errors)
                os.close(reader)
        finally:
            listener.close()


def _is_same(fd, path):
    try:
        there, held = os.lstat(path), os.fstat(fd)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)


def _inside_a_kernel():
    """Whether an ancestor of ours belongs to a kernel: all that we start would end with that."""
    pid = os.getppid()
    for _ in range(1000):
        if pid <= 1:
            return False
        if osdep.mark_of(pid).startswith("k-"):
            return True
        pid = osdep.parent_of(pid)
    return False
