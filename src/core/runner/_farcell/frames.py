"""Frames between supervisor and interpreter: 4 bytes length (big endian, payload only), 1 byte kind, payload."""

import os
import struct

from .guarded import BUILTINS as __builtins__

HEADER = struct.Struct('>IB')
LIMIT = 1 << 30
LONG = 64 << 10          # longer payloads are kept from being copied

# Bound early: a cell may replace os.read or os.write, and that must cost only its own output.
_read = os.read
_readv = os.readv
_write = os.write
_Interrupted = InterruptedError


def pack(kind, payload):
    # type: (bytes, bytes) -> bytes
    """One frame as bytes; `kind` is a single byte."""
    return HEADER.pack(len(payload), kind[0]) + payload


def write_all(fd, data):
    # type: (int, bytes) -> None
    """Write everything to a blocking descriptor."""
    done = _write_some(fd, data)
    if done == len(data):
        return
    view = memoryview(data)
    while done < len(view):
        done += _write_some(fd, view[done:])


def _write_some(fd, data):
    while True:
        try:
            return _write(fd, data)
        except _Interrupted:
            continue


def read_frame(fd, limit=LIMIT):
    # type: (int, int) -> object
    """The next frame as (kind, payload), or None at the end of the stream, even in mid-frame."""
    header = _read_exactly(fd, HEADER.size)
    if header is None:
        return None
    length, kind = HEADER.unpack(header)
    if length > limit:
        raise ValueError('frame of %d bytes exceeds the limit of %d' % (length, limit))
    payload = _read_exactly(fd, length)
    if payload is None:
        return None
    return bytes((kind,)), payload


def read_next(fd, ahead, size=1 << 16):
    # type: (int, bytes, int) -> tuple
    """Like read_frame(), but reads on into what follows: (frame or None, what was read of that). Give it back the next time."""
    while len(ahead) < HEADER.size:
        data = _read_some(fd, size)
        if not data:
            return None, b''
        ahead = ahead + data if ahead else data
    length, kind = HEADER.unpack_from(ahead)
    end = HEADER.size + length
    if length > LIMIT:
        raise ValueError('frame of %d bytes exceeds the limit of %d' % (length, LIMIT))
    if len(ahead) < end and length > LONG:
        payload = _gather(fd, ahead, length)
        return (None if payload is None else (bytes((kind,)), payload)), b''
    if len(ahead) < end:
        rest = _read_exactly(fd, end - len(ahead))
        if rest is None:
            return None, b''
        ahead += rest
    return (bytes((kind,)), ahead[HEADER.size:end]), ahead[end:]


def _gather(fd, ahead, length):
    """A long payload of which only the beginning is there, read to where it is to stay: a bytearray; None at the end of the stream."""
    payload = bytearray(length)
    done = len(ahead) - HEADER.size
    with memoryview(payload) as view:
        view[:done] = ahead[HEADER.size:]
        while done < length:
            try:
                count = _readv(fd, (view[done:],))
            except _Interrupted:
                continue
            if not count:
                return None
            done += count
    return payload


def _read_some(fd, size):
    while True:
        try:
            return _read(fd, size)
        except _Interrupted:
            continue


def _read_exactly(fd, count):
    parts = []
    while count:
        try:
            part = _read(fd, min(count, 1 << 20))
        except _Interrupted:
            continue
        if not part:
            return None
        if len(part) == count and not parts:
            return part
        parts.append(part)
        count -= len(part)
    return b''.join(parts)


class Reader(object):
    """Takes a stream apart as it comes: feed() returns the frames that are complete."""

    def __init__(self, limit=LIMIT):
        # type: (int) -> None
        self.limit = limit
        self._pending = bytearray()
        self._need = HEADER.size

    def feed(self, data):
        # type: (bytes) -> list
        pending = self._pending
        pending += data
        frames = []
        start = 0
        size = len(pending)
        # A large frame that comes in many pieces is only looked at when it can be complete.
        while size - start >= self._need:
            length, kind = HEADER.unpack_from(pending, start)
            if length > self.limit:
                raise ValueError('frame of %d bytes exceeds the limit of %d' % (length, self.limit))
            end = start + HEADER.size + length
            if end > size:
                self._need = end - start
                break
            self._need = HEADER.size
            if end == size and not start and length > LONG:
                del pending[:HEADER.size]        # what is at the front goes without a copy
                self._pending = bytearray()
                return [(bytes((kind,)), pending)]
            frames.append((bytes((kind,)), bytes(memoryview(pending)[start + HEADER.size:end])))
            start = end
        if start:
            del pending[:start]
        return frames
