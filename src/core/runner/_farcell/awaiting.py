"""The one event loop of a kernel: runs the cells that await, and between cells the tasks that they left."""

import signal
import sys
from _thread import allocate_lock, get_ident, start_new_thread

from . import tracebacks
from .guarded import BUILTINS as __builtins__

_REACTION = 0.25         # seconds in which the loop must have noticed an interrupt
_RETRIES = 100           # failures in a row between two cells before the loop is left alone


class Awaiting(object):
    """Makes a loop when the first cell awaits; asyncio is not imported before."""

    def __init__(self, gate, readable):
        self._gate = gate
        self._readable = readable
        self._asyncio = None
        self._loop = None
        self._task = None        # of the running cell
        self._cancelled = False

    def run(self, coroutine, context=None):
        """The coroutine's value; its exception as raised in it; KeyboardInterrupt where a signal cancelled it."""
        outcome = []
        loop = self._current_loop()
        inner = _settle(coroutine, outcome)
        task = loop.create_task(inner) if context is None else loop.create_task(inner, context=context)
        task.add_done_callback(self._stop)
        self._task, self._cancelled = task, False
        self._gate.cancel = self._cancel
        try:
            try:
                loop.run_forever()
            except KeyboardInterrupt:
                self._wind_down(task)
                raise
            if not task.done():
                raise RuntimeError('the event loop was stopped before the cell had ended')
        finally:
            self._gate.cancel = self._task = None
        value, error = outcome[0] if outcome else (None, KeyboardInterrupt())
        if error is None:
            return value
        if self._cancelled and isinstance(error, self._asyncio.CancelledError):
            error = KeyboardInterrupt().with_traceback(error.__traceback__)
        try:
            raise error
        finally:
            del error, outcome

    def _stop(self, task):
        if task is self._task:
            self._loop.stop()

    def _cancel(self):
        """Called by the signal handler; False where it shall raise instead."""
        task = self._task
        if task is None or task.done() or self._cancelled:
            return False
        if self._asyncio.current_task(self._loop) is task:
            return False             # the cell's own code is computing, not awaiting
        self._cancelled = True
        task.cancel()
        noticed = allocate_lock()
        noticed.acquire()
        self._loop.call_soon_threadsafe(noticed.release)       # else it would go on sleeping in select()
        start_new_thread(_insist, (noticed, get_ident()))
        return True

    def _wind_down(self, task):
        """It hit some other task: the cell's own still gets the chance to clean up, until the next interrupt."""
        if not task.done():
            if not self._cancelled:
                self._cancelled = True
                task.cancel()
            self._loop.run_forever()

    def _current_loop(self):
        if self._asyncio is None:
            import asyncio
            self._asyncio = asyncio
        if self._loop is None or self._loop.is_closed():
            self._loop = _adopt(self._asyncio)
        self._asyncio.set_event_loop(self._loop)
        return self._loop

    def idle(self, *fds):
        """Lets the tasks of earlier cells go on until one of `fds` is readable; returns at once if there are none."""
        loop = self._loop
        if loop is None or loop.is_closed() or loop.is_running() or not self._has_work(loop):
            return
        if self._readable():
            return                       # perhaps read ahead already, which no selector would see
        try:
            for fd in fds:
                loop.add_reader(fd, loop.stop)
        except Exception:        # a loop of a kind that cannot watch a pipe
            return
        try:
            for _ in range(_RETRIES):
                self._go_on(loop)
                if loop.is_closed() or self._readable():
                    return
        finally:
            if not loop.is_closed():
                for fd in fds:
                    loop.remove_reader(fd)
            self._gate.install()

    def _go_on(self, loop):
        try:
            self._gate.run(loop.run_forever)
        except BaseException as error:       # a task raised SystemExit, or was interrupted to let the next cell run
            text = tracebacks.describe(error)['traceback']
            try:
                sys.__stderr__.write('A task that an earlier cell had left was ended:\n' + text)
            except Exception:
                pass

    def _has_work(self, loop):
        if self._asyncio.all_tasks(loop):
            return True
        # Servers, transports and timers need no task; how a loop keeps them is its own affair.
        try:
            return bool(loop._scheduled or loop._ready or len(loop._selector.get_map()) > 1)
        except Exception:
            return True


async def _settle(coroutine, outcome):
    """Keeps whatever a cell raises out of the loop, which would stop at a SystemExit or KeyboardInterrupt."""
    try:
        outcome.append((await coroutine, None))
    except BaseException as error:
        outcome.append((None, error))


def _insist(noticed, thread):
    """Some other task blocks the loop, so that nothing can be cancelled: a second signal ends that one."""
    if not noticed.acquire(True, _REACTION):
        signal.pthread_kill(thread, signal.SIGINT)


def _adopt(asyncio):
    """The loop that an earlier cell made or used by asyncio.get_event_loop(), else a new one."""
    import warnings
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            loop = asyncio.get_event_loop()
        if not loop.is_closed():
            return loop
    except Exception:            # 3.14, or asyncio.run() has left none
        pass
    return asyncio.new_event_loop()
