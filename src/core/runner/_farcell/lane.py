"""The lane: a host's short way to the interpreter, past a supervisor that sleeps. Two pipes, and a page of memory that tells where a cell stands.

The supervisor stays the one who answers for every cell. Whatever wakes it, it looks into the page first and adopts a cell that runs there; only one
that came to its end unnoticed, and left no output behind, was answered by the interpreter itself.
"""

import fcntl
import os
import struct
import termios
import time

from . import frames, osdep, wire
from .lane_page import (
    ADOPTED, DIRECT, ENDED, ENDING, FRAME_MAX, FREE, LATE, NEXT, NUMBER, PLAIN, READS, RUNNING, SENT, SEQ, STATE, TAKING, VIA)
from .guarded import BUILTINS as __builtins__

try:
    import mmap
except ImportError:  # not every Python is built with it
    mmap = None  # type: ignore

_PIPE = 4 * FRAME_MAX
MAX_OUTPUT = 64 << 20

_CELL = struct.Struct('=QQQQQ32s')
_CELL_AT = NUMBER * 8
_HIGHEST = (1 << 32) - 1
_ENDING_SECONDS = 0.05   # from ENDING to what follows it are a few instructions; only SIGSTOP can make it long
_HEX = frozenset(b'0123456789abcdef')

# Bound early: a cell may replace them, and that must cost only its own output.
_read, _write, _ioctl, _monotonic = os.read, os.write, fcntl.ioctl, time.monotonic
_Blocked = BlockingIOError
_FIONREAD = termios.FIONREAD
_ZERO = struct.pack('i', 0)


def possible():
    # type: () -> bool
    """Whether this machine and this Python can have lanes."""
    # Both sides rely on seeing the other's words in the order in which they were written; other processors promise less.
    return osdep.LINUX and mmap is not None and os.uname()[4] in ("x86_64", "i686")


def make():
    # type: () -> object
    """The supervisor's side, or None where there can be none."""
    if not possible():
        return None
    try:
        return Lane(mmap.mmap(-1, mmap.PAGESIZE), pipes())
    except (OSError, ValueError):
        return None


def pipes(size=_PIPE):
    # type: (int) -> list
    """Both ends of the request's pipe and of the reply's."""
    fds = []  # type: list
    try:
        fds.extend(os.pipe())
        fds.extend(os.pipe())
        for fd in fds:
            os.set_blocking(fd, False)
        for fd in fds[1::2]:
            osdep.set_pipe_size(fd, size)  # pipe pages are counted per user, and these need few
        return fds
    except OSError:
        for fd in fds:
            os.close(fd)
        raise


class Lane(object):
    """What the supervisor holds. It keeps all ends open, so that neither pipe ends when an interpreter is replaced."""

    shared = False  # whether others than one host use it, so that requests may come as files at any time
    _count = 'seq'  # the field of a request that counts the cells of the lane

    def __init__(self, memory, fds):
        # type: (object, list) -> None
        self.memory = memory
        self.words = memoryview(memory).cast('Q')
        self.take_fd, self._request_fd, self._reply_fd, self.answer_fd = fds
        self._number = 0

    def describe(self):
        # type: () -> dict
        """What the host is told. By the inode numbers it knows that it opened these very pipes."""
        ends = self._request_fd, self._reply_fd
        return {"pid": os.getpid(), "request": ends[0], "reply": ends[1], "inodes": [os.fstat(fd).st_ino for fd in ends]}

    def track(self, *args):
        # type: (object) -> Track
        """The interpreter's side of it."""
        return Track(self, *args)

    def next_number(self):
        # type: () -> int
        number = max(self._number, self.words[NEXT]) + 1
        if number > _HIGHEST:  # the cell's own code has been in the page
            number = self._number + 1
        self._number = self.words[NEXT] = number
        return number

    def standing(self):
        # type: () -> tuple
        """(state, number) of the last cell in the page. In this order: unless a cell is just being taken, all of the number's own is there."""
        words = self.words
        number = words[NUMBER]
        return words[STATE], number

    def adopt(self, number, alive):
        # type: (int, object) -> int
        """Mark a cell as the supervisor's; its state from then on: SENT if it was answered before, else it will not be; TAKING if it is over."""
        words = self.words
        words[ADOPTED] = number
        osdep.bytes_available(self.take_fd)  # a system call with a lock: the mark is out before the state is read
        end = _monotonic() + _ENDING_SECONDS
        while words[STATE] in (ENDING, DIRECT, TAKING) and words[NUMBER] == number and alive() and _monotonic() < end:
            time.sleep(0.0001)
        state = words[STATE]
        # What stands there may be of the next cell by now, which nobody could have put before this one was answered.
        return state if words[NUMBER] == number else SENT

    def cell_fields(self):
        # type: () -> object
        """(number, id, started, timeout in seconds or None, max_output), or None if that cannot be."""
        number, _, started, timeout, limit, cell_id = _CELL.unpack_from(self.memory, _CELL_AT)
        if not 0 < number <= _HIGHEST or not _HEX.issuperset(cell_id) or timeout > 1 << 50:
            return None
        self._number = max(self._number, number)
        seconds = (timeout - 1) / 1000.0 if timeout else None
        return number, cell_id.decode('ascii'), min(started / 1e9, _monotonic()), seconds, min(limit, MAX_OUTPUT)

    def steal(self):
        # type: () -> object
        """A request that no interpreter has taken yet, or None."""
        try:
            data = _read(self.take_fd, 2 * FRAME_MAX)
        except OSError:
            return None
        payload = data[frames.HEADER.size:]
        try:
            self.words[SEQ] = wire.decode(payload)[self._count]  # not that of the hand-over, which may be late for the cell before
        except (ValueError, TypeError, KeyError, OverflowError):
            pass
        return payload or None

    def last_end(self):
        # type: () -> float
        return self.words[ENDED] / 1e9

    def reading(self):
        # type: () -> None
        """Said before and after the output pipes are read: what has left them is in the supervisor's hands, and no cell may be called quiet."""
        self.words[READS] += 1

    def bar(self):
        # type: () -> bool
        """From here on nothing is run from the lane; False where something is just being taken."""
        return True

    def unbar(self):
        # type: () -> None
        """Cells may take the lane again."""

    def absorb(self, seen):
        # type: (object) -> None
        """Add the ids that the interpreter has taken since the last time."""

    def lost(self):
        # type: () -> object
        """(number, id) of a cell that an interpreter which has ended had taken, and not begun, where that can be told."""

    def settled(self, number):
        # type: (int) -> None
        """A cell that may have been in the lane has its reply in a file."""


class Track(object):
    """What the interpreter holds."""

    def __init__(self, lane, move, outputs, kernel, generation, send):
        # type: (Lane, object, list, str, int, object) -> None
        self._send = send
        self._memory = lane.memory
        self._words = lane.words
        self.read_fd = move(lane.take_fd)
        self._write_fd = move(lane.answer_fd)
        os.close(lane.take_fd)
        os.close(lane.answer_fd)
        self._outputs = outputs
        self._held = bytearray(4)    # for a count of bytes; to give bytes costs the double
        self._last = b''
        self._number = self._started = self._reads = 0
        self.named(kernel, generation)

    def named(self, kernel, generation):
        # type: (str, int) -> None
        """Whose it is; once more where that was not known at first."""
        self._kernel = wire.encode(kernel).decode('utf-8')
        # All that is the same in every reply of this interpreter: a cell of nothing is to cost next to nothing.
        self._form = (
            '{"v":1,"status":"ok","stdout":"","stderr":"","result":%%s,"error":null,"exit_code":0,"signal":null,'
            '"output":{"stdout_bytes":0,"stdout_omitted":0,"stderr_bytes":0,"stderr_omitted":0,"spill":null},'
            '"tools":{"calls":0,"errors":[]},"duration_ms":%%.3f,"queued_ms":0.000,"cell":{"id":"%%s","number":%%d},'
            '"kernel":{"id":%s,"generation":%d,"state":"kept","note":null},"displays":[]}' % (self._kernel.replace('%', '%%'), generation))

    def note(self, cell_id):
        # type: (str) -> None
        """A cell that has come by the supervisor."""

    def take(self):
        # type: () -> object
        """The request in the pipe, with its number; None where the supervisor was quicker, or is to run it."""
        words = self._words
        before = words[STATE]
        words[STATE] = TAKING
        try:
            data = _read(self.read_fd, 2 * FRAME_MAX)
        except OSError:
            data = b''
        request = None
        if data:
            try:
                request = self._accept(data[5:])
            except (ValueError, KeyError, TypeError, AttributeError, struct.error, UnicodeError):
                pass             # nothing that our host sends; the supervisor answers when it is asked
        if request is None:
            words[STATE] = before
            return None
        words[STATE] = RUNNING
        self._reads = words[READS]
        return request

    def _accept(self, payload):
        """The request if it is to run here and now. An exception leaves the page as it was."""
        request = wire.decode(payload)
        if request['id'].encode('ascii') == self._last:
            raise ValueError
        number = self._words[NEXT] + 1
        self._enter(request, number, request['seq'])
        self._words[NEXT] = number
        request['number'] = number
        return request

    def _enter(self, request, number, seq):
        """Write into the page what is about to run."""
        name, timeout = request['id'].encode('ascii'), request['timeout_ms']
        if len(name) != 32 or type(request['code']) is not str:
            raise ValueError
        started = _monotonic()
        _CELL.pack_into(self._memory, _CELL_AT, number, seq, int(started * 1e9), 0 if timeout is None else timeout + 1, request['max_output'], name)
        self._last, self._number, self._started = name, number, started

    def answer(self, reply, shown):
        # type: (dict, bool) -> bool
        """Answer the host if the cell was a quiet one that nobody has noticed; else the supervisor has to do it."""
        words = self._words
        words[STATE] = ENDING
        if not shown and reply['status'] == 'ok' and self._unnoticed():
            try:
                result = reply['result']
                now = _monotonic()
                told = 'null' if result is None else wire.encode(result).decode('utf-8')
                text = self._form % (told, (now - self._started) * 1000, self._last.decode('ascii'), self._number)
                words[ENDED] = int(now * 1e9)
                if self._tell(text.encode('utf-8')):
                    return True
            except (OSError, ValueError, TypeError):
                pass             # a host that does not read, or a result that is none: the other way tells
        words[STATE] = VIA
        return False

    def _tell(self, reply):
        """Hand the reply to the host; False where it is too large for that."""
        frame = frames.pack(b'R', reply)
        if len(frame) > FRAME_MAX:
            return False
        self._words[STATE] = DIRECT
        _write(self._write_fd, frame)
        self._words[STATE] = SENT
        return True

    def _unnoticed(self):
        """Order matters: what was read from an empty pipe was counted before."""
        words, reads = self._words, self._reads
        try:
            held = self._held
            for fd in self._outputs:
                _ioctl(fd, _FIONREAD, held)
                if held != _ZERO:
                    return False
        except OSError:
            return False
        return words[READS] == reads and not reads & 1 and words[ADOPTED] != self._number and not words[LATE] and words[PLAIN] == 1

    def close(self):
        for fd in (self.read_fd, self._write_fd):
            try:
                os.close(fd)
            except OSError:
                pass
