"""The supervisor's log: bounded, one line an event, and never a word of code, environment or output."""

import os
import sys
import time
from collections import deque

LIMIT = 256 * 1024


class Log(object):
    """Lines in a file, or in memory where the kernel has no directory. A log that cannot be written hurts nobody."""

    def __init__(self, path=None):
        # type: (object) -> None
        self._path = path
        self._lines = deque()  # type: deque
        self._size = -1 if path is not None else 0  # not known yet

    def __call__(self, text, *values):
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        text = (text % values if values else text).replace("\n", "\\n")
        line = ("%s.%03dZ %s\n" % (stamp, now % 1 * 1000, text)).encode("utf-8", "backslashreplace")
        if self._path is None:
            self._size += len(line)
            self._lines.append(line)
            while self._size > LIMIT:
                self._size -= len(self._lines.popleft())
            return
        try:
            if self._size > LIMIT:
                self._halve()
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            try:
                if self._size < 0:
                    self._size = os.fstat(fd).st_size
                self._size += os.write(fd, line)
            finally:
                os.close(fd)
        except OSError:
            pass

    def moved(self, path):
        # type: (str) -> None
        """The file has another name now."""
        self._path = path

    def failure(self, what):
        # type: (str) -> None
        """The exception that is being handled, with its way here."""
        try:
            import traceback  # brings much along that a healthy supervisor never needs
            self("%s: %s", what, traceback.format_exc())
        except Exception:
            self("%s: %r", what, sys.exc_info()[1])

    def read(self, offset, size):
        # type: (int, int) -> bytes
        """Part of a log that is kept in memory."""
        return b"".join(self._lines)[offset:offset + size]

    def _halve(self):
        """Drop the older half, at the end of a line."""
        with open(self._path, "rb") as file:
            kept = file.read()[-LIMIT // 2:]
        kept = kept[kept.find(b"\n") + 1:]
        temporary = self._path + ".tmp"
        with open(temporary, "wb") as file:
            os.chmod(temporary, 0o600)
            file.write(kept)
        os.rename(temporary, self._path)
        self._size = len(kept)
