"""The port of a kernel that a host holds by two pipes: requests, output, replies and controls are frames."""

import os
import struct
import time
from collections import deque

from . import cell, frames, lane, loop, osdep, output, reply, widening
from .file_port import SPILL_DEFAULT, SPILLS_KEPT
from .ports import Port

FRAME_LIMIT = 512 << 20
MAX_WAITING = 10000
MAX_WAITING_BYTES = 1 << 30
_READ_SMALL, _READ_LARGE = 16 * 1024, 256 * 1024
_READ_MAX = 4 << 20
# Past the first mark the interpreter's output is no longer read: it waits in its own pipes until the host takes some.
_CONGESTED, _RELIEVED = 8 << 20, 4 << 20
_START_TOLD = 0.001
_IN_MEMORY = 64 * 1024
_ANSWER, _ANSWER_WITHIN, _LONG_ANSWER = b',"answer":', 256, 64 * 1024
_NUMBER = struct.Struct(">I")
_OUTPUT = struct.Struct(">IcI")  # a frame's head and the cell's number


class PipePort(Port):
    """Speaks with one host. When the host is gone, so is the reason to live."""

    wake = "pipe"
    has_host = True

    def __init__(self, spec, log, stdin_fd, stdout_fd):
        # type: (dict, object, int, int) -> None
        self._log = log
        self.gather_from = 4096 if spec.get("gather") is True else None
        self._stdin = stdin_fd
        self._stdout = stdout_fd
        self._reader = frames.Reader(FRAME_LIMIT)
        self._queue = deque()  # type: deque
        self._queued_bytes = 0
        self._number = 0
        self.lane = lane.make()
        self._read_size = _READ_SMALL
        self._start = None  # type: object
        self._held = {}  # type: dict
        self._spills = []  # type: list
        limit = (spec.get("limits") or {}).get("spill_bytes")
        self._folders = [folder for folder in (spec.get("base"), os.environ.get("TMPDIR"), "/tmp", "/var/tmp") if folder]
        free = max(osdep.free_bytes(folder) for folder in self._folders)
        self._spill_bytes = min(SPILL_DEFAULT if limit is None else limit, free // 4)

    def open(self, loop_, kernel):
        self._loop = loop_
        self._kernel = kernel
        os.set_blocking(self._stdin, False)
        self._outbox = loop.Outbox(loop_, self._stdout, self._host_gone, watch_peer=True)
        loop_.watch(self._stdin, self._readable)

    def say(self, data):
        # type: (bytes) -> None
        """Raw bytes: the answer that comes before all frames."""
        self._outbox.push(data)

    def _send(self, kind, payload):
        if len(payload) < widening.LARGE:
            self._push(frames.pack(kind, payload))
        else:  # not copied once more
            self._push_all([frames.HEADER.pack(len(payload), kind[0]), payload])

    def _push(self, data):
        if self._start is not None:
            data = self._take_start() + data
        self._outbox.push(data)

    def _push_all(self, parts):
        if self._start is not None:
            parts.insert(0, self._take_start())
        self._outbox.push_all(parts)

    def _take_start(self):
        """The frame of a start that has not been told."""
        cell, self._start = self._start, None
        self._loop.cancel("start")
        return frames.pack(b"S", b'{"number":%d,"id":"%s","queued_ms":%.3f}' % (cell.number, cell.id.encode("ascii"), cell.queued_ms))

    @property
    def congested(self):
        return self._outbox.pending > _CONGESTED

    def when_relieved(self, function):
        self._outbox.low_mark = _RELIEVED
        self._outbox.on_low = function

    def _host_gone(self):
        self._kernel.gone("host gone")

    def _readable(self, _events):
        data = loop.read_some(self._stdin, self._read_size)
        if data is None:
            return
        self._read_size = _READ_SMALL if len(data) < _READ_SMALL else _READ_LARGE
        if not data:
            self._loop.unwatch(self._stdin)
            self._host_gone()
            return
        try:
            arrived = self._reader.feed(data)
        except ValueError as error:
            self._log("the host broke the protocol: %s", error)
            self._loop.unwatch(self._stdin)
            self._host_gone()
            return
        for kind, payload in arrived:
            if kind == b"Q":
                self._request(payload)
            elif kind == b"C":
                self._control(payload)
            elif kind == b"G":
                self._read(payload)
            elif kind == b"L":
                self._hand_over(payload)
            elif kind == b"T":
                self._answer(payload)
            else:
                self._log("a frame of unknown kind %r was dropped", kind)

    def _request(self, payload):
        self._number = self.lane.next_number() if self.lane is not None else self._number + 1
        request = cell.parse(payload, self._number, time.monotonic())
        if len(self._queue) >= MAX_WAITING or self._queued_bytes + request.size > MAX_WAITING_BYTES:
            request.refusal = request.refusal or "too many cells wait already"
        if request.refusal:
            self._kernel.refuse(request)
            return
        ahead = len(self._queue) + (1 if self._kernel.busy() else 0)
        self._queue.append(request)
        self._queued_bytes += request.size
        if ahead:
            self._send(b"A", reply.encode({"number": request.number, "id": request.id, "ahead": ahead}))

    def _hand_over(self, payload):
        """The host has waited for a moment for a cell in the lane, and now it is the supervisor's."""
        try:
            request = cell.decode(payload)
            cell_id, seq = str(request["id"]), int(request["seq"])
        except (ValueError, TypeError, KeyError):
            self._log("a hand-over that does not fit the protocol was dropped")
            return
        if self.lane is not None:
            self.handed_over(cell_id, seq)

    def _answer(self, payload):
        """To a call of a tool. A long one is passed on as it is."""
        at = payload.find(_ANSWER, 0, _ANSWER_WITHIN)
        try:
            if at >= 0 and payload[-1:] == b"}" and len(payload) > _LONG_ANSWER:
                told, text = cell.decode(bytes(payload[:at]) + b"}"), memoryview(payload)[at + len(_ANSWER):-1]
            else:
                told = cell.decode(payload)
                text = reply.encode(told["answer"])
            number, cell_id, call = told["number"], told["id"], told["call"]
        except (ValueError, TypeError, KeyError):
            self._log("an answer to a call that does not fit the protocol was dropped")
            return
        self._kernel.answer_call(number, cell_id, call, bytes(text))

    def handed_over(self, cell_id, seq):
        untaken = self._kernel.hand_over(cell_id, seq)
        if untaken is not None:
            self._request(untaken)

    def waiting(self):
        return len(self._queue)

    def take(self):
        if not self._queue:
            return None
        taken = self._queue.popleft()
        self._queued_bytes -= taken.size
        return taken

    def _control(self, payload):
        try:
            request = cell.decode(payload)
        except ValueError:
            request = None
        if not isinstance(request, dict):
            self._log("a control that is not a JSON object was dropped")
            return
        what = request.get("do")
        if what == "withdraw":
            answer = {"withdrawn": self._withdraw(request)}
        elif what == "probe":
            answer = self._kernel.facts()
        else:
            answer = self._kernel.control(request)
        self._send(b"D", reply.encode(dict(answer, ref=request.get("ref"))))

    def _withdraw(self, request):
        for waiting in self._queue:
            if waiting.id == request.get("id") or (request.get("id") is None and waiting.number == request.get("number")):
                self._queue.remove(waiting)
                self._queued_bytes -= waiting.size
                return True
        return False

    def _read(self, payload):
        try:
            request = cell.decode(payload)
            ref, offset, size = (int(request.get(name) or 0) for name in ("ref", "offset", "max"))
            number = request.get("number")
            head = _NUMBER.pack(ref)
        except (ValueError, TypeError, AttributeError, struct.error):
            self._log("a read that does not fit the protocol was dropped")
            return
        size = min(size, _READ_MAX) if size > 0 else _READ_MAX
        offset = max(offset, 0)
        if request.get("file") == "log":
            data = self._log.read(offset, size)
        else:
            records = self._held.get(number) if isinstance(number, int) else None
            data = records.read(offset, size) if records is not None else b""
        self._send(b"B", head + data)

    def records(self, number):
        held = self._held[number] = output.RecordFile(self._unlinked, self._spill_bytes, _IN_MEMORY)
        return held

    def _unlinked(self):
        """A file without a name: it is gone with us, however we end."""
        for folder in self._folders:
            try:
                return osdep.unnamed_file(folder)
            except OSError as error:
                last = error
        raise last

    def started(self, cell):
        """Told after a moment, or before anything else is. Most cells are over by then, and the reply says it all."""
        self._start = cell
        self._loop.at("start", time.monotonic() + _START_TOLD, lambda: self._push(b""))

    def forget(self, cell):
        if cell.number in self._held:
            self._held.pop(cell.number).close()
        self._untold(cell)

    def _untold(self, cell):
        if self._start is cell:
            self._start = None
            self._loop.cancel("start")

    def output(self, number, blob):
        # The host gets whole records, each in a frame of its own.
        view, parts, at = memoryview(blob), [], 0
        while at < len(blob):
            end = at + 5 + _NUMBER.unpack_from(blob, at + 1)[0]
            parts.append(_OUTPUT.pack(4 + end - at, b"O", number))
            parts.append(view[at:end])
            at = end
        if len(blob) < widening.LARGE:
            self._push(b"".join(parts))
        else:
            self._push_all(parts)

    def spill(self, number):
        return "cell_out_%06d" % number

    def settle(self, cell, reply, spilled):
        held = self._held
        self._untold(cell)
        self._send(b"R", reply)
        # Only now: to give back a large file takes longer than to send the reply.
        if spilled:
            self._spills.append(cell.number)
            while len(self._spills) > SPILLS_KEPT:
                held.pop(self._spills.pop(0)).close()
        elif cell.number in held:
            held.pop(cell.number).close()
        return True

    def close(self, why):
        for records in self._held.values():
            records.close()
        self._outbox.flush(0.0 if why == "host gone" else 2.0)
