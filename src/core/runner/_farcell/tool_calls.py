"""The calls of tools that a cell makes, as the supervisor sees them: who may call, what becomes a record, and which answer is whose.

Nothing here blocks, whatever the other ends do, and nothing that they send is believed before it is checked.
"""

import os
import select
import time

from . import tool_call
from .loop import GONE, READ
from .strict import decode, quote_ascii

try:
    from _operator import _compare_digest
except ImportError:  # a Python that has it elsewhere
    from hmac import compare_digest as _compare_digest

CELL_MAX = 256 << 20  # bytes of all arguments of one cell
AT_ONCE = 64  # calls; more wait in the socket until one of these is over
ERRORS_MAX = 20  # that the reply tells of
_TEXT_MAX = 500  # characters of what it tells
_BATCH = 16  # calls that are taken up in one turn
_PATIENCE_LOOK = 10.0
_NOTED_MAX = 5  # lines in the log for what one interpreter sends that is no call
_GOOD = b'{"ok":true'


class ToolCalls(object):
    """Hears the calls of the interpreter and of all that were forked from it, and serves those of the cell that runs."""

    def __init__(self, loop, port, log, take_output):
        # type: (object, object, object, object) -> None
        self._loop = loop
        self._port = port
        self._log = log
        self._take_output = take_output  # what was printed before a call stands before it
        self._link = None  # type: object
        self._fd = -1
        self._cell = None  # type: object
        self._calls = {}  # type: dict # by descriptor
        self._recorded = {}  # type: dict # by number: those that have no answer yet
        self._bytes = 0
        self._heard_host = 0.0
        self._noted = 0

    # -- interpreters and cells ------------------------------------------------------------------------------------------

    def attach(self, link):
        # type: (object) -> None
        """Hear the calls of this interpreter."""
        self._link, self._fd = link, link.fileno()
        self._noted = 0
        self._loop.watch(self._fd, self._guarded(self._called))

    def detach(self):
        # type: () -> None
        """It has ended, and whatever was forked from it is about to."""
        self.end("the interpreter has ended")
        if self._link is not None:
            self._loop.unwatch(self._fd)
            self._link.close()
            self._link = None

    def begin(self, cell):
        # type: (object) -> None
        """A cell with tools starts."""
        self._cell = cell
        self._bytes = 0
        cell.call_errors = []
        self._port.expect_answers()

    def end(self, why="the cell has ended"):
        # type: (str) -> None
        """The cell has come to its end, and all of its calls with it."""
        cell, self._cell = self._cell, None
        if cell is None:
            return
        for call in list(self._calls.values()):
            if not call.is_answered:
                self._note_error(cell, call.number, call.name, "refused", why)
                self._refuse(call, "refused", why)
            else:
                self._close(call)
        self._recorded.clear()
        self._loop.cancel("patience")
        self._port.expect_no_answers()

    def pending(self):
        # type: () -> bool
        """Whether an answer is waited for."""
        return bool(self._recorded)

    # -- up ---------------------------------------------------------------------------------------------------------------

    def _guarded(self, function):
        """Whatever one call brings about is no affair of the others'."""
        def handler(*args):
            try:
                function(*args)
            except (OSError, MemoryError) as error:
                self._note("a call could not be served: %s" % (error or type(error).__name__))
                if len(args) > 1:
                    self._drop(args[0])
        return handler

    def _called(self, _events):
        for _ in range(_BATCH):
            if len(self._calls) >= AT_ONCE:
                self._loop.unwatch(self._fd)
                return
            try:
                arrived = tool_call.receive(self._link)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._loop.unwatch(self._fd)  # of an interpreter that has just ended
                return
            self._take_up(*arrived)

    def _take_up(self, token, name, fds, lost):
        if len(fds) != 1:
            for fd in fds:
                os.close(fd)
            # Without a descriptor there is nobody to answer to; he sees that his end is closed.
            self._note("a call with %d descriptors was dropped%s" % (len(fds), ": none is free" if lost else ""))
            return
        try:
            call = tool_call.Call(fds[0], name)
        except BaseException:  # it is no socket, or there is no memory
            os.close(fds[0])
            raise
        cell = self._cell
        if token is None:
            self._refuse(call, "refused", "this is no call of a tool")
        elif cell is None or not _compare_digest(token.encode("utf-8", "surrogatepass"), cell.token):
            self._refuse(call, "refused", "the call belongs to no cell that runs: what an earlier cell has left may not call tools")
        else:
            cell.calls += 1
            self._calls[call.fd] = call
            ready = self._guarded(self._ready)
            call.handler = lambda events: ready(call, events)
            self._loop.watch(call.fd, call.handler)
            call.handler(READ)

    def _ready(self, call, events):
        if call.is_answered:
            if call.send():
                self._close(call)
            else:
                self._loop.watch(call.fd, call.handler, select.POLLOUT)
        elif call.number:
            if events & GONE and call.is_gone():
                self._given_up(call)
        else:
            self._read(call)

    def _read(self, call):
        try:
            arguments = call.read(self._admit)
            if arguments is not None:
                self._record(call, arguments)
        except EOFError:
            self._drop(call)
        except tool_call.Refusal as refusal:
            self._fail(call, "refused", str(refusal))

    def _admit(self, length):
        if length > tool_call.FRAME_MAX:
            raise tool_call.Refusal("the arguments have more than %d bytes" % tool_call.FRAME_MAX)
        if self._bytes + length > CELL_MAX:
            raise tool_call.Refusal("all arguments of the cell together would have more than %d bytes" % CELL_MAX)
        self._bytes += length

    def _record(self, call, arguments):
        """All of the call is here, and its host is told."""
        try:
            fits = isinstance(decode(arguments), dict)
        except ValueError:
            fits = False
        except MemoryError:
            raise tool_call.Refusal("the supervisor has no memory for the arguments")
        if not fits:
            raise tool_call.Refusal("the arguments are no JSON object")
        self._take_output()
        cell = self._cell
        head = '{"call":%d,"number":%d,"token":%s,"name":%s,"arguments":' % (cell.recorded + 1, cell.number, quote_ascii(cell.tools["token"]), quote_ascii(call.name))
        blob = cell.records.add_call(b"t", b"".join((head.encode("ascii"), arguments, b"}")))
        if not blob:
            raise tool_call.Refusal("there is no room on the target to note the call (%s)" % cell.records.no_room)
        cell.recorded += 1
        call.number = cell.recorded
        call.since = time.monotonic()
        self._recorded[call.number] = call
        self._loop.watch(call.fd, call.handler, 0)  # only its end counts from here on
        self._port.called(cell.number, blob)
        if not self._loop.armed("patience"):
            self._heard_host = call.since
            self._look_again(call.since)

    def _given_up(self, call):
        """Nobody waits for the answer any more."""
        self._note_error(self._cell, call.number, call.name, "cancelled", "the caller gave the call up")
        self._withdraw(call)
        self._close(call)

    def _withdraw(self, call):
        del self._recorded[call.number]
        blob = self._cell.records.add_call(b"w", b'{"call":%d}' % call.number)
        if blob:
            self._port.called(self._cell.number, blob)

    # -- down -------------------------------------------------------------------------------------------------------------

    def answer(self, number, cell_id, call_number, text):
        # type: (int, str, int, bytes) -> bool
        """Hand an answer, as JSON, to its caller; False where nobody waits for it."""
        cell = self._cell
        self.host_spoke()
        if cell is None or cell.number != number or cell.id != cell_id:
            return False
        call = self._recorded.pop(call_number, None) if type(call_number) is int else None
        if call is None:
            return False
        if len(text) > tool_call.FRAME_MAX:
            self._fail(call, "tool", "the answer has more than %d bytes" % tool_call.FRAME_MAX)
            return True
        if not text.startswith(_GOOD):
            self._note_answer(cell, call, text)
        call.put(text)
        call.handler(select.POLLOUT)
        return True

    def _note_answer(self, cell, call, text):
        try:
            told = decode(bytes(text))
            if told["ok"] is not True:
                self._note_error(cell, call.number, call.name, str(told["error"]["kind"]), str(told["error"]["message"]))
        except (ValueError, TypeError, KeyError):
            self._note_error(cell, call.number, call.name, "tool", "the answer is not one")

    def _fail(self, call, kind, message):
        """Answer a call that had a right token by ourselves."""
        self._note_error(self._cell, call.number, call.name, kind, message)
        self._refuse(call, kind, message)

    def _refuse(self, call, kind, message):
        """Say why there is no answer, which is the last word."""
        call.refuse(kind, message)
        self._close(call)

    def _drop(self, call):
        """Nothing more can be had from this call, or sent to it."""
        if self._recorded.get(call.number) is call:
            self._withdraw(call)
        self._close(call)

    def _close(self, call):
        if self._calls.pop(call.fd, None) is not None:
            self._loop.unwatch(call.fd)
        call.close()
        if self._link is not None and self._fd not in self._loop:
            self._loop.watch(self._fd, self._guarded(self._called))

    # -- patience ---------------------------------------------------------------------------------------------------------

    def _look_for_host(self):
        """Calls that nobody will answer, as no host waits for the cell, come to an end."""
        if not self._recorded:
            return
        now, patience = time.monotonic(), self._cell.tools["patience_ms"] / 1000.0
        if self._port.is_waited_for():
            self._heard_host = now
        for call in list(self._recorded.values()):
            if now - max(call.since, self._heard_host) >= patience:
                self._withdraw(call)
                self._fail(call, "no-host", "nobody who could answer has waited for this cell for %g s" % patience)
        if self._recorded:
            self._look_again(now)

    def _look_again(self, now):
        wait = min(_PATIENCE_LOOK, self._cell.tools["patience_ms"] / 4000.0)
        self._loop.at("patience", now + max(0.01, wait), self._look_for_host)

    def host_spoke(self):
        # type: () -> None
        """It is there, whatever it wanted."""
        self._heard_host = time.monotonic()

    # -- what is told -----------------------------------------------------------------------------------------------------

    def _note_error(self, cell, number, name, kind, message):
        if len(cell.call_errors) < ERRORS_MAX:
            cell.call_errors.append({"call": number, "name": name[:_TEXT_MAX], "kind": kind[:_TEXT_MAX], "message": message[:_TEXT_MAX]})

    def _note(self, text):
        self._noted += 1
        if self._noted <= _NOTED_MAX:
            self._log("%s%s", text, "; no more of these are told" if self._noted == _NOTED_MAX else "")
