"""A pipe to the host that is larger for as long as much is written to it."""

import time

from . import osdep

LARGE = 128 * 1024  # what is worth it
_WIDE = 1 << 20
_PAUSE_FIRST, _PAUSE_LAST = 0.1, 60.0


class Widening(object):
    """Makes the pipe wide, and a moment later narrow again: pages are counted per user, also those of empty pipes."""

    def __init__(self, loop, fd):
        # type: (object, int) -> None
        self._loop = loop
        self._fd = fd
        self._usual = 0  # its size while it is wide, else 0
        self._possible = True
        self._last = 0.0
        self._pause = _PAUSE_FIRST

    def widen(self):
        # type: () -> None
        """Much is about to be written."""
        self._last = time.monotonic()
        if self._usual or not self._possible:
            return
        usual = osdep.pipe_size(self._fd)
        self._possible = 0 < usual < _WIDE and osdep.set_pipe_size(self._fd, _WIDE)
        if self._possible:
            self._usual = usual
            self._later()

    def is_wide(self):
        # type: () -> bool
        return self._usual > 0

    def narrow(self):
        # type: () -> bool
        """Make it narrow now; False where it still holds more."""
        if self._usual and osdep.set_pipe_size(self._fd, self._usual):
            self._usual, self._pause = 0, _PAUSE_FIRST
            self._loop.cancel(self)
        return not self._usual

    def _later(self):
        self._loop.at(self, time.monotonic() + self._pause, self._narrow)

    def _narrow(self):
        if time.monotonic() - self._last < _PAUSE_FIRST:
            self._later()
        elif not self.narrow():
            self._pause = min(self._pause * 2, _PAUSE_LAST)
            self._later()

    def close(self):
        # type: () -> None
        """The descriptor is not ours any more."""
        self._possible, self._usual = False, 0
        self._loop.cancel(self)
