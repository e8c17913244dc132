"""The courier's end of a stream: frames with the number of a call, sent by turns, so that a flood delays nobody by more than a piece."""

import errno
import os
import select
import struct
import time
from collections import deque

from . import loop, widening

# A piece and its head fill a pipe of the usual size in one go.
PIECE = 65536 - 9
FRAME_MAX = 1 << 20
WINDOW = 1 << 20
_DRAINED_AFTER = 0.001
TURN_MAX = 16 * 65536  # then it is the other descriptors' turn
_HEAD = struct.Struct(">IBI")
_PREFIX = struct.Struct(">IB")
_NUMBER = struct.Struct(">I")
_LAST, _PART, _OUT, _PONG = b"JjOp"
CALL, CALL_PART, CANCEL, TAKEN, PING, DATA, DATA_PART = b"CcXWPDd"


class Broken(Exception):
    """What comes is no stream of ours, and there is no way back into one."""


class Outgoing(object):
    """What one call has to send: records as far as the host takes them, then the answer."""

    def __init__(self, ref):
        # type: (int) -> None
        self.ref = ref
        self.source = None  # type: object
        self.credit = WINDOW
        self.listed = False  # whether the sender has it in its ring
        self._body = None  # type: object
        self._at = 0

    def ended(self):
        # type: () -> bytes
        """The answer, asked for when the last record has been taken."""
        raise NotImplementedError

    def failed(self, error):
        # type: (OSError) -> bytes
        """The answer where the records cannot be read."""
        raise error

    def over(self):
        """Everything has been handed to the pipe."""

    def put(self, body):
        # type: (bytes) -> None
        self._body = body

    def frame(self):
        # type: () -> object
        """The next frame, or None where there is nothing to send now."""
        source = self.source
        if source is not None:
            try:
                data = source.take(min(PIECE, self.credit)) if self.credit > 0 else b""
            except OSError as error:
                data, source.closed, self._body = b"", True, self.failed(error)
            if data:
                self.credit -= len(data)
                return _HEAD.pack(len(data) + 4, _OUT, self.ref) + data
            if not source.closed or (self.credit <= 0 and source.more()):
                return None
            self.source = None
            source.close()
            if self._body is None:
                self._body = self.ended()
        body, at = self._body, self._at
        if body is None:
            return None
        left = len(body) - at
        if left <= PIECE:
            self._body = None
            self.over()
            return b"".join((_HEAD.pack(left + 4, _LAST, self.ref), memoryview(body)[at:]))
        self._at = at + PIECE
        return b"".join((_HEAD.pack(PIECE + 4, _PART, self.ref), memoryview(body)[at:at + PIECE]))

    def is_large(self):
        # type: () -> bool
        """Whether there is much to send now: an answer, or the records of a cell that is over."""
        source = self.source
        if source is not None and source.closed and source.size() >= widening.LARGE:
            return True
        return self._body is not None and len(self._body) >= widening.LARGE


class Sender(object):
    """Writes frames to a pipe that never blocks us: one call's piece after another's, as the pipe takes them."""

    def __init__(self, loop_, fd, broken):
        # type: (loop.Loop, int, object) -> None
        self._loop = loop_
        self._fd = fd
        self._broken = broken
        self._ring = deque()  # type: deque
        self._urgent = []  # type: list
        self._rest = None  # type: object
        self._width = widening.Widening(loop_, fd)
        os.set_blocking(fd, False)
        loop_.watch(fd, self._ready, 0)  # errors are told even when nothing is asked for

    def answer(self, number, body):
        # type: (int, bytes) -> bool
        """Send a whole answer at once; False where it has to take turns."""
        if self._rest is not None or self._ring or len(body) > PIECE:
            return False
        self._write(_HEAD.pack(len(body) + 4, _LAST, number) + body)
        return True

    def enlist(self, call):
        # type: (Outgoing) -> None
        """There is something of this call to send."""
        if not call.listed:
            call.listed = True
            self._ring.append(call)
            if self._rest is None:
                # An answer that is alone goes out in one go. What others have to send then waits for what is in the pipe.
                if len(self._ring) == 1 and call.is_large():
                    self._width.widen()
                self._send()

    def forget(self, call):
        # type: (Outgoing) -> None
        """Nobody waits for what this call still has. A frame that has been begun is sent to its end."""
        if call.listed:
            call.listed = False
            self._ring.remove(call)

    def pong(self):
        # type: () -> None
        self.say(_HEAD.pack(4, _PONG, 0))

    def say(self, data):
        # type: (bytes) -> None
        """Send something short as soon as the frame that has begun is out."""
        if self._rest is not None or self._ring:
            self._urgent.append(data)
        else:
            self._write(data)

    def _send(self):
        room = TURN_MAX
        while self._rest is None and (self._ring or self._urgent):
            if len(self._ring) > 1 and not self._width.narrow():
                self._pause()
                return
            data = self._batch()
            if data:
                room -= len(data)
                self._write(data)
            if room <= 0 and self._rest is None:
                self._rest = memoryview(b"")
                self._loop.watch(self._fd, self._ready, select.POLLOUT)

    def _pause(self):
        """Several have something to send: no more goes into a wide pipe than into any other, so that none waits for much."""
        self._rest = memoryview(b"")
        self._loop.watch(self._fd, self._ready, 0)
        self._loop.at(self, time.monotonic() + _DRAINED_AFTER, lambda: self._ready(select.POLLOUT))

    def _batch(self):
        """Frames up to the size of a piece: small ones go out together."""
        parts, size = self._urgent, sum(map(len, self._urgent))
        self._urgent = []
        ring = self._ring
        while ring and size < PIECE:
            call = ring.popleft()
            call.listed = False
            frame = call.frame()
            if frame is not None:
                parts.append(frame)
                size += len(frame)
                if not call.listed:
                    call.listed = True
                    ring.append(call)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _write(self, data):
        try:
            written = os.write(self._fd, data)
        except BlockingIOError:
            written = 0
        except OSError as error:
            if error.errno != errno.EINTR:
                self._stop()
                return
            written = 0
        if written < len(data):
            if self._rest is None:
                self._loop.watch(self._fd, self._ready, select.POLLOUT)
            self._rest = memoryview(data)[written:]
        elif self._rest is not None:
            self._rest = None
            self._loop.watch(self._fd, self._ready, 0)

    def _ready(self, events):
        if self._rest is None or events & loop.GONE and not events & select.POLLOUT:
            self._stop()
            return
        if self._rest:
            self._write(self._rest)
        else:
            self._rest = None
            self._loop.watch(self._fd, self._ready, 0)
        self._send()

    def _stop(self):
        """Nobody reads any more."""
        self._ring.clear()
        self._width.close()
        self._loop.cancel(self)
        self._loop.unwatch(self._fd)
        self._broken()


class Inlet(object):
    """Takes frames apart as they come, and calls together whose pieces have come."""

    def __init__(self, handlers):
        # type: (dict) -> None
        self._handlers = handlers  # by kind: function of the call's number and the rest of the payload
        self._pending = b""

    def feed(self, data):
        # type: (bytes) -> None
        if self._pending:
            data = self._pending + data
        at, size = 0, len(data)
        while size - at >= 5:
            length, kind = _PREFIX.unpack_from(data, at)
            if not 4 <= length <= FRAME_MAX:
                raise Broken("a frame of %d bytes" % length)
            end = at + 5 + length
            if end > size:
                break
            handler = self._handlers.get(kind)
            number = _NUMBER.unpack_from(data, at + 5)[0]
            payload = data[at + 9:end]
            at = end
            if handler is not None:
                handler(number, payload)
        self._pending = data[at:] if at else data
