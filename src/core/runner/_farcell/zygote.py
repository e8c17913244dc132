"""The zygote: a process that has imported all that a kernel needs, and becomes one by forking. It runs no cell and never blocks on anybody."""

import _socket
import fcntl
import gc
import os
import select
import signal
import sys
import time

# All that a kernel needs, so that a fork imports nothing.
from . import asker, detach, files, interpreter, osdep, pool, preload, ready, rehearsal, strict, supervisor, title
from .fault import Fault

LOCK_FD, LISTENER_FD = 3, 4
CHECK_SECONDS = 3.0
BEGIN_SECONDS = 120  # an import that hangs must not keep a zygote about that serves nobody


class Zygote(object):
    """Listens, forks, and looks from time to time whether it is still wanted."""

    def __init__(self, directory, settings):
        # type: (str, dict) -> None
        self._directory, self._base = directory, os.path.dirname(directory)
        self._settings = settings
        self._identity = _identity(self._path("sock"))
        held = os.fstat(LOCK_FD)
        self._home = held.st_dev, held.st_ino
        self._base_fd = _hold(self._base)
        self._idle_seconds = settings["idle_s"]
        self._handed, self._argv = _handed_environ(), sys.argv[:]
        self._added = []  # type: list
        self._environ = None  # type: object
        self._watched = []  # type: list
        self._installed = []  # type: list
        self._title = None  # type: object
        self._arguments = []  # type: list
        self._listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fileno=LISTENER_FD)
        self._listener.setblocking(False)
        self._askers = {}  # type: dict
        self._poll = select.poll()
        self._pool = pool.Pool(directory, self._poll)

    def prepare(self):
        """Import, and get ready to fork; with a module that cannot be had, begin anew without it."""
        pool.clear(self._directory)
        signal.alarm(BEGIN_SECONDS)
        dispositions = osdep.dispositions()
        folders = preload.package_folders()
        before = set(sys.modules)
        self._installed = _stamps(folders)
        trouble = preload.run(self._settings["preload"])
        if trouble is not None:
            self._settings["preload"].remove(trouble[0])
            self._settings["notes"].append("preload of %s failed: %s" % trouble)
            self._begin_anew()
        osdep.restore_dispositions(dispositions)
        self._watched = folders + preload.loose_files(before, folders)
        self._installed += _stamps(self._watched[len(folders):])
        signal.alarm(0)
        self._title = title.Title()
        self._arguments = getattr(sys, "orig_argv", [""])  # 3.10
        self._arguments[-3:] = [""]
        self._rehearse()
        # By Python itself where the locale is C, or by a preloaded module: they would be there in any kernel of this kind.
        self._added = [osdep.MARK] + [name for name in os.environ if os.fsencode(name) not in self._handed]
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever ends from here on is reaped at once, and nobody by us
        osdep.reap_ended()
        own = os.getpid()
        signal.signal(signal.SIGTERM, lambda _number, _frame: _leave(own))
        files.atomic_write(self._path("zygote.json"), files.to_json(
            {"v": 1, "pid": own, "start_time": osdep.proc_start_time(own), "boot_id": osdep.boot_id()}))
        files.remove(self._path("begun"))
        gc.collect()
        freeze = getattr(gc, "freeze", None)  # 3.7
        if freeze is not None:
            freeze()

    def _rehearse(self):
        osdep.libc()
        interpreter.clean_path()
        try:
            rehearsal.run(self._path("rehearsal"))
        except Exception:  # pylint: disable=broad-except
            _report()  # its forks will be slower, no more
        interpreter.make_beforehand()

    def serve(self):
        """Fork for everyone who comes, until nobody has come for long or the directory is gone."""
        self._poll.register(LISTENER_FD, select.POLLIN)
        pause = min(CHECK_SECONDS, self._idle_seconds)
        until = time.monotonic() + self._idle_seconds
        try:
            while self._is_there():
                spoken = self._poll.poll(self._pool.pause(pause) * 1000)
                now = time.monotonic()
                asked = [fd for fd, _events in spoken if not self._pool.holds(fd)]
                for fd, _events in spoken:
                    if self._pool.holds(fd):  # first, so that who is ready can be given out
                        self._pool.hear(fd)
                for fd in asked:
                    self._serve(fd)
                if not asked and self._pool.is_due():
                    self._refill()
                for fd in [fd for fd, whose in self._askers.items() if now > whose.until]:
                    self._dismiss(fd)
                if asked:
                    until = now + self._idle_seconds
                elif now >= until:
                    break
        except _Leave:
            pass
        self._pool.close()
        self._remove()

    def _serve(self, fd):
        if fd != LISTENER_FD:
            if self._hear(self._askers[fd]):
                self._dismiss(fd)
        elif _stamps(self._watched) != self._installed:
            self._begin_anew()
        else:
            self._accept()

    def _accept(self):
        try:
            fd, _address = self._listener._accept()
        except BlockingIOError:
            return  # it has gone again
        except OSError:
            time.sleep(0.01)  # no descriptor is free; it will still be there
            return
        whose = asker.Asker(fd)
        if self._hear(whose):
            whose.close()
        else:
            self._askers[fd] = whose
            self._poll.register(fd, select.POLLIN)

    def _dismiss(self, fd):
        self._poll.unregister(fd)
        self._askers.pop(fd).close()

    def _hear(self, whose):
        """Fork once a request is there: as a rule at once, and else nobody waits for whoever is slow to send it. True if this is over."""
        try:
            if whose.is_ours():
                request = whose.look()
                if request is None:
                    return False
                self._fork(whose, request)
        except Exception:  # pylint: disable=broad-except
            _report()  # whoever is at the other end goes another way
        return True

    def _fork(self, whose, request):
        if request["v"] != 1 or request["directory"] != self._base + "/" + request["spec"]["id"]:
            raise ValueError("not a kernel of this base")
        # What is done here need not be done in memory that a child has to copy first, and lasts for the next one.
        self._adopt_environment(request["environ"])
        whose.link.send(b"+")  # it fails where he has given us up, and goes another way
        self._pool.want(request["spec"].get("pool"))
        if self._pool.take(request, whose.link, whose.descriptor, self._environ, self._settings["notes"]):
            return
        if os.fork() == 0:
            self._become(whose, request)

    def _become(self, whose, request):
        """In the child. It does not return."""
        directory, spec = request["directory"], request["spec"]
        try:
            self._title.become(spec["id"], directory)
            self._leave_to_itself(whose)
            self._arguments[-1] = directory
            spec["env"] = {}  # it is in the environment
            os.umask(request["umask"])
            if self._settings["notes"]:
                spec["note"] = "; ".join(self._settings["notes"])
            try:
                detach.enter(spec.get("cwd"), request["home"])
            except Fault as fault:
                detach.complain(whose.link.fileno(), fault)
                return
            supervisor.main_forked(directory, spec, whose.link.detach(), whose.descriptor)
        except BaseException:  # pylint: disable=broad-except
            _report()
        finally:
            os._exit(1)

    def _leave_to_itself(self, whose=None):
        """In a child: a session of its own, and nothing of the zygote's open but what is for it."""
        os.setsid()
        os.close(LISTENER_FD)
        os.close(LOCK_FD)
        for fd, other in self._askers.items():
            if other is not whose:
                os.close(fd)
        self._pool.leave()

    def _refill(self):
        """One more for the pool."""
        link = self._pool.fork(self._environ)
        if link is None:
            return
        try:
            self._leave_to_itself()
            ready.enter(self._directory, link, ready.Person(self._title, self._arguments, self._environ))
        except BaseException:  # pylint: disable=broad-except
            _report()
        finally:
            os._exit(1)

    def _adopt_environment(self, wanted):
        """Have that of a request, but for its mark, and nothing of an earlier one's. Most are the same, so we keep it for the next."""
        wanted.pop(osdep.MARK, None)
        if wanted == self._environ:
            return
        for name in list(os.environb):
            text = name.decode("utf-8", "surrogateescape")
            if text not in wanted and text not in self._added:
                del os.environb[name]
        for name, value in wanted.items():
            os.environb[name.encode("utf-8", "surrogateescape")] = value.encode("utf-8", "surrogateescape")
        self._environ = wanted

    def _is_there(self):
        """Whether anybody can find us: our socket is where it was, and so is the directory around it."""
        return self._identity is not None and _identity(self._path("sock")) == self._identity

    def _path(self, name):
        return os.path.join(self._directory, name)

    def _remove(self):
        """Our directory, if it is still ours: as long as we hold its lock nobody begins in it what we take away."""
        try:
            if _identity(self._directory) == self._home:
                files.remove_tree(self._directory)
        except OSError:
            pass

    def _begin_anew(self):
        """Leave all to a new zygote; it gets the lock and the socket, at which those who wait go on waiting."""
        files.remove(self._path("zygote.json"))
        files.atomic_write(self._path("begun"), b"")
        os.utime(self._path("sock"))  # by its age they know how long it may still import
        fds = [files.filled_pipe(files.to_json(self._settings)), 2, 2, LOCK_FD, LISTENER_FD]
        detach.start([detach.python_path()] + self._argv, self._handed, "/", fds)
        os._exit(0)


# -- the beginning -----------------------------------------------------------------------------------------------------

class _Leave(BaseException):
    """SIGTERM."""


def _leave(zygote):
    if os.getpid() != zygote:
        os._exit(1)  # a child that has hardly begun, hit by a signal to our group
    raise _Leave()


def _handed_environ():
    """The environment as it was handed over."""
    with open("/proc/self/environ", "rb") as file:
        pairs = [entry.partition(b"=") for entry in file.read().split(b"\0")]
    return {name: value for name, sign, value in pairs if sign}


def _identity(path):
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino


def _hold(base):
    """Share a lock on the base directory for life, and for the lives of all kernels: farcell_kernel.py says why."""
    fd = os.open(base, files.DIR_FLAGS)
    files.try_lock(fd, fcntl.LOCK_SH)
    return fd


def _stamps(paths):
    """What changes when modules are installed, removed or edited: a new kernel has to find them as they are."""
    stamps = []
    for path in paths:
        # Asked first: an exception for what is not there would cost more than all the rest, for every kernel.
        try:
            info = os.stat(path) if os.access(path, os.F_OK) else None
        except OSError:
            info = None
        stamps.append(info and (info.st_dev, info.st_ino, info.st_mtime_ns))
    return stamps


def _report():
    import traceback
    try:
        os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
    except OSError:
        pass


def main(directory):
    # type: (str) -> None
    """The settings are on fd 0, the lock of the directory and the listening socket beside the standard descriptors."""
    with open(os.dup(0), "rb") as source:
        settings = strict.decode(source.read())
    for fd in (LOCK_FD, LISTENER_FD):
        os.set_inheritable(fd, False)
    osdep.null_on((0, 1))
    os.chdir("/")
    zygote = Zygote(directory, settings)
    zygote.prepare()
    zygote.serve()
    os._exit(0)
