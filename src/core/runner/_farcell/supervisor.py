"""The supervisor of a kernel: its life from the lock to the last line of its log. It never runs user code."""

import _signal
import errno
import gc
import os
import signal
import sys
import time

from . import files, osdep, reply, shared_lane
from .cell import VERSION
from .child import Interpreter
from .conductor import Conductor
from .controls import Controls
from .file_port import FilePort
from .log import Log
from .loop import Loop
from .pipe_port import PipePort

LOG = "runner.log"
_LOCK_SECONDS = 2.0
_READY_SECONDS = 1e6  # poll(2) takes no more than the double
_IGNORED = {getattr(signal, name): _signal.SIG_IGN for name in ("SIGINT", "SIGHUP", "SIGPIPE", "SIGQUIT", "SIGTTIN", "SIGTTOU", "SIGTSTP")}


class Supervisor(Controls):
    """One kernel, seen from outside: it is started, controlled, asked, and ends."""

    def __init__(self, spec, port, loop, log):
        # type: (dict, object, Loop, object) -> None
        self._spec = spec
        self._port = port
        self._loop = loop
        self._log = log
        self._ended = ""  # why the loop is to be left
        self._parent = os.getppid()
        self._read_spec()
        self._record = None  # type: object
        self._conductor = Conductor(spec, port, loop, log, self.write_record, self._touch)

    def _read_spec(self):
        idle = self._spec.get("idle_ms")
        self._idle_seconds = idle / 1000.0 if idle is not None else None

    def start(self, first):
        # type: (object) -> str
        """Begin to serve, with a first interpreter that is there already; says what is wrong where that cannot be."""
        self._port.open(self._loop, self)
        self._conductor.generations.prepared = first
        if not self._conductor.fork():
            return self._conductor.generations.trouble
        self._touch()
        return ""

    def wait_for(self, fd):
        # type: (int) -> bool
        """Stand ready until this descriptor has something; False where anything else happens before: an end, or a signal."""
        return self._loop.wait_for(fd, _READY_SECONDS)

    def become(self, spec, directory):
        # type: (dict, str) -> None
        """Be the kernel of this spec from here on; so far it had none. What it has in files is in `directory` by now."""
        self._spec.update(spec)
        self._read_spec()
        self._port.moved(directory)
        self._log.moved(os.path.join(directory, LOG))
        self._conductor.read_spec()
        self._log("taken from the pool of a zygote")
        self.write_record()
        self._touch()

    def serve(self):
        # type: () -> None
        """Serve until something ends it; then nothing of ours is left behind."""
        # Only now, as it takes a moment, and before the first cell can make orphans.
        if not osdep.set_subreaper():
            self._log("no subreaper: orphans are found by their mark only")
        if self._port.has_host:
            # The end of stdin does not come where another child of the host holds a copy of our pipe's other end.
            osdep.set_pdeathsig(signal.SIGUSR1)
        try:
            self._conductor.child_ended()  # perhaps before we could hear of it
            self._port.look()
            while not self._ended:
                self._conductor.advance()
                if not self._ended:
                    self._loop.turn()
        except BaseException:
            # A defect of ours. Who waits is told, and nothing keeps running unsupervised.
            self._log.failure("crashed")
            self._ended = self._ended or "crashed"
            self._quietly(self._abandon_crashed)
        self._quietly(self._end_interpreter)
        self._log("ended: %s", self._ended)
        self._quietly(lambda: self._port.close(self._ended))

    def rehearse(self, done, end):
        # type: (object, float) -> None
        """Serve until done() says so, and no longer than to that moment of the monotonic clock."""
        self._loop.at("rehearsed", end, lambda: None)
        self._port.look()
        while not done() and time.monotonic() < end:
            self._conductor.advance()
            self._loop.turn()

    def _abandon_crashed(self):
        self._end_interpreter()
        if self._conductor.running is not None:
            self._conductor.abandon(reply.error(
                "protocol", "SupervisorFailed", "the supervisor failed while the cell ran", hint="the kernel's log tells where"))

    def _end_interpreter(self):
        self._conductor.closing = True
        if self._conductor.generations.current is not None:
            self._conductor.end_generation()
        else:
            self._conductor.generations.kill_tree()

    def _quietly(self, function):
        try:
            function()
        except Exception:
            self._log.failure("while ending")

    # -- what others may know and do -----------------------------------------------------------------------------------

    def record(self):
        # type: () -> dict
        """The content of kernel.json."""
        if self._record is None:
            spec = self._spec
            self._record = {
                "v": VERSION, "id": spec["id"], "key": spec.get("key"), "dir": self._port.directory, "base": spec.get("base"),
                "pid": os.getpid(), "start_time": osdep.proc_start_time(os.getpid()), "boot_id": osdep.boot_id(),
                "generation": 0, "interpreter_pid": None, "language": "python",
                "python": sys.executable or os.path.realpath("/proc/self/exe"), "version": "%d.%d.%d" % sys.version_info[:3],
                "owner_hash": spec.get("owner_hash"), "session": spec.get("session"), "created": time.time(),
                "runner": spec.get("runner"), "idle_ms": spec.get("idle_ms"), "wake": self._port.wake}
            if self._port.directory is not None:
                self._record["lane"] = self._port.lane.describe() if self._port.lane is not None else None
        generations = self._conductor.generations
        self._record["generation"] = generations.number
        self._record["interpreter_pid"] = generations.current.pid if generations.current is not None else None
        return self._record

    def write_record(self):
        # type: () -> None
        if self._spec["id"]:
            self._port.write_record(self.record())

    def facts(self):
        # type: () -> dict
        """The answer to a probe."""
        cell = self._conductor.running
        running = None
        if cell is not None:
            running = {"number": cell.number, "id": cell.id, "since_ms": round((time.monotonic() - cell.started) * 1000, 3)}
        return {"alive": True, "kernel": self.record(), "running": running, "waiting": self._port.waiting(), "replies": []}

    def busy(self):
        # type: () -> bool
        """Whether a cell is under way."""
        return self._conductor.busy()

    def refuse(self, cell):
        # type: (object) -> None
        """Answer a request that will not be run, without waiting for its turn."""
        self._conductor.refuse(cell, reply.error("protocol", "Refused", cell.refusal))

    def hand_over(self, cell_id, seq):
        # type: (str, int) -> object
        """Look after a cell that the host has put into the lane; its request if nobody has taken it."""
        return self._conductor.hand_over(cell_id, seq)

    def find_out(self):
        # type: () -> bool
        """Look after the cell that was last put into the lane; False where it has to be asked after again."""
        return self._conductor.find_out()

    def awaits_answers(self):
        # type: () -> bool
        """Whether tools have been called that have not answered."""
        return self._conductor.calls.pending()

    def answer_call(self, number, cell_id, call, text):
        # type: (int, str, int, bytes) -> bool
        """The answer to a call of a tool, as JSON; False where nobody waits for it."""
        return self._conductor.calls.answer(number, cell_id, call, text)

    def _stop(self, why):
        """In good order: every cell gets its reply first."""
        if self._ended:
            return
        self._ended = why
        self._end_interpreter()
        if self._conductor.running is not None:
            self._conductor.abandon(reply.error("signal", "KernelStopped", "the kernel was stopped while the cell ran"))
        self._port.look()
        cell = self._port.take()
        while cell is not None:
            self._conductor.refuse(cell, reply.error("signal", "KernelStopped", "the kernel was stopped before the cell began"))
            cell = self._port.take()

    # -- reasons to end ------------------------------------------------------------------------------------------------

    def terminate(self):
        # type: () -> None
        """SIGTERM."""
        self._stop("terminated")

    def parent_ended(self):
        # type: () -> None
        """The thread that started us is gone, and perhaps its process: that is what getppid tells."""
        if os.getppid() != self._parent:
            self.gone("host gone")

    def child_ended(self):
        # type: () -> None
        """SIGCHLD."""
        self._conductor.child_ended()

    def gone(self, why):
        # type: (str) -> None
        """Those whom we serve, or the place where we do, are no more."""
        self._ended = self._ended or why

    def _touch(self):
        """The idle clock begins anew."""
        if self._idle_seconds is not None:
            self._loop.at("idle", time.monotonic() + self._idle_seconds, self._idled)

    def _idled(self):
        self._port.look()  # a request may have come this very moment
        lane = self._port.lane
        rested = lane is None or time.monotonic() - lane.last_end() >= self._idle_seconds
        if not rested and not self._conductor.busy():
            self._loop.at("idle", lane.last_end() + self._idle_seconds, self._idled)
        elif not self._conductor.busy() and not self._port.waiting():
            self.gone("idle")
        else:
            self._touch()


# -- beginnings --------------------------------------------------------------------------------------------------------

def main_detached(directory):
    # type: (str) -> None
    """A kernel in a directory: the spec is on fd 0, one line on fd 1 says whether it stands."""
    try:
        spec = _read_spec()
        hold(directory)
        started = begin(spec, lambda log: FilePort(directory, spec, log), _log_in(directory))
        _check_record(directory)
    except Exception as error:
        _refuse(1, error)
    os.write(1, _ready(started))
    osdep.null_on((0, 1, 2))
    _close_start_lock(directory)
    started.serve()
    os._exit(0)


def main_forked(directory, spec, answer_fd, start_lock):
    # type: (str, dict, int, int) -> None
    """The same in a fork of a zygote, which has nothing but our own files open, and /dev/null as its standard descriptors."""
    def make():
        hold(directory)
        # As early as can be: what either of us writes to from here on is not copied for the other one, too.
        lane = shared_lane.make(directory)
        first = first_interpreter(spec, lane)
        return begin(spec, lambda log: FilePort(directory, spec, log, lane), _log_in(directory), first, "forked from a zygote")
    _main_warm(directory, answer_fd, start_lock, make)


def stand_ready(folder, become):
    # type: (str, object) -> tuple
    """A supervisor and its interpreter that are nobody's kernel yet, with all that they need in `folder`; `become` is for the interpreter."""
    spec = {"id": ""}
    settle(spec)
    lane = shared_lane.make(folder)
    first = Interpreter.start(spec, "", 1, lane, become)
    return begin(spec, lambda log: FilePort(folder, spec, log, lane), _log_in(folder), first, "stands ready"), first


def main_taken(started, folder, directory, spec, answer_fd, start_lock):
    # type: (Supervisor, str, str, dict, int, int) -> None
    """The same for one that stood ready in `folder`."""
    def make():
        # Its files and its lock come with it. It replaces the directory that our caller has made only if nothing else is in that.
        try:
            os.rename(os.path.join(directory, files.START_LOCK), os.path.join(folder, files.START_LOCK))
            os.rename(folder, directory)
        except OSError:
            files.remove_tree(folder)
            raise
        started.become(spec, directory)
        return started
    _main_warm(directory, answer_fd, start_lock, make)


def _main_warm(directory, answer_fd, start_lock, make):
    try:
        started = make()
        _check_record(directory)
    except Exception as error:
        _refuse(answer_fd, error)
    try:
        os.write(answer_fd, _ready(started))
    except OSError:
        pass  # he has gone, and finds us by our record
    os.close(answer_fd)
    os.close(start_lock)
    os.dup2(0, 2)
    started.serve()
    os._exit(0)


def hold(directory):
    # type: (str) -> None
    """Take its lock, for life: there is nobody to close it."""
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    if not osdep.lock_exclusive(lock, _LOCK_SECONDS):
        raise OSError("another process holds the lock of %s" % directory)


def _log_in(directory):
    return Log(os.path.join(directory, LOG))


def _check_record(directory):
    if not os.path.exists(os.path.join(directory, "kernel.json")):
        raise OSError(errno.ENOSPC, "no room for kernel.json", directory)


def _ready(started):
    return reply.encode({"ok": True, "kernel": started.record()}) + b"\n"


def _refuse(fd, error):
    os.write(fd, _refusal(error))
    os._exit(0)  # the interpreter, if there is one, ends with us


def main_pipes(header, stdin_fd, stdout_fd):
    # type: (dict, int, int) -> None
    """A kernel on two pipes, for the host that started us."""
    nonce = header["nonce"].encode("ascii")
    spec = dict(header["spec"], key=header.get("key"), base=header.get("base"), runner=header.get("runner"), gather=header.get("gather"))
    # Numbers of their own, so that 0 and 1 can be what every program expects there.
    stdin_fd, stdout_fd = os.dup(stdin_fd), os.dup(stdout_fd)
    osdep.null_on((0, 1))
    osdep.new_session()
    log = Log()
    port = PipePort(spec, log, stdin_fd, stdout_fd)
    try:
        started = begin(spec, lambda _log: port, log)
    except Exception as error:
        os.set_blocking(stdout_fd, True)
        body = _refusal(error)[:-1]
        os.write(stdout_fd, b"%s json %d\n%s\n" % (nonce, len(body), body))
        os._exit(0)
    body = reply.encode({"ok": True, "kernel": started.record(), "reused": False, "previous": None, "lane": port.lane.describe() if port.lane is not None else None})
    port.say(b"%s json %d\n%s\n" % (nonce, len(body), body))
    started.serve()
    os._exit(0)


def begin(spec, make_port, log, first=None, how="started"):
    # type: (dict, object, Log, object, str) -> Supervisor
    """A supervisor that stands; OSError says why not. `first` is its interpreter if that was forked before."""
    signal.alarm(0)  # the deadline of the command that brought us is not ours
    osdep.restore_dispositions(_IGNORED)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    port = make_port(log)
    if first is None:
        gc.collect()
        _freeze()  # shared with every interpreter, as long as nobody writes to it
        first = first_interpreter(spec, port.lane)
    loop = Loop()
    kernel = Supervisor(spec, port, loop, log)
    loop.catch_signals({signal.SIGCHLD: kernel.child_ended, signal.SIGTERM: kernel.terminate, signal.SIGUSR1: kernel.parent_ended})
    log("%s, pid %d", how, os.getpid())
    trouble = kernel.start(first)
    if trouble:
        raise OSError(trouble)
    _freeze()
    os.chdir("/")  # keep no file system busy
    return kernel


def first_interpreter(spec, lane=None):
    # type: (dict, object) -> Interpreter
    """The first one of a kernel; what it takes over from this process is kept for those that follow."""
    settle(spec)
    try:
        return Interpreter.start(spec, spec["id"], 1, lane)
    except OSError as error:
        raise OSError(error.errno, "cannot start an interpreter: %s" % (error.strerror or str(error)).lower())


def settle(spec):
    # type: (dict) -> None
    """Keep where this process stands for its interpreters."""
    spec["cwd"] = _here()
    spec["umask"] = os.umask(0o077)


def _freeze():
    freeze = getattr(gc, "freeze", None)  # 3.7
    if freeze is not None:
        freeze()


def _here():
    try:
        return os.getcwd()
    except OSError:
        return "/"


def _read_spec():
    data = b""
    while True:
        piece = os.read(0, 65536)
        if not piece:
            break
        data += piece
    spec = reply.decode(data)
    if not isinstance(spec, dict) or not isinstance(spec.get("id"), str):
        raise ValueError("the spec is no spec")
    return spec


def _close_start_lock(directory):
    """Whoever starts kernels takes part in a lock until they stand; ours came as a descriptor."""
    try:
        held = os.fstat(3)
        lock = os.stat(os.path.join(os.path.dirname(directory), files.START_LOCK))
        if (held.st_dev, held.st_ino) == (lock.st_dev, lock.st_ino):
            os.close(3)
    except OSError:
        pass


def _words(error):
    if isinstance(error, OSError) and error.strerror:
        return "%s: %s" % (error.strerror.lower(), error.filename) if error.filename else error.strerror.lower()
    return str(error) or type(error).__name__


def _refusal(error):
    number = error.errno if isinstance(error, OSError) else None
    code = "disk-full" if number in osdep.NO_ROOM else "no-process" if number == errno.EAGAIN else "spawn-failed"
    return reply.encode({"ok": False, "error": {"code": code, "message": _words(error), "hint": None}}) + b"\n"
