"""What a cell printed: a bounded head and tail for the reply, and a bounded record file for everything in between."""

import errno
import os
import struct
from collections import deque

_HEADER = struct.Struct(">cI")
_CHUNK = 64 * 1024
_MARKER = "[\u2026 %d bytes omitted \u2026]"


def record(kind, payload):
    # type: (bytes, bytes) -> bytes
    """One output record: kind, length, payload."""
    return _HEADER.pack(kind, len(payload)) + payload


class Capture(object):
    """Head and tail of one stream with exact counts; its memory stays within the limit and a chunk, whatever comes."""

    __slots__ = ("total", "_head", "_head_room", "_tail", "_tail_size", "_tail_limit", "_tail_done", "_hole")

    def __init__(self, limit):
        # type: (int) -> None
        self.total = 0
        self._head = bytearray()
        self._head_room = limit - limit // 2
        self._tail = ()  # type: object
        self._tail_size = 0
        self._tail_limit = limit // 2
        self._tail_done = 0  # bytes that fell out between head and tail
        self._hole = 0  # bytes that an absorbed capture had lost already

    def feed(self, data):
        # type: (bytes) -> None
        self.total += len(data)
        room = self._head_room
        if room:
            if len(data) <= room:
                self._head += data
                self._head_room = room - len(data)
                return
            self._head += data[:room]
            self._head_room = 0
            data = data[room:]
        self._push(data)

    def _push(self, data):
        limit = self._tail_limit
        tail = self._tail
        if tail == ():
            tail = self._tail = deque()
        if len(data) >= limit:
            tail.clear()
            self._tail_done += self._tail_size + len(data) - limit
            self._tail_size = limit
            if limit:
                tail.append(bytearray(data[-limit:]))
            return
        # Small pieces are gathered, so that a flood of single characters costs no object each.
        if tail and len(tail[-1]) < _CHUNK:
            tail[-1] += data
        else:
            tail.append(bytearray(data))
        self._tail_size += len(data)
        while self._tail_size - len(tail[0]) >= limit:
            dropped = len(tail.popleft())
            self._tail_size -= dropped
            self._tail_done += dropped

    def absorb(self, other):
        # type: (Capture) -> None
        """Take over what another capture holds, as if it had been printed here first."""
        text, omitted = other.text_bytes()
        if text:
            self.feed(text)
            self.total += other.total - len(text)
            self._hole += omitted

    def _parts(self):
        """Head bytes, tail bytes, and how many are missing between them; cut between characters."""
        head, omitted = bytes(self._head), self._tail_done
        tail = b"".join(self._tail)
        extra = len(tail) - self._tail_limit
        if extra > 0:
            tail = tail[extra:]
            omitted += extra
        if omitted:
            cut = _incomplete_end(head)
            skip = _continuation_start(tail)
            if cut:
                head = head[:-cut]
            if skip:
                tail = tail[skip:]
            omitted += cut + skip
        return head, tail, omitted

    def is_whole(self):
        # type: () -> bool
        """Whether nothing that came is missing."""
        return not self._tail_done and not self._hole and self._tail_size <= self._tail_limit

    def text_bytes(self):
        """(bytes with the line about the omitted ones in it, omitted)."""
        if not self._tail_done and self._tail_size <= self._tail_limit:
            return b"".join([self._head] + list(self._tail)), self._hole
        head, tail, omitted = self._parts()
        if not omitted:
            return head + tail, self._hole
        line = (_MARKER % omitted).encode("utf-8")
        before = b"" if not head or head.endswith(b"\n") else b"\n"
        return head + before + line + b"\n" + tail, omitted + self._hole

    def text(self):
        """(text for the reply, omitted bytes)."""
        if not self.total:
            return "", 0
        data, omitted = self.text_bytes()
        return data.decode("utf-8", "backslashreplace"), omitted


def _incomplete_end(data):
    # type: (bytes) -> int
    """How many bytes at the end are the start of a character whose rest is missing."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        need = 4 if byte & 0xF8 == 0xF0 else 3 if byte & 0xF0 == 0xE0 else 2 if byte & 0xE0 == 0xC0 else 1
        return back if need > back else 0
    return 0


def _continuation_start(data):
    # type: (bytes) -> int
    """How many bytes at the start are the rest of a character whose beginning is missing."""
    count = 0
    while count < 3 and count < len(data) and data[count] & 0xC0 == 0x80:
        count += 1
    return count


class RecordFile(object):
    """The records of one cell, in order, up to a bound. `broken` says why it had to stop before that."""

    def __init__(self, opener, bound, in_memory=0):
        # type: (object, int, int) -> None
        self.size = 0
        self.full = False
        self.broken = ""
        self.no_room = ""
        self._opener = opener
        self._bound = bound
        self._unbound = 0  # bytes of records that the bound does not count
        self._in_memory = in_memory
        self._memory = []  # type: list
        self._fd = -1

    def add(self, records):
        # type: (list) -> bytes
        """Append the records of one pass, given as (kind, payload), with one write; gives what was taken, as bytes."""
        if self.full or self.broken:
            return b""
        room = self._bound - (self.size - self._unbound)
        parts = []
        for kind, payload in records:
            need = _HEADER.size + len(payload)
            if need > room:
                self.full = True
                # A display cut in two would be no display; of a stream the part that fits is worth having.
                payload = payload[:max(room - _HEADER.size, 0)] if kind != b"d" else b""
                need = _HEADER.size + len(payload)
                if not payload:
                    break
            parts.append(_HEADER.pack(kind, len(payload)))
            parts.append(payload)
            room -= need
        blob = b"".join(parts)
        if blob and self._write(blob):
            self.size += len(blob)
            return blob
        return b""

    def add_call(self, kind, payload):
        # type: (bytes, bytes) -> bytes
        """Append a record that others have to read, whatever the output has taken; gives it as bytes, or nothing where there is no room for it (`no_room` says why)."""
        blob = _HEADER.pack(kind, len(payload)) + payload
        before, self.broken = self.broken, ""
        if before and self._fd < 0 or not self._write(blob):
            self.no_room, self.broken = self.broken or before, before
            if self._fd < 0:
                self.broken = self.no_room
            return b""  # of an open file it was this record alone: a smaller one may fit
        self.broken = before
        self.size += len(blob)
        self._unbound += len(blob)
        return blob

    def _write(self, blob):
        if self._fd < 0:
            if self.size + len(blob) <= self._in_memory:
                self._memory.append(blob)
                return True
            if not self._open():
                return False
        try:
            done = os.write(self._fd, blob)
            while done < len(blob):
                done += os.write(self._fd, memoryview(blob)[done:])
            return True
        except OSError as error:
            self._give_up(error)
            return False

    def _open(self):
        held, self._memory = b"".join(self._memory), []
        try:
            self._fd = self._opener()
            if held:
                os.write(self._fd, held)
            return True
        except OSError as error:
            self._give_up(error)
            return False

    def _give_up(self, error):
        self.broken = errno.errorcode.get(error.errno, "error")
        if self._fd >= 0:
            try:
                os.ftruncate(self._fd, self.size)  # only whole records may stay
                os.lseek(self._fd, self.size, os.SEEK_SET)
            except OSError:
                pass

    def truncate(self):
        # type: () -> None
        """Give back the space; what it held is gone."""
        if self._fd < 0 or not self.size:
            return
        try:
            os.ftruncate(self._fd, 0)
        except OSError:
            pass
        self.size = 0
        self.broken = self.broken or "ENOSPC"

    def is_whole(self):
        # type: () -> bool
        """Whether everything has been taken that there was."""
        return not self.full and not self.broken

    def read(self, offset, size):
        # type: (int, int) -> bytes
        if self._fd < 0:
            return b"".join(self._memory)[offset:offset + size]
        try:
            return os.pread(self._fd, size, offset)
        except OSError:
            return b""

    def close(self):
        # type: () -> None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._memory = []
