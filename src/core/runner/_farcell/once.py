"""One cell without a kernel, for machines that can hold none: it runs in the command's own process tree, and nothing is left of it."""

import _signal
import errno
import math
import os
import signal
import site
import sys
import time

from . import cell, child, detach, fault, files, frames, interpreter, launch, loop, osdep, output, reply, streams, supervisor, wire
from .log import Log
from .ports import Port
from .reply import Outcome

NUMBER = 1
_AGAIN = 0.05  # seconds between two alarms once the cell's time is up
_monotonic = time.monotonic  # cells may damage what is in the modules


class OnceCell(cell.Cell):
    """A cell whose interpreter never outlives it, so that there is one thing only to say of its variables."""

    state = property(lambda self: "none", lambda self, value: None)  # type: ignore


class OncePort(Port):
    """Brings one cell to a supervisor, and ends it with that cell's reply."""

    wake = "once"

    def __init__(self, request, host_fd):
        # type: (OnceCell, int) -> None
        self.reply = None  # type: object
        self._request = request  # type: object
        self._host_fd = host_fd

    def open(self, loop_, kernel):
        self._kernel = kernel
        # Nobody could ever stop this cell, or fetch its reply, once its host is gone.
        loop_.watch(self._host_fd, self._host, 0)

    def _host(self, events):
        if events & loop.GONE:
            self._kernel.gone("host gone")

    def waiting(self):
        return 1 if self._request is not None else 0

    def take(self):
        request, self._request = self._request, None
        return request

    def records(self, number):
        return output.RecordFile(None, 0)

    def spill(self, number):
        return ""

    def settle(self, settled, text, spilled):
        self.reply = text
        self._kernel.gone("done")
        return True


def run(call):
    # type: (object) -> tuple
    """The `once` operation: the answer's fields, and the cell's reply as text. A Fault says that it was not run."""
    request, spec, environ = _checked(call)
    _see_packages(environ)
    try:
        detach.enter(launch.absolute(spec.get("cwd")), os.environ.get("HOME"))
    except fault.Fault as wrong:
        raise fault.Fault("bad-request", wrong.message, wrong.hint)
    try:
        port = OncePort(request, call.answer.fd)
        kernel = supervisor.begin(spec, lambda _log: port, Log(), how="runs one cell")
    except OSError as error:
        if error.errno != errno.EAGAIN:
            raise fault.Fault("bad-request", "no interpreter can be started: " + fault.reason(error))
        return {}, Here(request, spec, call).run()
    signal.alarm(max(1, math.ceil(call.end - time.monotonic())))
    kernel.serve()
    if port.reply is None:
        raise fault.HostGone
    return {}, port.reply


def _checked(call):
    if call.stdin is None:
        raise fault.Fault("bad-request", "a cell without a kernel needs a command of its own")
    spec = call.field("spec", dict, required=True)
    if not isinstance(spec.get("id"), str) or not isinstance(spec.get("env") or {}, dict):
        raise fault.Fault("bad-request", "the spec is no spec")
    request = cell.parse(files.to_json(call.request()), NUMBER, time.monotonic(), OnceCell)
    for wrong, why in ((request.refusal, request.refusal), (request.tools is not None, "a cell that runs without a kernel cannot call tools"),
                       (request.reset, "there is no kernel that could be reset")):
        if wrong:
            raise fault.Fault("bad-request", why)
    try:
        return request, spec, launch.environment(spec)
    except fault.Fault as wrong:  # a name that cannot be set
        raise fault.Fault("bad-request", wrong.message)


def _see_packages(environ):
    """What every Python does at its start, and this one was told to leave out: installed packages, and the paths of PYTHONPATH."""
    sys.path[0:0] = [os.path.abspath(path) for path in os.fsdecode(environ.get(b"PYTHONPATH", b"")).split(os.pathsep) if path]
    own = os.getuid() == os.geteuid() and os.getgid() == os.getegid()
    if own and not environ.get(b"PYTHONNOUSERSITE"):
        site.ENABLE_USER_SITE = True
    site.main()


class Here(object):
    """Where not even one process is to be had: the cell runs in this one, and only what it prints is kept apart. If it ends us, nobody answers."""

    def __init__(self, request, spec, call):
        # type: (OnceCell, dict, object) -> None
        self._cell = request
        self._spec = spec
        self._answer = call.answer
        self._end = call.end
        self._timed_out = False
        self._grace_ends = 0.0
        try:
            self._printed = [osdep.memory_file(), osdep.memory_file()]
            self._frames = osdep.memory_file()
        except OSError as error:
            raise fault.Fault("no-process", "no process is free for the cell, and its output cannot be kept apart in this one: " + fault.reason(error))

    def run(self):
        # type: () -> bytes
        spec, request = self._spec, self._cell
        self._answer.fd = streams.move_high(self._answer.fd)
        osdep.null_on((0,))
        for fd, printed in enumerate(self._printed, 1):
            os.dup2(printed, fd)
        orders, _held = os.pipe()  # no order ever comes
        detach.restore_signals()
        os.environ.update(spec.get("env") or {})
        os.environ[osdep.MARK] = spec["id"]
        osdep.apply_limits(spec.get("limits") or {})
        # What says so comes before the first line of the cell: if it ends this process, the host must not take that for a Python that did not start.
        self._answer.send("out", b"")
        runs = interpreter.Interpreter().attach(orders, os.dup(self._frames), {"kernel": spec["id"], "generation": 1})
        request.started = time.monotonic()
        request.queued_ms = (request.started - request.seen) * 1000
        self._bound()
        result = runs.serve_cell({"number": NUMBER, "id": request.id, "code": request.code, "echo": request.echo, "cwd": request.cwd, "env": request.env})
        signal.setitimer(signal.ITIMER_REAL, 0)
        osdep.restore_dispositions({signal.SIGALRM: _signal.SIG_IGN, signal.SIGINT: _signal.SIG_IGN})
        return self._reply(reply.checked_result(wire.encode(result)))

    def _bound(self):
        """The first alarm interrupts the cell, one after the grace answers in its place. Those between them end a wait that began just after one came."""
        signal.signal(signal.SIGALRM, self._alarm)
        left = self._end - time.monotonic()
        bound = left if self._cell.timeout is None else min(left, self._cell.timeout)
        signal.setitimer(signal.ITIMER_REAL, max(bound, 0.001), _AGAIN)

    def _alarm(self, _number, _frame):
        now = _monotonic()
        if not self._timed_out:
            self._timed_out = True
            self._grace_ends = now + max(self._spec.get("grace_ms") or 2000, 1) / 1000.0
            os.kill(os.getpid(), signal.SIGINT)
        if now < self._grace_ends:
            return
        self._answer.finish(({}, self._reply(None)))
        os._exit(0)

    def _reply(self, result):
        request = self._cell
        failure = result and result["error"]
        status = result["status"] if result else "timeout"
        if self._timed_out and status in ("interrupted", "timeout"):
            status, failure = "timeout", reply.timed_out(request, failure)
        code = {"ok": 0, "error": 1}.get(status, result["exit_code"] if status == "exit" else None)
        outcome = Outcome(status, failure, result and result["result"], code, None, (time.monotonic() - request.started) * 1000)
        for fd, capture in zip(self._printed, (request.stdout, request.stderr)):
            for piece in _pieces(fd):
                capture.feed(piece)
        reader = frames.Reader(child.FRAME_LIMIT)
        for piece in _pieces(self._frames):
            for kind, payload in reader.feed(piece):
                if kind == b"d":
                    request.add_display(reply.encode(reply.decode(payload[4:])))
        return reply.build(request, outcome, self._spec["id"], 1, "")[0]


def _pieces(fd):
    """What is in a file, from its beginning, wherever others write in it."""
    at = 0
    while True:
        piece = os.pread(fd, 1 << 18, at)
        if not piece:
            return
        at += len(piece)
        yield piece
