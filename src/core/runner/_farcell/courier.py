"""The far end of a stream: serves all kernels of one host over one channel, in one thread that waits for nothing but its poll."""

import gc
import os
import signal
import time

from . import attended, bulk, calls, channel, detach, doctor, duties, express, fastjson, files, follow, helpers, lane_files, link, loop, osdep, place, records, standing
from .fault import Fault

SILENCE = 120.0  # then the host is gone without a word
STANDING_SILENCE = 60.0  # likewise, where no end of the stream tells of it; hosts ask every thirty seconds whether we are there
CALL_MAX = 512 << 20
# Longer calls are taken apart by a helper: JSON of that size would hold up the others.
LONG = 256 << 10
# Small at first: a large buffer is mapped and given back for each call.
_READ_SMALL, _READ_LARGE = 4096, 1 << 17
_LONG_SECONDS = 60.0
_FAILURES = 100  # in a row
_HELPED = frozenset(("spawn", "control", "list", "sweep", "cool", "remove", "doctor"))
_INLINE = frozenset(("probe", "read", "withdraw", "answer"))


class Courier(object):
    """Takes calls from the channel, has them done, and sees to it that each is answered."""

    def __init__(self, header, modules, hello):
        # type: (dict, object, dict) -> None
        self._duty = duties.Duty({name: header.get(name) for name in ("runner", "base", "place")}, modules)
        self.loop = loop.Loop()
        self._calls = {}  # type: dict
        self._pieces = {}  # type: dict
        self._checked_base = None  # type: object
        self._due = None  # type: object
        self._ended = False
        self._heard = time.monotonic()
        self._read_size = _READ_SMALL
        self.attendance = attended.Attendance(self.loop)
        self.sender = channel.Sender(self.loop, 1, self._end)
        self._pool = helpers.Pool(self.loop, self._duty)
        self._files = bulk.Files(self, self._duty)
        stand = header.get("stand")
        if stand is None:
            self._inlet = self.frames()
            self._silence, self._fell_silent = SILENCE, self._end
        else:
            self._inlet = standing.Inlet(stand, header["runner"], self, hello)
            self._silence, self._fell_silent = STANDING_SILENCE, self._inlet.expire

    def serve(self, ahead):
        # type: (bytes) -> None
        """Until the host is gone. `ahead` came together with the header."""
        self.loop.catch_signals({signal.SIGCHLD: self._reap, signal.SIGTERM: self._end})
        self.loop.watch(0, self._readable)
        self._listen()
        try:
            self._feed(ahead)
            failures = 0
            while not self._ended:
                try:
                    self.loop.turn()
                    failures = 0
                except OSError:
                    # Of no single call: no descriptor was free, a kernel's files cannot be read. What waits is bounded by its own time.
                    failures += 1
                    if failures >= _FAILURES:
                        raise
        finally:
            self._pool.close()
            self._files.pool.close()
            self.attendance.close()

    def _end(self):
        self._ended = True

    def _reap(self):
        self._pool.reap()
        self._files.pool.reap()

    def _readable(self, _events):
        self._heard = time.monotonic()
        data = loop.read_some(0, self._read_size)
        if data:
            self._read_size = _READ_SMALL if len(data) < _READ_SMALL else _READ_LARGE
            self._feed(data)
        elif data is not None:
            self._end()

    def _feed(self, data):
        try:
            self._inlet.feed(data)
        except channel.Broken:
            self._end()

    def _listen(self):
        """The host that has been silent for too long is gone."""
        now = time.monotonic()
        if now - self._heard >= self._silence:
            self._heard = now
            self._fell_silent()
        self.loop.at("silence", self._heard + self._silence, self._listen)

    # -- hosts, one after the other ----------------------------------------------------------------------------------------

    def drop_host(self):
        """Nobody waits for any call any more."""
        self._pieces.clear()
        for call in list(self._calls.values()):
            self._drop(call)

    # -- frames ----------------------------------------------------------------------------------------------------------

    def frames(self):
        # type: () -> channel.Inlet
        """Takes a host's frames apart, from its first one on."""
        return channel.Inlet({
            channel.CALL: self._call, channel.CALL_PART: self._piece, channel.CANCEL: self._cancel,
            channel.DATA: self._data, channel.DATA_PART: self._piece,
            channel.TAKEN: self._taken, channel.PING: self._ping})

    def _piece(self, number, payload):
        pieces = self._pieces.setdefault(number, [])
        pieces.append(payload)
        if sum(map(len, pieces)) > CALL_MAX:
            raise channel.Broken("a call of more than %d bytes" % CALL_MAX)

    def _call(self, number, payload):
        pieces = self._pieces.pop(number, None)
        if number in self._calls:
            return
        header = {}
        try:
            if pieces is not None:
                pieces.append(payload)
                if sum(map(len, pieces)) > LONG:
                    self._take_long(number, pieces)
                    return
                payload = b"".join(pieces)
            if len(payload) > LONG:
                self._take_long(number, [payload])
                return
            header = self._duty.header(payload)
            if header.get("op") != "run" or not express.attempt(self, number, header):
                self._begin(calls.Call(self, number, header, duties.deadline(header)), payload)
        except Exception as error:
            self._fail(self._calls.get(number) or calls.Call(self, number, header, 0.0), error)

    def _data(self, number, payload):
        """A step of a transfer, with bytes of the file behind its header."""
        text = b"".join(self._pieces.pop(number, []) + [payload])
        if number in self._calls:
            return
        header = {}
        try:
            header = bulk.split(self._duty, text)[0]
            self._files.begin(number, header, text)
        except Exception as error:
            self._fail(self._calls.get(number) or calls.Call(self, number, header, 0.0), error)

    def accept(self, call):
        """From now on it is known."""
        self._calls[call.ref] = call

    def is_at_rest(self):
        """Whether nobody waits for anything else."""
        return not self._calls

    def knows(self, base):
        """Whether this base directory has been checked."""
        return base == self._checked_base

    def _begin(self, call, text):
        self.accept(call)
        header = call.header
        op, base = header.get("op"), header["base"]
        if base != self._checked_base:
            link.check(header)
            self._checked_base = base
        if op == "run":
            follow.run(self, call, text)
        elif op == "wait":
            follow.wait(self, call)
        elif op == "ack":
            self.attendance.checked(call.field("dir", str, required=True)).acknowledge(call.numbers("numbers"))
            self.answer(call, link.body({}))
        elif not isinstance(op, str):
            raise Fault("bad-request", "op must be text")
        elif op in _HELPED:
            self._have_helped(call, text)
        elif op in bulk.OPERATIONS:
            self._files.begin(call.ref, header, text)
        elif op == "answer" and call.written is not None and not self._is_quick(call):
            self.have_done(call, helpers.Errand(b"".join(text), call.end, lambda out, body: self._pass_on(call, out, body), True, helpers.LONG))
        elif op in _INLINE:
            try:
                self.answer(call, link.body(link.operate(call)))
            except lane_files.Pending:
                self._have_helped(call, text)
            if op == "withdraw":
                self.attendance.ring(header["dir"])  # as no supervisor does
        else:
            raise Fault("bad-request", "there is no operation %r in a stream" % (op,))

    def _is_quick(self, call):
        """Whether others can wait while what stands behind the header is written."""
        kernel = self.attendance.checked(call.field("dir", str, required=True))
        return sum(map(len, call.written)) <= follow.QUICK and kernel.is_in_memory()

    def _take_long(self, number, pieces):
        """Nothing but its header is read here: a request that stands behind that is written to its file as it is, piece by piece."""
        text, rest = duties.split(pieces[0])
        if rest is None:
            self._begin_long(calls.Call(self, number, {}, _LONG_SECONDS), b"".join(pieces))
            return
        header = self._duty.header(text)
        if header.get("op") not in ("run", "answer"):
            raise Fault("bad-request", "only a run or an answer can have something behind its header")
        call = calls.Call(self, number, header, duties.deadline(header))
        call.written = [rest] + pieces[1:]
        self._begin(call, pieces)
        call.written = None

    def _begin_long(self, call, text):
        self._calls[call.ref] = call
        self.have_placed(call, text)

    def have_placed(self, call, text):
        # type: (calls.Call, bytes) -> None
        """Have a helper take a long call apart, or write a long request to its file."""

        def done(out, body):
            if not body.startswith(b'{"placed":'):
                self._pass_on(call, out, body)
                return
            placed = fastjson.loads(body)
            if not call.header:
                call.header = placed["header"]
                call.end = time.monotonic() + duties.deadline(call.header)
            self.guard(call, lambda: follow.follow_shipped(self, call, placed["placed"], placed["id"]))
        self.have_done(call, helpers.Errand(text, call.end, done, True, helpers.LONG))

    def _cancel(self, number, _payload):
        self._pieces.pop(number, None)
        call = self._calls.get(number)
        if call is not None:
            self._drop(call)

    def _drop(self, call):
        self.sender.forget(call)
        self._files.forget(call)
        self.close_call(call)

    def _taken(self, number, payload):
        call = self._calls.get(number)
        if call is not None and len(payload) == 4:
            call.credit += int.from_bytes(payload, "big")
            if call.source is not None:
                self.sender.enlist(call)

    def _ping(self, _number, _payload):
        self.sender.pong()

    # -- helpers ---------------------------------------------------------------------------------------------------------

    def _have_helped(self, call, text):
        self.have_done(call, helpers.Errand(text, call.end, lambda out, body: self._pass_on(call, out, body)))

    def have_done(self, call, errand, pool=None):
        """Have a helper do something for this call."""
        call.job = errand
        call.at(call.end, lambda: self._too_late(call))
        (pool or self._pool).send(errand)

    def _pass_on(self, call, out, body):
        if out:
            call.source = records.Given(out)
        self.answer(call, body)

    def _too_late(self, call):
        raise Fault("internal", "%s was not done by its deadline, and nobody waits for it any more" % call.header.get("op"), "ask what became of it")

    def step(self, call, header, then):
        """Have a helper do one step of a call; `then` goes on with the answer."""
        def done(_out, body):
            answer = fastjson.loads(body)
            if answer["ok"]:
                self.guard(call, lambda: then(answer))
            else:
                self._fail(call, Fault(**answer["error"]))
        self.have_done(call, helpers.Errand(files.to_json(header), call.end, done, True, helpers.STEP))

    # -- answers ---------------------------------------------------------------------------------------------------------

    def answer(self, call, body):
        """Send an answer; the call is over when it is out."""
        if call.source is None and self.sender.answer(call.ref, body):
            self.close_call(call)
            return
        call.put(body)
        self.sender.enlist(call)

    def finish(self, call, result):
        """Answer with what `result()` gives."""
        self.answer(call, self.composed(call, result))

    def composed(self, call, result):
        try:
            return link.body(result())
        except Exception as error:
            return duties.failure(error, call.header)

    def guard(self, call, function):
        """Whatever goes wrong is this call's own affair."""
        try:
            function()
        except Exception as error:
            self._fail(call, error)

    def _fail(self, call, error):
        if call.source is not None:
            call.source.close()
            call.source = None
        self.answer(call, duties.failure(error, call.header))

    def close_call(self, call):
        """It is answered, or nobody waits for it any more."""
        if self._calls.pop(call.ref, None) is None:
            return
        # With no ring of references left it is gone at once, with all that was read for it.
        call.due = call.on_due = call.answer = None
        if call.source is not None:
            call.source.close()
            call.source = None
        job, call.job = call.job, None
        if isinstance(job, helpers.Errand):
            job.pool.cancel(job)
        elif job is not None:
            job.drop()
        if not self._calls and self._due is not None:
            self._due = None
            self.loop.cancel("due")

    # -- time ------------------------------------------------------------------------------------------------------------

    def expect(self, when):
        """One timer for all calls: at the first moment of any."""
        if self._due is None or when < self._due:
            self._due = when
            self.loop.at("due", when, self._overdue)

    def _overdue(self):
        self._due = None
        now = time.monotonic()
        for call in list(self._calls.values()):
            if call.due is not None and call.due <= now:
                call.due, function = None, call.on_due
                self.guard(call, function)
        for call in self._calls.values():
            if call.due is not None:
                self.expect(call.due)


def wake(header):
    """How we hear of what happens: tried out, as far as it can be before a kernel is known."""
    bases = place.existing_bases(header)
    return osdep.wake_word(doctor.has_fifo(bases[0]) if bases else hasattr(os, "mkfifo"), doctor.has_pidfd())


def serve(header, stdin, modules, answer):
    """The operation: says hello, and never comes back."""
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGPIPE"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    hello = {"pid": os.getpid(), "python": detach.python_path(), "wake": wake(header), "window": channel.WINDOW}
    answer.finish({"courier": hello})
    signal.alarm(0)
    lane_files.may_wait = False
    # What came in one piece with the header waits in the buffer, and the descriptor will not give it again.
    os.set_blocking(0, False)
    ahead = stdin.peek(1)
    freeze = getattr(gc, "freeze", None)  # 3.7
    if freeze is not None:
        freeze()  # shared with every helper
    try:
        Courier(header, modules, hello).serve(ahead)
    except BaseException as error:
        # A defect of ours; the loader's answer would only disturb the frames. The host sees a stream that ends.
        os.write(2, ("farcell: the courier failed: %s\n" % duties.internal(error).message).encode("utf-8", "backslashreplace"))
        os._exit(99)
    os._exit(0)
