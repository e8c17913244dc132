"""Who wants a kernel of a zygote: a connection, and the request that comes over it."""

import _socket
import os
import struct
import time

from . import strict

REQUEST_SECONDS = 5.0
REQUEST_MAX = 16 << 20
_CREDENTIALS = struct.Struct("3i")
_LENGTH = struct.Struct(">I")


class Asker(object):
    """One connection. `descriptor` is the one that came with the request, or -1."""

    def __init__(self, fd):
        # type: (int) -> None
        self.link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fileno=fd)
        self.descriptor = -1
        self.until = time.monotonic() + REQUEST_SECONDS
        self._data = b""

    def is_ours(self):
        # type: () -> bool
        """Whether the process at the other end is of our user."""
        data = self.link.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _CREDENTIALS.size)
        return _CREDENTIALS.unpack(data)[1] == os.geteuid()

    def look(self):
        # type: () -> object
        """The request if all of it has come, else None; ValueError for one that is none."""
        try:
            piece, ancillary, _flags, _address = self.link.recvmsg(1 << 16, _socket.CMSG_SPACE(4), _socket.MSG_CMSG_CLOEXEC | _socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        if not piece:
            raise ValueError("the request was cut short")
        for _level, _kind, numbers in ancillary:
            self.descriptor, = struct.unpack("i", numbers)
        self._data += piece
        if len(self._data) < _LENGTH.size:
            return None
        size = _LENGTH.unpack_from(self._data)[0]
        if size > REQUEST_MAX:
            raise ValueError("a request of %d bytes" % size)
        return strict.decode(self._data[_LENGTH.size:]) if len(self._data) >= size + _LENGTH.size else None

    def close(self):
        # type: () -> None
        self.link.close()
        if self.descriptor >= 0:
            os.close(self.descriptor)
