"""The far end of a stream: serves all kernels of one host over one channel, in one thread that never waits for anything but its poll."""

import os
import signal
import time

from . import attended, cellfiles, channel, fastjson, files, follow, helpers, kernels, launch, link, loop, osdep, records, spawn, watch  # noqa: F401
from .fault import Fault

SILENCE = 120.0  # then the host is gone without a word
CALL_MAX = 512 << 20
_HELPED = frozenset(("spawn", "control", "list", "sweep", "remove", "doctor"))
_INLINE = frozenset(("probe", "ack", "read", "withdraw"))


class Call(link.Call, channel.Outgoing):
    """One call of the host: its header, and what there is to send for it."""

    def __init__(self, courier, number, header):
        channel.Outgoing.__init__(self, number)
        deadline = header.get("deadline_ms")
        if not isinstance(deadline, int) or deadline < 0:
            raise Fault("bad-request", "deadline_ms must be a whole number")
        link.Call.__init__(self, header, None, None, self)
        self.courier = courier
        self.job = None  # type: object  # the Follow or the Errand that works for it
        self.due = None  # type: object
        self.on_due = None  # type: object

    def at(self, when, function):
        """Call `function` at that moment, instead of what was to be called before."""
        self.due, self.on_due = when, function
        self.courier.expect(when)

    def directory(self):
        return self.courier.attendance.checked(self.field("dir", str, required=True)).directory

    def send(self, kind, payload):
        """As an operation's Answer: bytes of the answer's `out` frames."""
        self.source = records.Given(payload)

    def ended(self):
        return self.courier.composed(self, self.job.answered)

    def over(self):
        self.courier.close_call(self)


class Courier(object):
    """Takes calls apart from the channel, has them done, and sees to it that each is answered."""

    def __init__(self, header, modules):
        # type: (dict, object) -> None
        self._defaults = {name: header.get(name) for name in ("runner", "base", "place")}
        self._modules = modules
        self._loop = loop.Loop()
        self._calls = {}  # type: dict
        self._pieces = {}  # type: dict
        self._due = None  # type: object
        self._ended = False
        self._heard = time.monotonic()
        self.attendance = attended.Attendance(self._loop)
        self.sender = channel.Sender(self._loop, 1, self._end)
        self._pool = helpers.Pool(self._loop, self._help)
        self._inlet = channel.Inlet({
            channel.CALL: self._call, channel.CALL_PART: self._piece, channel.CANCEL: self._cancel,
            channel.TAKEN: self._taken, channel.PING: self._ping})

    def serve(self, ahead):
        # type: (bytes) -> None
        """Until the host is gone. `ahead` came together with the header."""
        self._loop.catch_signals({signal.SIGCHLD: self._pool.reap, signal.SIGTERM: self._end})
        self._loop.watch(0, self._readable)
        self._listen()
        try:
            self._handle(ahead)
            while not self._ended:
                self._loop.turn()
        finally:
            self._pool.close()
            self.attendance.close()

    def _end(self):
        self._ended = True

    def _readable(self, _events):
        self._heard = time.monotonic()
        data = loop.read_some(0, 1 << 17)
        if data:
            self._handle(data)
        elif data is not None:
            self._ended = True

    def _handle(self, data):
        try:
            self._inlet.feed(data)
        except channel.Broken:
            self._ended = True

    def _listen(self):
        """Whether the host has been silent for too long."""
        left = self._heard + SILENCE - time.monotonic()
        if left <= 0:
            self._ended = True
        else:
            self._loop.at("silence", self._heard + SILENCE, self._listen)

    # -- frames ----------------------------------------------------------------------------------------------------------

    def _piece(self, number, payload):
        pieces = self._pieces.setdefault(number, [])
        pieces.append(payload)

    def _call(self, number, payload):
        if self._pieces:
            pieces = self._pieces.pop(number, None)
            if pieces is not None:
                pieces.append(payload)
                payload = b"".join(pieces)
        try:
            call = None
            header = fastjson.loads(payload)
            if not isinstance(header, dict):
                raise Fault("bad-request", "a call must be a JSON object")
            for name, value in self._defaults.items():
                header.setdefault(name, value)
            call = Call(self, number, header)
            self._calls[number] = call
            self._begin(call, payload)
        except Exception as error:
            self._answer(call, number, self._failure(error, header if call is not None else {}))

    def _begin(self, call, text):
        op = call.header.get("op")
        if op == "run":
            self._run(call)
        elif op == "wait":
            self._wait(call)
        elif op in _HELPED:
            self._send_helper(call, text)
        elif op in _INLINE:
            self._answer(call, call.number, link.body(link.operate(call)))
        else:
            raise Fault("bad-request", "there is no operation %r in a stream" % (op,))

    def _cancel(self, number, _payload):
        self._pieces.pop(number, None)
        call = self._calls.get(number)
        if call is not None:
            self.sender.forget(call)
            if isinstance(call.job, helpers.Errand):
                self._pool.cancel(call.job)
            elif call.job is not None:
                call.job.drop()
            self.close_call(call)

    def _taken(self, number, payload):
        call = self._calls.get(number)
        if call is not None and len(payload) == 4:
            call.credit += int.from_bytes(payload, "big")
            if call.source is not None:
                self.sender.enlist(call)

    def _ping(self, _number, _payload):
        self.sender.pong()

    # -- answers ---------------------------------------------------------------------------------------------------------

    def _answer(self, call, number, body):
        """Send an answer; the call is over when it is out."""
        if call is None:
            call = channel.Outgoing(number)
            call.over = _nothing
        if call.source is None and self.sender.answer(number, body):
            call.over()
            return
        call.put(body)
        self.sender.enlist(call)

    def finish(self, call, result):
        """Answer with what `result()` gives."""
        self._answer(call, call.number, self.composed(call, result))

    def composed(self, call, result):
        try:
            return link.body(result())
        except Exception as error:
            return self._failure(error, call.header)

    def guard(self, call, function):
        """Whatever goes wrong is this call's own affair."""
        try:
            function()
        except Exception as error:
            if call.source is not None:
                call.source.close()
                call.source = None
            self._answer(call, call.number, self._failure(error, call.header))

    def _failure(self, error, header):
        if isinstance(error, OSError):
            error = link.known_fault(error, header) or error
        if isinstance(error, ValueError) and not header:
            error = Fault("bad-request", "the call is not JSON")
        if not isinstance(error, Fault):
            error = internal(error)
        return link.failure(error)

    def close_call(self, call):
        if self._calls.pop(call.number, None) is not None:
            call.due = None
            if call.source is not None:
                call.source.close()
                call.source = None
            if not self._calls and self._due is not None:
                self._due = None
                self._loop.cancel("due")

    # -- time ------------------------------------------------------------------------------------------------------------

    def expect(self, when):
        """One timer for all calls: at the first moment of any."""
        if self._due is None or when < self._due:
            self._due = when
            self._loop.at("due", when, self._overdue)

    def _overdue(self):
        self._due = None
        now = time.monotonic()
        for call in list(self._calls.values()):
            if call.due is None:
                continue
            if call.due <= now:
                function, call.due = call.on_due, None
                self.guard(call, function)
            if call.due is not None:
                self.expect(call.due)

    # -- cells -----------------------------------------------------------------------------------------------------------

    def _run(self, call):
        link.check(call.header)
        kernel = self.attendance.checked(call.field("dir", str, required=True))
        request, options = call.request(), call.wait_options()
        again, numbers = call.field("again", bool, default=False), call.numbers("ack")
        self.attendance.attend(kernel)
        cellfiles.acknowledge(kernel.directory, numbers)
        if not kernel.alive():
            number = cellfiles.find(kernel.directory, request["id"]) if again else None
            if number is None:
                raise Fault("kernel-dead", cellfiles.obituary(kernel.directory), "start a new one")
            shipped = False
        else:
            number, shipped = cellfiles.ship(kernel.directory, request, again)
            if shipped:
                files.poke(os.path.join(kernel.directory, "wake"))
        self._follow(call, kernel, number, options, request["id"], True, shipped)

    def _wait(self, call):
        link.check(call.header)
        kernel = self.attendance.checked(call.field("dir", str, required=True))
        options, number, cell_id = call.wait_options(), call.number(), call.field("id", str)
        numbers = call.numbers("ack")
        self.attendance.attend(kernel)
        cellfiles.acknowledge(kernel.directory, numbers)
        if number is None:
            number = cellfiles.wanted(kernel.directory, cell_id)
            if number is None:
                self._answer(call, call.number, link.body(link.unknown(cell_id, options)))
                return
        self._follow(call, kernel, number, options, cell_id, False, False)

    def _follow(self, call, kernel, number, options, known_id, ours, fresh):
        call.job = follow.Follow(self, call, kernel, number, options, known_id, ours)
        call.job.begin(fresh)
        if not fresh and not kernel.alive():
            call.job.death()

    def bury(self, job):
        """The reply of a cell whose kernel died; a helper takes the lock and looks for what is left of it."""
        text = files.to_json({"op": "bury", "dir": job.directory, "number": job.number, "seen_alive": job.seen_alive, "deadline_ms": 0})

        def done(_records, body):
            answer = fastjson.loads(body)
            if not answer.get("ok"):
                self._answer(job.call, job.call.number, body)
            else:
                job.buried(answer["reply"])
        self._pool.send(helpers.Errand(text, job.call.end, lambda *what: job.call.number in self._calls and self.guard(job.call, lambda: done(*what)), step=True))

    # -- helpers ---------------------------------------------------------------------------------------------------------

    def _send_helper(self, call, text):
        def done(out, body):
            if out:
                call.source = records.Given(out)
            self._answer(call, call.number, body)
        call.job = helpers.Errand(text, call.end, done)
        call.at(call.end, lambda: self._too_late(call))
        self._pool.send(call.job)

    def _too_late(self, call):
        self._pool.cancel(call.job)
        raise Fault("internal", "%s was not done within its deadline, and was ended" % call.header.get("op"), "ask what became of it")

    def _help(self, text, end, answer):
        """One errand, in a helper."""
        header = fastjson.loads(text)
        for name, value in self._defaults.items():
            header.setdefault(name, value)
        header["deadline_ms"] = max(0, int((end - time.monotonic()) * 1000))
        try:
            if header["op"] == "bury":
                result = {"reply": cellfiles.bury(header["dir"], header["number"], header["seen_alive"])}
            else:
                result = link.operate(link.Call(header, None, self._modules, answer))
        except Exception as error:
            answer.send("json", self._failure(error, header))
        else:
            answer.finish(result)


def _nothing():
    pass


def internal(error):
    """A defect of ours as an answer, with the place where it showed."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = " (%s line %d)" % (at.tb_frame.f_code.co_filename, at.tb_lineno) if at is not None else ""
    return Fault("internal", "%s: %s%s" % (type(error).__name__, error, where))


def wake():
    """How we hear of what happens."""
    fd = osdep.pidfd_open(os.getpid())
    if fd >= 0:
        os.close(fd)
    if not hasattr(os, "mkfifo"):
        return "poll"
    return "fifo+pidfd" if fd >= 0 else "fifo"


def serve(header, stdin, modules, answer):
    """The operation: says hello, and comes back never."""
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGPIPE"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    answer.finish({"courier": {"pid": os.getpid(), "python": launch.python_path(), "wake": wake(), "window": channel.WINDOW}})
    signal.alarm(0)
    # What came in one piece with the header waits in the buffer. It holds nothing that the descriptor could give again.
    os.set_blocking(0, False)
    ahead = stdin.peek(1)
    try:
        Courier(header, modules).serve(ahead)
    except BaseException as error:
        # A defect of ours; the loader's answer would only disturb the frames. The host sees a stream that ends.
        os.write(2, ("farcell: the courier failed: %s\n" % internal(error).message).encode("utf-8", "backslashreplace"))
        os._exit(99)
    os._exit(0)
