"""The pool of a zygote: kernels that stand ready before anybody asks for them. Each is given out once, and replaced a moment later."""

import _socket
import os
import select
import struct
import time

from . import files, kinds, strict

REFILL_SECONDS = 0.02  # from a take to the fork of the next: the kernel that was taken has its first cell to run
_SETBACK_FIRST, _SETBACK_LAST = 1.0, 60.0  # after one that ended by itself
_END_SECONDS = 0.5
_FDS = struct.Struct("2i")


class Pool(object):
    """What the zygote holds: its ends of the connections, in the order in which they were made."""

    def __init__(self, folder, poll):
        # type: (str, object) -> None
        self._folder = folder
        self._poll = poll
        self._wanted = 0
        self._kernels = {}  # type: dict # descriptor: _Waiting
        self._due = None  # type: object # when the next fork may be
        self._setback = _SETBACK_FIRST

    def want(self, number):
        # type: (object) -> None
        """A request has named a size, or None."""
        if number is None or kinds.pool_problem(number):
            return
        self._wanted = number
        while len(self._kernels) > number:
            self._drop(next(iter(self._kernels)))
        self._plan(REFILL_SECONDS)

    def _plan(self, seconds):
        missing = len(self._kernels) < self._wanted
        if not missing:
            self._due = None
        elif self._due is None:
            self._due = time.monotonic() + seconds

    def holds(self, fd):
        # type: (int) -> bool
        return fd in self._kernels

    def pause(self, longest):
        # type: (float) -> float
        """How long the zygote may sleep."""
        return longest if self._due is None else min(longest, max(0.0, self._due - time.monotonic()))

    def is_due(self):
        # type: () -> bool
        """Whether a kernel is missing, and it is time to fork it."""
        return self._due is not None and time.monotonic() >= self._due

    def fork(self, environ):
        # type: (object) -> object
        """In the zygote None; in the child the connection that it is to serve. `environ` is what it takes over."""
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            self._set_back()
            return None
        if pid == 0:
            ours.close()
            return theirs
        theirs.close()
        self._kernels[ours.fileno()] = _Waiting(ours, os.path.join(self._folder, kinds.READY_PREFIX + str(pid)), environ)
        self._poll.register(ours.fileno(), select.POLLIN)
        self._due = None
        self._plan(0.0)
        return None

    def hear(self, fd):
        # type: (int) -> None
        """A kernel has something to say: that it is ready, or by the end of its connection that it has ended."""
        kernel = self._kernels[fd]
        try:
            word = kernel.link.recv(1)
        except OSError:
            word = b""
        if word:
            kernel.ready = True
        else:
            self._drop(fd)
            self._set_back()

    def _set_back(self):
        self._due = None
        self._plan(self._setback)
        self._setback = min(self._setback * 2, _SETBACK_LAST)

    def take(self, request, link, lock, environ, notes):
        # type: (dict, object, int, object, list) -> bool
        """Hand a request to a ready kernel, with its asker's connection; False where there is none that takes it."""
        if lock < 0:
            return False
        ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, _FDS.pack(link.fileno(), lock))]
        for fd in [fd for fd, kernel in self._kernels.items() if kernel.ready]:
            kernel = self._kernels[fd]
            same = kernel.environ is environ
            message = strict.encode(dict(request, environ=None if same else environ, notes=notes))
            try:
                kernel.link.sendmsg([message], ancillary, _socket.MSG_DONTWAIT)
            except ConnectionError:
                self._drop(fd)
                continue
            except OSError:
                return False  # it is too long for one message
            self._forget(fd)
            self._setback = _SETBACK_FIRST
            self._plan(REFILL_SECONDS)
            return True
        return False

    def _forget(self, fd):
        self._poll.unregister(fd)
        self._kernels.pop(fd).link.close()

    def _drop(self, fd):
        """End one that is not needed, or clear up after one that has ended."""
        folder = self._kernels[fd].folder
        self._kernels[fd].end()
        self._forget(fd)
        files.remove_tree(folder)

    def leave(self):
        # type: () -> None
        """In a fork: these are not ours."""
        for kernel in self._kernels.values():
            kernel.link.close()
        self._kernels.clear()

    def close(self):
        # type: () -> None
        """End all of them."""
        for kernel in self._kernels.values():
            kernel.tell_to_end()
        for fd in list(self._kernels):
            self._drop(fd)


class _Waiting(object):
    """One kernel of the pool, as the zygote sees it."""

    def __init__(self, link, folder, environ):
        # type: (object, str, object) -> None
        self.link = link
        self.folder = folder
        self.environ = environ
        self.ready = False

    def tell_to_end(self):
        # type: () -> None
        try:
            self.link.shutdown(_socket.SHUT_WR)
        except OSError:
            pass

    def end(self):
        # type: () -> None
        """It ends with its connection; wait until it has."""
        self.tell_to_end()
        try:
            self.link.settimeout(_END_SECONDS)
            while self.link.recv(16):
                pass
        except OSError:
            pass


def clear(folder):
    # type: (str) -> None
    """Remove what ready kernels of a killed zygote have left."""
    for name in os.listdir(folder):
        if name.startswith(kinds.READY_PREFIX):
            files.remove_tree(os.path.join(folder, name))

