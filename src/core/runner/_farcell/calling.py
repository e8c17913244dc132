"""How a call of a tool travels from a cell to the supervisor and its answer back: over a socket pair of its own, so that no caller can disturb another."""

import _socket
import os
import struct

from . import streams, wire
from .guarded import BUILTINS as __builtins__

ANSWER_MAX = 64 << 20
_LENGTH = struct.Struct('>I')
_FD = struct.Struct('i')
_SMALL = 64 << 10
_QUIET = getattr(_socket, 'MSG_NOSIGNAL', 0)     # a cell may have given SIGPIPE its default back
_NOW = _socket.MSG_DONTWAIT
_NO_READER = (BrokenPipeError, ConnectionResetError)
_GONE = 'the kernel did not take the call: its cell is over, or no descriptor is free'

# Bound early: a cell may replace them.
_socketpair, _Socket = _socket.socketpair, _socket.socket
_UNIX, _STREAM, _DATAGRAM, _BOTH = _socket.AF_UNIX, _socket.SOCK_STREAM, _socket.SOCK_DGRAM, _socket.SHUT_RDWR
_RIGHTS = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
_fstat, _dup, _close = os.fstat, os.dup, os.close


class Refused(Exception):
    """The call came to no answer of a tool: (kind, message)."""


class Line(object):
    """This process's end of the way to the supervisor. A forked child goes on using it."""

    def __init__(self, fd):
        # type: (int) -> None
        self._fd = streams.move_high(fd)
        os.close(fd)
        self._link = _Socket(_UNIX, _DATAGRAM, 0, self._fd)
        self._link.settimeout(None)
        self._mark = _identity(self._fd)

    def call(self, token, name, arguments):
        # type: (str, str, bytes) -> bytes
        """The answer's JSON. An exception on the way, say an interrupt, gives the call up."""
        with _Ends(None) as ends:
            self._announce(ends, token, name, 0)
            ours = ends.ours
            _send_all(ours, _LENGTH.pack(len(arguments)), arguments)
            size = _size_of(_receive_exactly(ours, _LENGTH.size))
            answer = _receive_exactly(ours, size)
            if answer is None:
                raise Refused('refused', _GONE)
            ends.done()
            return answer

    async def call_later(self, loop, token, name, arguments):
        """The same for a task: nothing blocks its loop, and to cancel it gives the call up."""
        with _Ends(0.0) as ends:
            while True:
                try:
                    self._announce(ends, token, name, _NOW)
                    break
                except BlockingIOError:
                    await self._room(loop)
            ours = ends.ours
            for data in (_LENGTH.pack(len(arguments)), arguments):
                await _send_later(loop, ours, data)
            size = _size_of(await _receive_later(loop, ours, _LENGTH.size))
            answer = await _receive_later(loop, ours, size)
            if answer is None:
                raise Refused('refused', _GONE)
            ends.done()
            return answer

    def _announce(self, ends, token, name, flags):
        """Tell the supervisor that there is a call, and hand it the other end."""
        if _identity(self._fd) != self._mark:
            raise Refused('refused', 'code of this kernel has closed the descriptor that tools are called by; a reset makes a new one')
        message = wire.encode({'v': 1, 'token': token, 'name': name})
        try:
            self._link.sendmsg((message,), ((_RIGHTS + (_FD.pack(ends.theirs.fileno()),)),), flags | _QUIET)
        except (BlockingIOError, InterruptedError):
            raise
        except OSError as error:
            raise Refused('refused', 'the kernel cannot be reached: %s' % (error.strerror or error))
        ends.theirs.close()

    async def _room(self, loop):
        """Until the supervisor has taken up some calls. By a descriptor of our own: others may wait for the same."""
        copy = _dup(self._fd)
        try:
            await _wait(loop, loop.add_writer, loop.remove_writer, copy)
        finally:
            _close(copy)


def _identity(fd):
    try:
        info = _fstat(fd)
    except OSError:
        return None
    return info.st_dev, info.st_ino


class _Ends(object):
    """The two ends of one call, closed however it ends. That of the supervisor is closed here as soon as it has its copy."""

    def __init__(self, timeout):
        # type: (object) -> None
        self._timeout = timeout
        self._given_up = True

    def __enter__(self):
        try:
            self.ours, self.theirs = _socketpair(_UNIX, _STREAM)
        except OSError as error:
            raise Refused('refused', 'no call can be made: %s' % (error.strerror or error))
        self.ours.settimeout(self._timeout)      # not what socket.setdefaulttimeout() has set
        return self

    def done(self):
        self._given_up = False

    def __exit__(self, *_):
        if self._given_up:
            try:
                self.ours.shutdown(_BOTH)        # a fork of ours may hold a copy of it
            except OSError:
                pass
        self.ours.close()
        self.theirs.close()


def _send_all(link, *parts):
    """What has no reader any more needs none: the answer is there, and says why."""
    try:
        for data in parts:
            view = memoryview(data)
            while view:
                view = view[link.send(view, _QUIET):]
    except _NO_READER:
        pass
    except OSError as error:
        raise _unsent(error)


def _unsent(error):
    return Refused('refused', 'the call cannot be sent: %s' % (error.strerror or error))


def _size_of(head):
    if head is None:
        raise Refused('refused', _GONE)
    size = _LENGTH.unpack(bytes(head))[0]
    if size > ANSWER_MAX:
        raise Refused('refused', 'the answer has more than %d bytes' % ANSWER_MAX)
    return size


def _receive_exactly(link, size):
    """So many bytes, or None where the other end was closed before."""
    data = bytearray(size)
    done = 0
    with memoryview(data) as view:
        while done < size:
            try:
                count = link.recv_into(view[done:])
            except OSError:
                return None
            if not count:
                return None
            done += count
    return data


async def _send_later(loop, link, data):
    view = memoryview(data)
    while view:
        try:
            view = view[link.send(view, _QUIET):]
        except (BlockingIOError, InterruptedError):
            await _wait(loop, loop.add_writer, loop.remove_writer, link.fileno())
        except _NO_READER:
            return
        except OSError as error:
            raise _unsent(error)


async def _receive_later(loop, link, size):
    data = bytearray(size)
    done = 0
    with memoryview(data) as view:
        while done < size:
            try:
                count = link.recv_into(view[done:])
            except (BlockingIOError, InterruptedError):
                await _wait(loop, loop.add_reader, loop.remove_reader, link.fileno())
                continue
            except OSError:
                return None
            if not count:
                return None
            done += count
    return data


async def _wait(loop, add, remove, fd):
    ready = loop.create_future()
    add(fd, _set, ready)
    try:
        await ready
    finally:
        remove(fd)


def _set(ready):
    if not ready.done():
        ready.set_result(None)
