"""The supervisor's event loop: one poll(2), named timers, signals as events, and writes that never block."""

import _signal
import errno
import math
import os
import select
import time
from collections import deque

from . import osdep
from .widening import LARGE, Widening

READ = select.POLLIN
GONE = select.POLLERR | select.POLLHUP | select.POLLNVAL
_LONGEST = 3600.0
_PARTS_MAX = 64


class Loop(object):
    """Calls handlers when descriptors are ready and timers are due; everything happens in one thread."""

    def __init__(self):
        # type: () -> None
        self._poll = select.poll()
        self._handlers = {}  # type: dict
        self._timers = {}  # type: dict
        self._signal_pipe = -1
        self._signals = set()  # type: set
        self._signal_handlers = {}  # type: dict
        self.woken = _asleep  # called before anything else is, in every turn

    def watch(self, fd, handler, events=READ):
        """Call `handler(events)` when the descriptor is ready; watching it again changes what for."""
        self._handlers[fd] = handler
        self._poll.register(fd, events)

    def unwatch(self, fd):
        # type: (int) -> None
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def __contains__(self, fd):
        # type: (int) -> bool
        return fd in self._handlers

    def at(self, name, when, function):
        """Call `function` once at a moment of the monotonic clock; a timer of the same name is replaced. No system call."""
        self._timers[name] = (when, function)

    def cancel(self, name):
        # type: (str) -> None
        self._timers.pop(name, None)

    def armed(self, name):
        # type: (str) -> bool
        return name in self._timers

    def turn(self):
        # type: () -> None
        """Wait for the next event or timer and handle all that is due."""
        timers = self._timers
        wait = _LONGEST
        if self._signals:  # they came during a pause
            self._signalled(0)
            wait = 0.0
        elif timers:
            wait = min(min(timers.values(), key=_when)[0] - time.monotonic(), _LONGEST)
        ready = self._poll.poll(math.ceil(wait * 1000) if wait > 0 else 0)
        self.woken()
        for fd, events in ready:
            handler = self._handlers.get(fd)
            if handler is not None:  # an earlier handler of this turn may have closed it
                handler(events)
        if not timers:
            return
        now = time.monotonic()
        due = [name for name, timer in timers.items() if timer[0] <= now]
        for name in due:
            timer = timers.get(name)
            if timer is not None and timer[0] <= now:  # an earlier one may have changed it
                del timers[name]
                timer[1]()

    def wait_for(self, fd, seconds):
        # type: (int, float) -> bool
        """Wait for one more descriptor, or for anything else; True if it is ready. The others keep their events for the next turn."""
        poll = self._poll
        poll.register(fd, READ)
        ready = poll.poll(seconds * 1000)
        poll.unregister(fd)
        for each in ready:
            if each[0] == fd:
                return True
        return False

    def catch_signals(self, handlers):
        # type: (dict) -> None
        """Turn signals into events: `handlers` maps numbers to functions."""
        reader, writer = os.pipe()
        for fd in (reader, writer):
            os.set_blocking(fd, False)
        osdep.set_pipe_size(writer, 4096)  # pipe pages are counted per user, and this one needs few
        self._signal_pipe = reader
        self._signal_handlers = handlers
        for number in handlers:
            _signal.signal(number, _nothing)
        osdep.set_wakeup_fd(writer)
        self.watch(reader, self._signalled)

    def _signalled(self, _events):
        numbers = self._signals.union(read_some(self._signal_pipe, 4096) or b"")
        self._signals = set()
        for number, function in self._signal_handlers.items():
            if number in numbers:
                function()

    def pause(self, seconds):
        # type: (float) -> None
        """Wait for a signal (a child that ended), at most that long. It is handled in the next turn all the same."""
        waiter = select.poll()
        if self._signal_pipe >= 0:
            waiter.register(self._signal_pipe, READ)
        if waiter.poll(math.ceil(seconds * 1000)):
            self._signals.update(read_some(self._signal_pipe, 4096) or b"")


def _when(timer):
    return timer[0]


def _asleep():
    pass


def _nothing(_number, _frame):
    """A signal must have a handler in Python to reach the wake-up descriptor."""


def read_some(fd, size):
    """One read of a non-blocking descriptor: bytes, b"" at its end, None when there is nothing now."""
    try:
        return os.read(fd, size)
    except BlockingIOError:
        return None
    except OSError:
        return b""


class Outbox(object):
    """Bytes on their way into a pipe; what does not fit at once waits here for its turn."""

    def __init__(self, loop, fd, broken, watch_peer=False):
        # type: (Loop, int, object, bool) -> None
        self.pending = 0
        self.low_mark = 0
        self.on_low = None  # type: object
        self._loop = loop
        self._fd = fd
        self._broken = broken
        self._watch_peer = watch_peer
        self._queue = deque()  # type: deque
        self._width = Widening(loop, fd) if watch_peer else None  # the host's pipe; others are never this busy
        os.set_blocking(fd, False)
        if watch_peer:
            loop.watch(fd, self._ready, 0)  # errors are told even when nothing is asked for

    def push(self, data):
        # type: (bytes) -> None
        if len(data) >= LARGE and self._width is not None:
            self._width.widen()
        if not self._queue:
            written = self._write(data)
            if written == len(data) or written < 0:
                return
            data = memoryview(data)[written:]
            self._loop.watch(self._fd, self._ready, select.POLLOUT)
        self._queue.append(data)
        self.pending += len(data)

    def push_all(self, parts):
        # type: (list) -> None
        """The same for large pieces that belong together, which are not put together for it."""
        if self._queue or len(parts) > _PARTS_MAX:
            self.push(b"".join(parts))
            return
        if self._width is not None:
            self._width.widen()
        written = self._write(parts, os.writev)
        if written < 0:
            return
        for part in parts:
            if written < len(part):
                self.push(memoryview(part)[written:])
            written = max(0, written - len(part))

    def close(self):
        # type: () -> None
        """Forget what waits; the descriptor is closed by its owner."""
        self._queue.clear()
        self.pending = 0
        if self._width is not None:
            self._width.close()
        self._loop.unwatch(self._fd)

    def flush(self, seconds):
        # type: (float) -> bool
        """Write out what waits, for a bounded time."""
        end = time.monotonic() + seconds
        waiter = select.poll()
        waiter.register(self._fd, select.POLLOUT)
        while self._queue:
            left = end - time.monotonic()
            if left <= 0:
                return False
            waiter.poll(math.ceil(left * 1000))
            self._ready(select.POLLOUT)
        return True

    def _write(self, data, write=os.write):
        """Bytes written, 0 when the pipe is full, -1 when nobody will ever read it."""
        try:
            return write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno == errno.EINTR:
                return 0
            self.close()
            self._broken()
            return -1

    def _ready(self, events):
        if events & GONE and not self._queue:
            self.close()
            self._broken()
            return
        while self._queue:
            data = self._queue[0]
            written = self._write(data)
            if written < 0:
                return
            self.pending -= written
            if written < len(data):
                self._queue[0] = memoryview(data)[written:]
                break
            self._queue.popleft()
        if not self._queue:
            if self._watch_peer:
                self._loop.watch(self._fd, self._ready, 0)
            else:
                self._loop.unwatch(self._fd)
        if self.on_low is not None and self.pending <= self.low_mark:
            function, self.on_low = self.on_low, None
            function()
