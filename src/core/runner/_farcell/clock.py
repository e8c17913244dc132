"""The deadline of the running cell. It stands still while a person is asked whether the cell may call a tool."""

import time

HOLD_MAX = 3600.0
_DEADLINE, _HELD = "ladder", "held"


class Clock(object):
    """Starts with the cell, and calls `due` when its time is up. Once the cell is being stopped, `stopped`, nothing starts it again."""

    def __init__(self, loop, log, due):
        # type: (object, object, object) -> None
        self._loop = loop
        self._log = log
        self._call = due
        self._due = None  # type: object # when that is; None for a cell without a deadline
        self._holds = []  # type: list # when each of them is over
        self._since = 0.0

    def start(self, cell):
        # type: (object) -> None
        self._due = None
        if cell.timeout is not None:
            self._due = cell.started + cell.timeout
            self._loop.at(_DEADLINE, self._due, self._call)

    def stop(self):
        # type: () -> None
        """The cell is over."""
        self._loop.cancel(_DEADLINE)
        self._forget_holds()

    def stopping(self):
        # type: () -> None
        """The cell is told to end; from here on the timer is that of the ladder of signals."""
        self._due = None
        self._forget_holds()

    def _forget_holds(self):
        if self._holds:
            self._holds = []
            self._loop.cancel(_HELD)

    def hold(self, seconds):
        # type: (float) -> None
        """Stand still, at most that long. Each hold needs a resume of its own."""
        now = time.monotonic()
        if not self._holds:
            self._since = now
            if self._due is not None:
                self._loop.cancel(_DEADLINE)
        self._holds.append(now + min(seconds, HOLD_MAX))
        self._wait()

    def resume(self):
        # type: () -> bool
        """One hold less; False where there is none."""
        if not self._holds:
            return False
        self._holds.remove(min(self._holds))
        self._wait()
        return True

    def _wait(self):
        if self._holds:
            self._loop.at(_HELD, min(self._holds), self._over)
            return
        self._loop.cancel(_HELD)
        if self._due is not None:
            self._due += time.monotonic() - self._since
            self._loop.at(_DEADLINE, self._due, self._call)

    def _over(self):
        now = time.monotonic()
        left = [end for end in self._holds if end > now]
        self._log("the clock was held for as long as it may be, and goes on" if not left else "one of the holds of the clock is over")
        self._holds = left
        self._wait()
