"""Carries what the interpreter and its children print from the two output pipes to whoever keeps it."""

import time

from . import loop, osdep

_READ_SIZE = 256 * 1024
_PASS_LIMIT = 1 << 20  # read in one pass at most, so that a flood does not keep everything else waiting
# A trickle is gathered for a moment before it is read again: records of a few bytes would cost more than they carry.
_TRICKLE, _GATHER = 16 * 1024, 0.002
_TIMER = "gather"


class Pump(object):
    """Reads the pipes of one interpreter at a time. `sink` gets the records of one pass as a list of (kind, bytes)."""

    def __init__(self, loop_, port, sink):
        # type: (object, object, object) -> None
        self._loop = loop_
        self._port = port
        self._lane = port.lane
        self._sink = sink
        self._pipes = {}  # type: dict
        self._last = 0.0

    def attach(self, stdout_fd, stderr_fd):
        # type: (int, int) -> None
        self._pipes = {stdout_fd: b"o", stderr_fd: b"e"}
        self._listen()

    def detach(self):
        # type: () -> None
        self._hush()
        self._pipes = {}
        self._loop.cancel(_TIMER)

    def _listen(self):
        for fd in self._pipes:
            self._loop.watch(fd, self._readable)

    def _hush(self):
        for fd in self._pipes:
            self._loop.unwatch(fd)

    def _readable(self, _events):
        """One pass over both pipes, and then perhaps a rest."""
        records = []
        size = 0
        self._counted()
        for fd, kind in list(self._pipes.items()):
            size += self._read(fd, kind, records)
        if records:
            self._sink(records)
        self._counted()
        now = time.monotonic()
        if self._port.congested:
            self._hush()
            self._port.when_relieved(self._listen)
        elif 0 < size < _TRICKLE and now - self._last < 2 * _GATHER:
            self._hush()
            self._loop.at(_TIMER, now + _GATHER, self._gathered)
        if size:
            self._last = now

    def _gathered(self):
        self._listen()
        self._readable(0)

    def _read(self, fd, kind, records):
        size = 0
        while size < _PASS_LIMIT:
            data = loop.read_some(fd, _READ_SIZE)
            if not data:
                if data is not None:  # nobody can write into it any more
                    self._loop.unwatch(fd)
                    del self._pipes[fd]
                break
            records.append((kind, data))
            size += len(data)
            if len(data) < _READ_SIZE:
                break
        return size

    def take(self):
        # type: () -> None
        """Read exactly what is in the pipes now. What a child goes on to write belongs to a later cell."""
        records = []
        self._counted()
        for fd, kind in self._pipes.items():
            left = osdep.bytes_available(fd)
            while left > 0:
                data = loop.read_some(fd, min(left, _READ_SIZE))
                if not data:
                    break
                records.append((kind, data))
                left -= len(data)
        if records:
            self._sink(records)
        self._counted()

    def _counted(self):
        if self._lane is not None:
            self._lane.reading()
