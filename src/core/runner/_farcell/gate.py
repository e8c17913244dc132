"""SIGINT: raises KeyboardInterrupt inside of a cell's code, and nowhere else."""

import _signal           # signal's own functions spend microseconds on making enums
import os
import sys
from _thread import get_ident

from . import tracebacks
from .guarded import BUILTINS as __builtins__

_getpid = os.getpid
_getsignal = _signal.getsignal
_set_signal = _signal.signal
_sigmask = _signal.pthread_sigmask
_SIG_UNBLOCK = _signal.SIG_UNBLOCK
_SIGINT = _signal.SIGINT
# What the supervisor sends after a SIGINT that shows no effect. Most processes ignore it, and ours does nothing on it either.
NUDGE = _signal.SIGURG
_NUMBERS = tuple(number for number in range(1, 32) if number not in (_SIGINT, _signal.SIGKILL, _signal.SIGSTOP))
_INSIDE, _SHIELDED, _OUTSIDE = range(3)


class Handlers(object):
    """Python handlers that cells have installed: what one raises (a forgotten alarm) must not hit between two cells.

    with handlers: they are as the cell wants them; outside they are called, too, but may not raise.
    """

    def __init__(self):
        self.clean = True            # whether no code of a cell has run since they were put aside
        self._aside = {}         # signal number -> the cell's handler
        self._called = self._call            # one object, to be found again by `is`

    def __enter__(self):
        while self._aside:
            number, handler = self._aside.popitem()
            _set_signal(number, handler)

    def __exit__(self, *_):
        self.put_aside()

    def put_aside(self):
        for number in _NUMBERS:
            handler = _getsignal(number)
            if callable(handler) and handler is not self._called and handler is not _nudged:
                self._aside[number] = handler
                _set_signal(number, self._called)
        self.clean = True

    def _call(self, number, frame):
        self.clean = False
        handler = self._aside.get(number)
        try:
            if handler is not None:
                handler(number, frame)
        except BaseException as error:
            try:
                sys.__stderr__.write('A signal handler raised between two cells:\n' + tracebacks.describe(error)['traceback'])
            except Exception:
                pass


def _nudged(_number, _frame):
    """Ends the wait of a system call, after which Python sees to the SIGINT that came just before that call."""


class Gate(object):
    """Tells by the stack whether user code runs: no flag that is set and cleared could be free of races.

    An exception leaves run() only after the last frame in which the handler may raise, so that the code around it
    needs no protection of its own.
    """

    def __init__(self):
        self.pid = self._thread = 0
        self.running = False
        self.pending = False
        self.late = False
        self.cancel = None           # an awaiting cell is cancelled first: loop.py
        self._readable = None        # whether the supervisor's pipe holds something
        self.handlers = Handlers()
        self._marks = {Gate.run.__code__: _INSIDE}
        self._handler = self._on_signal

    def attach(self, readable):
        """This is the process and the thread in which cells run."""
        self.pid = _getpid()
        self._thread = get_ident()
        self._readable = readable
        _set_signal(NUDGE, _nudged)

    def shield(self, function):
        """No KeyboardInterrupt inside of this function: it waits until the caller asks release()."""
        self._marks[function.__code__] = _SHIELDED
        return function

    def outside(self, function):
        """The bottom of our own stack: what is above it and not in run() is ours."""
        self._marks[function.__code__] = _OUTSIDE
        return function

    def run(self, function, *args):
        """Calls user code."""
        if self.pending:
            self.release()
        self.handlers.clean = False
        return function(*args)

    def release(self):
        """Raises what a shielded function held back."""
        if self.pending and get_ident() == self._thread:
            self.pending = False
            raise KeyboardInterrupt

    def begin(self):
        """A cell starts: from here on a signal is for it, also one that came while its frame was still on the way.

        A frame `I` follows the cell's own in the pipe if the supervisor has already interrupted it; a signal
        without one is late and was for the cell before.
        """
        self.running = True
        if self.late:
            self.late = False
            if self._readable():
                self.pending = True
        if _getsignal(_SIGINT) is not self._handler:
            _set_signal(_SIGINT, self._handler)

    def end(self):
        self.running = False
        self.pending = False
        if not self.handlers.clean:
            self.handlers.put_aside()

    def install(self):
        """As a cell has to find it. After the reply of the one before, when nobody waits; a signal that it had blocked is over with it."""
        if _getsignal(_SIGINT) is not self._handler:
            _set_signal(_SIGINT, self._handler)
        _sigmask(_SIG_UNBLOCK, (_SIGINT,))

    def _on_signal(self, _signum, frame):
        where = self._where(frame)
        if where is _INSIDE:
            if _getpid() != self.pid:
                raise KeyboardInterrupt
            if not self.running and not self._readable():
                return               # tasks between two cells, and nobody waits
            if self.cancel is not None and self.cancel():
                return
            raise KeyboardInterrupt
        if self.running:
            self.pending = True
        else:
            self.late = True

    def _where(self, frame):
        marks = self._marks
        while frame is not None:
            where = marks.get(frame.f_code)
            if where is not None:
                return where
            frame = frame.f_back
        return _INSIDE               # a stack of its own: greenlets
