"""The record file of a cell as its readers see it: whole records, in one go or piece by piece."""

import os
import struct

STREAM_MAX = 4 << 20
CALLS = (b"t", b"w")  # of records that somebody waits for
_RECORD = struct.Struct(">cI")


def open_records(path):
    """A descriptor of the file, or -1 where there is none (yet)."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return -1


def read_records(path, offset, limit=STREAM_MAX, probe=False):
    """Whole records from `offset` on, about `limit` bytes, but at least one if there is one."""
    fd = open_records(path)
    if fd < 0:
        return b""
    try:
        data = os.pread(fd, 65536 if probe else limit, offset)
        if len(data) >= _RECORD.size:
            first = _RECORD.size + _RECORD.unpack_from(data)[1]
            if first > len(data):
                # A record larger than an answer should be, or one that is still being written.
                if os.fstat(fd).st_size - offset < first:
                    return b""
                data += os.pread(fd, first - len(data), offset + len(data))
    finally:
        os.close(fd)
    return data[:_whole(data)]


def _whole(data):
    """How many bytes at the start of `data` are whole records."""
    at = 0
    while at + _RECORD.size <= len(data):
        end = at + _RECORD.size + _RECORD.unpack_from(data, at)[1]
        if end > len(data):
            break
        at = end
    return at


def split(data):
    """Kind and payload of each whole record."""
    at = 0
    while at + _RECORD.size <= len(data):
        kind, length = _RECORD.unpack_from(data, at)
        at += _RECORD.size + length
        if at <= len(data):
            yield kind, data[at - length:at]


class Glance(object):
    """Looks for calls of tools among the records of a file; at the head of each once."""

    def __init__(self, offset):
        # type: (int) -> None
        self._at = offset

    def finds_call(self, path):
        # type: (str) -> bool
        """Whether there is one among what has been added since the last time."""
        fd = open_records(path)
        if fd < 0:
            return False
        try:
            while True:
                data = os.pread(fd, 65536, self._at)
                at = 0
                while at + _RECORD.size <= len(data):
                    kind, length = _RECORD.unpack_from(data, at)
                    if kind in CALLS:
                        return True
                    at += _RECORD.size + length
                if not at or self._at + at > os.fstat(fd).st_size:
                    return False  # the last is still being written
                self._at += at
        finally:
            os.close(fd)


class Tape(object):
    """A record file that is taken in pieces, cut anywhere; none is begun before it is there wholly, so that all pieces together can be whole records."""

    def __init__(self, path, offset):
        # type: (str, int) -> None
        self.whole = offset  # as far as whole records have been taken
        self.closed = False  # nothing will be added to the file any more
        self._path = path
        self._fd = -1
        self._at = offset  # as far as anything has been taken
        self._end = offset  # where the record ends that has been begun
        self._first = offset
        self._goal = None  # type: object  # no record is begun past this

    def stop(self):
        # type: () -> None
        """Come to an end soon: with what one answer can hold where nothing has been taken yet, else with the next piece."""
        if self._goal is None:
            self._goal = self._at + (STREAM_MAX if self._at == self._first else 65536)
            self.closed = True

    def take(self, limit):
        # type: (int) -> bytes
        """The next piece, at most `limit` bytes; empty where there is nothing now."""
        at, end = self._at, self._end
        if limit <= 0 or (self._fd < 0 and not self._open()):
            return b""
        data = os.pread(self._fd, max(limit, _RECORD.size), at)
        limit = min(limit, len(data))
        cut = end - at
        whole = self.whole if cut > limit else end
        last = limit if self._goal is None else min(limit, self._goal - at)
        while cut < last and cut + _RECORD.size <= len(data):
            after = cut + _RECORD.size + _RECORD.unpack_from(data, cut)[1]
            if after > len(data) and at + after > os.fstat(self._fd).st_size:
                break  # it is still being written
            whole = at + (after if after <= limit else cut)
            cut = after
        self._end = at + cut
        if cut < limit:
            limit = cut
        self.whole = whole
        self._at = at + limit
        return data if limit == len(data) else data[:limit]

    def more(self):
        # type: () -> bool
        """Whether there is something to take now."""
        if self._at < self._end:
            return True
        if (self._goal is not None and self._at >= self._goal) or (self._fd < 0 and not self._open()):
            return False
        head = os.pread(self._fd, _RECORD.size, self._at)
        return len(head) == _RECORD.size and self._at + _RECORD.size + _RECORD.unpack(head)[1] <= os.fstat(self._fd).st_size

    def size(self):
        # type: () -> int
        """How much the file holds that has not been taken."""
        return os.fstat(self._fd).st_size - self._at if self._fd >= 0 or self._open() else 0

    def left(self):
        # type: () -> bool
        """Whether it came to an end before the file did."""
        return self._goal is not None and bool(read_records(self._path, self.whole, probe=True))

    def _open(self):
        self._fd = open_records(self._path)
        return self._fd >= 0

    def close(self):
        # type: () -> None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Given(object):
    """Bytes that are there already, taken as a tape is."""

    closed = True

    def __init__(self, data):
        # type: (bytes) -> None
        self._rest = memoryview(data)

    def take(self, limit):
        piece, self._rest = self._rest[:limit], self._rest[limit:]
        return bytes(piece)

    def more(self):
        return bool(self._rest)

    def size(self):
        return len(self._rest)

    def stop(self):
        pass

    def close(self):
        self._rest = self._rest[:0]
