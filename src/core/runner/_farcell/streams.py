"""The interpreter's standard streams: real text streams of which every write reaches its descriptor at once."""

import fcntl
import io
import os
import select
import sys

from .guarded import BUILTINS as __builtins__

_write = os.write
_dup2 = os.dup2
_fstat = os.fstat
_IOLBF = 1


class _Direct(io.BufferedWriter):
    """Holds nothing back: what children and C code print next must come after it, and a crash must not lose it."""

    def __init__(self, fd):
        # type: (int) -> None
        io.BufferedWriter.__init__(self, _raw(fd))
        self._fd = fd

    def write(self, data, _write=_write, _bytes=bytes, _len=len):
        if type(data) is _bytes:
            try:
                done = _write(self._fd, data)
            except BlockingIOError:
                done = 0
            if done == _len(data):
                return done
            self._write_rest(memoryview(data)[done:])
            return _len(data)
        view = memoryview(data).cast('B')
        self._write_rest(view)
        return _len(view)

    def _write_rest(self, view):
        while len(view):
            try:
                view = view[_write(self._fd, view):]
            except BlockingIOError:
                # A cell, or a program it started, made our end of the pipe non-blocking.
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll(1000)

    def close(self):
        # Stays open: a second TextIOWrapper around sys.stdout.buffer closes this when it is collected, and a
        # logger of an earlier cell still holds on to it.
        self.flush()


class _Input(io.BufferedReader):
    def close(self):
        pass


def _open(fd):
    # type: (int) -> io.TextIOWrapper
    if fd == 0:
        stream = io.TextIOWrapper(_Input(_raw(fd)), 'utf-8', 'surrogateescape')
    else:
        stream = io.TextIOWrapper(_Direct(fd), 'utf-8', 'backslashreplace', newline='\n', write_through=True)
    stream.mode = 'w' if fd else 'r'
    return stream


def _raw(fd):
    raw = io.FileIO(fd, 'wb' if fd else 'rb', closefd=False)
    raw.name = ('<stdin>', '<stdout>', '<stderr>')[fd]       # as Python itself calls them
    return raw


def move_high(fd, lowest=200):
    # type: (int, int) -> int
    """A close-on-exec copy of fd, as high as the limit allows, where a cell that closes low ones does not hit it."""
    for floor in (lowest, 100, 50, 20, 3):
        try:
            return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, floor)
        except OSError:
            continue
    raise OSError('no file descriptor left')


class Streams(object):
    """sys.stdin, sys.stdout, sys.stderr and descriptors 0, 1, 2, put back in order before each cell."""

    NAMES = ('stdin', 'stdout', 'stderr')

    def __init__(self):
        self.saved = [move_high(fd) for fd in range(3)]
        self._marks = [_mark(fd) for fd in self.saved]
        self._streams = [_open(fd) for fd in range(3)]
        self.flush_c = _c_streams()
        for name, stream in zip(self.NAMES, self._streams):
            setattr(sys, name, stream)
            setattr(sys, '__%s__' % name, stream)

    def restore_descriptors(self):
        """Those that the cell before closed or redirected. After its reply, when nobody waits."""
        for fd in range(3):
            if _mark(fd) != self._marks[fd]:
                _dup2(self.saved[fd], fd, True)

    def restore(self):
        """The streams that the cell before, or a thread since then, replaced or closed."""
        for fd, stream in enumerate(self._streams):
            if not _usable(stream):
                stream = self._streams[fd] = _open(fd)
                setattr(sys, '__%s__' % self.NAMES[fd], stream)
        sys.stdin, sys.stdout, sys.stderr = self._streams

    def are_plain(self):
        """Whether sys.stdout and sys.stderr are ours and hold nothing back, so that flushing them is nothing."""
        stdout, stderr = sys.stdout, sys.stderr
        return stdout is self._streams[1] and stderr is self._streams[2] and _is_direct(stdout) and _is_direct(stderr)

    def flush(self):
        """Everything that a cell printed, also through an object of its own and through C."""
        for stream in {id(each): each for each in (sys.stdout, sys.stderr)}.values():
            try:
                stream.flush()
            except Exception:
                pass             # its own stream, its own output
        self.flush_c()


def _mark(fd):
    try:
        stat = _fstat(fd)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _is_direct(stream):
    # Only since 3.7 can it be told, and changed.
    return getattr(stream, 'write_through', False) and 'flush' not in stream.__dict__


def _usable(stream):
    try:
        return not stream.closed
    except ValueError:           # detached
        return False


def _c_streams():
    """Makes C's stdout line-buffered; gives a function that flushes it."""
    try:
        import ctypes
        libc = ctypes.CDLL(None)
        stdout = ctypes.c_void_p.in_dll(libc, '__stdoutp' if sys.platform == 'darwin' else 'stdout')
        libc.setvbuf.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
        libc.setvbuf(stdout, None, _IOLBF, 0)
        flush = libc.fflush
        flush.argtypes = (ctypes.c_void_p,)
    except Exception:
        return lambda: None
    # Only this one: fflush(NULL) would wait for a thread that reads from some other stream.
    return lambda: flush(stdout.value)
