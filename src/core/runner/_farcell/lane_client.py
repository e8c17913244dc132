"""A courier's end of the lane of a kernel in a directory: puts a cell in, hears its reply, or leaves it to the supervisor. Nothing here waits."""

import fcntl
import os
import struct
import sys
import termios
import time

from . import cellfiles, files, lane_files
from .fault import Fault
from .lane_page import (
    ACKED, BARRED, FRAME_MAX, GIVEN, KEPT, KIND, LENGTH, NAME, NUMBER, PASSED, PUT, PUT_ID, REPLY, REPLY_AT, REPLY_MAX, SEQ, SETTLED, SIZE, STATE, TAKING, VERSION)
from .strict import quote, quote_ascii

try:
    import mmap
except ImportError:  # not every Python is built with it
    mmap = None  # type: ignore

TIMEOUT_MAX = 10 ** 12
NUMBER_MAX = 10 ** 9
# How long a reply is looked for before it is waited for, about twice what it takes to be woken; and what a cell may have taken whose next is looked for.
_LOOKING, _BRISK = 0.00015, 0.00025
_UNKNOWN_MAX = 16  # numbers that are looked up; a cell that goes as a file costs less than more of them
_HEADER = struct.Struct(">IB")
_ZERO = struct.pack("i", 0)
_EX = fcntl.LOCK_EX | fcntl.LOCK_NB
_UN = fcntl.LOCK_UN
_HEX = frozenset("0123456789abcdef")
# Of a request just what there is to say; the number comes last, when there is one.
_REQUEST = '{"v":1,"id":"%s","code":%s,"timeout_ms":%s,"max_output":%d,"echo":"%s","number":'
_ROOM = FRAME_MAX - _HEADER.size - len("%d}" % NUMBER_MAX)


def is_eligible(request):
    """Whether a request may take the lane. What the supervisor would refuse is left to it."""
    get = request.get
    timeout, limit, cell_id = get("timeout_ms"), get("max_output", 1 << 20), get("id")
    return (
        not get("cwd") and not get("env") and not get("reset") and not get("tools") and type(get("v")) is int and get("v") == 1 and type(get("code")) is str and get("echo", "last") in ("last", "all")
        and (timeout is None or type(timeout) is int and 0 <= timeout <= TIMEOUT_MAX) and type(limit) is int and limit >= 0
        and type(cell_id) is str and len(cell_id) == 32 and _HEX.issuperset(cell_id))


def _compose(request):
    """The request without its number and what follows."""
    get = request.get
    timeout, code = get("timeout_ms"), request["code"]
    text = _REQUEST % (request["id"], quote(code), "null" if timeout is None else timeout, get("max_output", 1 << 20), get("echo", "last"))
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:  # lone surrogates
        return text.replace(quote(code), quote_ascii(code)).encode("ascii")


class Lane:
    """One kernel's lane, open. One cell at a time: `number` is that of the cell which is under way in it, or 0.

    A cell may be offered if nothing else that came through this courier is outstanding at its kernel, and if it is not sent again.
    Until its reply has been taken or it was handed over, `reply_fd` is to be polled.
    """

    def __init__(self, directory, fds, memory, shelf, own_shelf):
        self.directory = directory
        self.number = 0
        self.ended = False  # the kernel is dead: nobody has the other ends any more
        self.direct = False  # whether the last reply came from the interpreter itself: the cell had no output
        self._request_fd, self.reply_fd, self._lock_fd = fds
        self._eager = False  # the cell before was so quick that to look for the reply is over sooner than to be woken
        self._put_at = 0.0
        self._shelf, self._own_shelf = shelf, own_shelf
        self._memory = memory
        self._words = memoryview(memory).cast("Q")

    @classmethod
    def open(cls, directory, record, shelf=None):
        """The lane that kernel.json tells of, or None: there is none, or none that can be had from here. `shelf`: the courier's, if it has one."""
        fds, memory = [], None  # type: list, object
        try:
            told = record["lane"]
            for name, flags in (("request", os.O_WRONLY), ("reply", os.O_RDONLY)):
                fds.append(os.open("/proc/%d/fd/%d" % (told["pid"], told[name]), flags | os.O_NONBLOCK | os.O_CLOEXEC))
            # In another pid namespace than the supervisor's, its pid is somebody else's here.
            if [os.fstat(fd).st_ino for fd in fds] == told["inodes"]:
                fds.append(os.open(os.path.join(directory, NAME), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
                if os.fstat(fds[2]).st_size == SIZE:
                    memory = mmap.mmap(fds[2], SIZE)
                    if int.from_bytes(memory[VERSION * 8:VERSION * 8 + 8], sys.byteorder) == KIND:
                        return cls(directory, fds, memory, shelf or cellfiles.Shelf(directory), shelf is None)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, Fault):
            pass
        for fd in fds:
            os.close(fd)
        if memory is not None:
            memory.close()
        return None

    def close(self):
        """Give everything back. A cell that is under way is the supervisor's from then on."""
        if self.number:
            self.hand_over().forget()
        self._words.release()
        self._memory.close()
        for fd in (self._request_fd, self.reply_fd, self._lock_fd):
            os.close(fd)
        if self._own_shelf:
            self._shelf.close()

    # -- putting a cell in ---------------------------------------------------------------------------------------------

    def offer(self, request, acks=(), known=None):
        """Put a cell into the lane; False where it has to be shipped as a file.

        `acks` are numbers of replies that the host has; they are seen to if the answer is True. `known` is what cellfiles.acknowledge() wants to know.
        """
        if self.number or self._words[BARRED] or not is_eligible(request) or len(request["code"]) > FRAME_MAX:
            return False
        text = _compose(request)
        if len(text) > _ROOM or not self._lock():
            return False
        try:
            if self._is_at_rest():
                self._see_to(acks, known)
                self.number = self._put(request["id"], text)
        except OSError:
            pass  # no room to keep the reply of the cell before: a file tells of that as it should be told
        finally:
            if not self.number:
                self._unlock()
        return self.number != 0

    def _lock(self):
        try:
            fcntl.flock(self._lock_fd, _EX)
            return True
        except OSError:
            return False

    def _unlock(self):
        fcntl.flock(self._lock_fd, _UN)

    def _is_at_rest(self):
        """Whether the cell before is over and the supervisor has none of its own. Asked with the lock, so that nobody else begins one."""
        words = self._words
        put = words[PUT]
        if (words[SEQ] != put or words[REPLY] != put and words[SETTLED] < put) and not self._never_came():
            return False
        last = words[NUMBER]
        return not words[BARRED] and (words[REPLY] == last or words[SETTLED] >= last)

    def _never_came(self):
        """The cell before was announced by one who died before it was put. Whoever takes a cell says so first, and then what it has taken: the order matters."""
        words = self._words
        return (
            fcntl.ioctl(self._request_fd, termios.FIONREAD, _ZERO) == _ZERO and words[STATE] != TAKING and not words[BARRED]
            and words[GIVEN] < words[PUT] and words[SEQ] < words[PUT])

    def _follows(self, number):
        """Whether all that have numbers before are over. What was put is, or we would not be here; requests in files may wait that nobody has seen."""
        put = self._words[PUT]
        first = max(put, self._words[PASSED]) + 1
        if number <= first:
            return number > put
        # Numbers that no cell has, because their courier died, or that were withdrawn: else they wait.
        return number - first <= _UNKNOWN_MAX and not self._shelf.has_open(first, number)

    def _see_to(self, acks, known):
        """The page is about to be written anew: what is in it was heard by its host, or is kept in a file."""
        words = self._words
        last = words[REPLY]
        if last and last != words[ACKED] and last != words[KEPT]:
            if last not in acks:
                lane_files.keep(self.directory, lane_files.Page(self._lock_fd))
            else:
                words[ACKED] = last
        if acks:
            others = [number for number in acks if number != words[ACKED]]
            if others:
                cellfiles.acknowledge(self.directory, others, known)

    def _put(self, cell_id, text):
        """Send the request, wholly or not at all; gives its number, or 0."""
        words = self._words
        number = self._shelf.take_number(self._follows)
        if not number:  # none could be had; or `next` was lost, and begins anew
            return 0
        rest = b"%d}" % number
        frame = b"".join((_HEADER.pack(len(text) + len(rest), 81), text, rest))
        # From here on the page tells whoever asks for this id that it may be in the lane.
        self._memory[PUT_ID * 8:PUT_ID * 8 + 32] = cell_id.encode("ascii")
        words[PUT] = number
        self._put_at = time.monotonic()
        try:
            os.write(self._request_fd, frame)
        except OSError:  # all who could read it are dead
            words[PUT] = words[SEQ]
            return 0
        return number

    # -- what becomes of it --------------------------------------------------------------------------------------------

    def comes_soon(self):
        """Whether the reply is there in a moment, which is looked for. One that takes longer costs that moment once."""
        if not self._eager:
            return False
        words, number, end = self._words, self.number, self._put_at + _LOOKING
        while words[REPLY] != number:
            os.sched_yield()
            if time.monotonic() > end:
                self._eager = False
                return False
        return True

    def take_reply(self):
        """The reply of the cell that is under way, as JSON; None if it is not there yet. To be asked when `reply_fd` is ready."""
        try:
            # The page tells what there is; this rings, and may be somebody else's bell.
            self.ended = not os.read(self.reply_fd, 4096)
        except BlockingIOError:
            pass
        return self._reply()

    def _reply(self):
        words, number = self._words, self.number
        if not number:
            return None
        if words[REPLY] == number:
            data = self._memory[REPLY_AT:REPLY_AT + min(words[LENGTH], REPLY_MAX)]
            self.direct = True
            self._eager = time.monotonic() - self._put_at < _BRISK
        elif words[SETTLED] >= number:
            data = files.read_bytes(files.cell_path(self.directory, "res", number))
            self.direct = False
        else:
            return None
        if data is not None:
            self.number = 0
            self._unlock()
        return data

    def hand_over(self):
        """Leave the cell to the supervisor, after 2 ms or whenever nobody is to wait for it here. From then on it is one with files."""
        number, self.number = self.number, 0
        handed = Handed(self.directory, number)
        self._unlock()
        return handed


class Handed:
    """A cell on its way from the lane into files. It has none until `arrived()`, which may be asked whenever a bell rings."""

    def __init__(self, directory, number):
        self.number = number
        self._stem = os.path.join(directory, "cells", "ctl_" + os.urandom(8).hex())
        self._pending = True
        try:
            files.atomic_write(self._stem + ".json", files.to_json({"v": 1, "do": "lane"}))
            files.poke(os.path.join(directory, "wake"))
        except OSError:
            self._pending = False  # no room, or no kernel: whoever looks for it will ask

    def arrived(self):
        """Whether the files tell about the cell by now. Of a dead kernel they never will by themselves: look for it then."""
        if self._pending and files.remove(self._stem + ".done"):
            self._pending = False
        return not self._pending

    def forget(self):
        """Nobody is going to ask."""
        if self._pending and files.remove(self._stem + ".done"):
            self._pending = False
