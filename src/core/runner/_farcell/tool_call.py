"""One call of a tool as the supervisor holds it: a socket that arguments come by, and that the answer goes back by. Nothing here blocks."""

import _socket
import os
import select
import struct

from .strict import decode, encode

CALL_MAX = 1024  # bytes of a datagram
FRAME_MAX = 64 << 20  # bytes of the arguments, and of an answer
_NAME_MAX = 256
_READ_SIZE = 256 << 10
_PASS = 1 << 20  # bytes that are read for one call in one turn
_LENGTH = struct.Struct(">I")
_FDS = _socket.CMSG_SPACE(8 * 4)
_RECEIVE = _socket.MSG_DONTWAIT | getattr(_socket, "MSG_CMSG_CLOEXEC", 0)
_SEND = _socket.MSG_DONTWAIT | getattr(_socket, "MSG_NOSIGNAL", 0)


def pair():
    # type: () -> tuple
    """The two ends of one generation: the supervisor's as a socket, the interpreter's as a descriptor."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    os.set_blocking(ours.fileno(), False)
    return ours, theirs.detach()


def receive(link):
    # type: (object) -> tuple
    """(token, name, descriptors, whether one was lost for want of a free number) of the next call; without a token it is none."""
    data, ancillary, flags, _address = link.recvmsg(CALL_MAX + 1, _FDS, _RECEIVE)
    fds = []  # type: list
    for level, kind, numbers in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            fds.extend(struct.unpack("%di" % (len(numbers) // 4), numbers[:len(numbers) // 4 * 4]))
    token, name = _understood(data) if not flags & _socket.MSG_TRUNC else (None, "")
    return token, name, fds, bool(flags & _socket.MSG_CTRUNC) and not fds


def _understood(data):
    if len(data) > CALL_MAX:
        return None, ""
    try:
        told = decode(data)
        version, token, name = told["v"], told["token"], told["name"]
    except (ValueError, TypeError, KeyError):
        return None, ""
    if version != 1 or type(token) is not str or type(name) is not str or len(name) > _NAME_MAX:
        return None, ""
    return token, name


class Refusal(Exception):
    """Why a call is not served."""


class Call(object):
    """Arguments on their way here, then a record, then an answer on its way back."""

    def __init__(self, fd, name):
        # type: (int, str) -> None
        self._link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fileno=fd)
        self.fd = fd
        self.name = name
        self.number = 0  # 0 as long as there is no record of it
        self.since = 0.0  # when that was made
        self.handler = None  # type: object
        self._data = bytearray()
        self._length = -1
        self._out = None  # type: object

    # -- arguments -------------------------------------------------------------------------------------------------------

    def read(self, admit):
        # type: (object) -> object
        """The arguments once all are here, None before; EOFError at an early end. `admit(length)` may raise Refusal."""
        data, left = self._data, _PASS
        while True:
            need = (_LENGTH.size if self._length < 0 else self._length) - len(data)
            if need > 0:
                if left <= 0:
                    return None  # the rest makes itself known; what is complete would not
                try:
                    piece = self._link.recv(min(need, _READ_SIZE), _socket.MSG_DONTWAIT)
                except (BlockingIOError, InterruptedError):
                    return None
                if not piece:
                    raise EOFError
                data += piece
                left -= len(piece)
            elif self._length < 0:
                length = _LENGTH.unpack(bytes(data))[0]
                admit(length)
                self._length = length
                del data[:]
            else:
                self._data = bytearray()
                return data

    def is_gone(self):
        # type: () -> bool
        """Whether the caller has closed his end. Asked anew: what the loop has seen may be of another call that had this descriptor."""
        asked = select.poll()
        asked.register(self.fd, 0)
        return bool(asked.poll(0))

    # -- the answer ------------------------------------------------------------------------------------------------------

    @property
    def is_answered(self):
        # type: () -> bool
        return self._out is not None

    def put(self, text):
        # type: (bytes) -> None
        """The answer, to be sent."""
        self._out = [_LENGTH.pack(len(text)), text]

    def send(self):
        # type: () -> bool
        """As much as the caller takes now; True when he has all."""
        while self._out:
            try:
                done = self._link.sendmsg(self._out, [], _SEND)
            except (BlockingIOError, InterruptedError):
                return False
            parts = []
            for part in self._out:
                if done < len(part):
                    parts.append(memoryview(part)[done:])
                done = max(0, done - len(part))
            self._out = parts
        return True

    def refuse(self, kind, message):
        # type: (str, str) -> None
        """Say why there is no answer. Nothing was sent before, so there is room."""
        self.put(encode({"ok": False, "error": {"kind": kind, "name": self.name, "message": message}}))
        try:
            self.send()
        except OSError:
            pass

    def close(self):
        # type: () -> None
        try:
            self._link.shutdown(_socket.SHUT_RDWR)  # closing alone says nothing where a fork holds a copy of the caller's end
        except OSError:
            pass
        self._link.close()
        self.handler = None  # it holds us
