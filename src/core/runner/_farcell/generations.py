"""The interpreters of one kernel, one after the other: forking, reaping, and ending one with all that it started."""

import os
import signal
import time

from . import osdep
from .child import SETUP_FAILED, Interpreter
from .reply import describe_exit

MAX_FAILURES = 3  # interpreters in a row that ended without having run anything
RETRY_AFTER = 1.0
_KILL_SECONDS = 3.0
_TREE_SECONDS = 1.0


class Generations(object):
    """Holds the current interpreter. Where it comes from is known here alone: a guard can take the place of a fork."""

    def __init__(self, spec, loop, log, lane=None):
        # type: (dict, object, object, object) -> None
        self.current = None  # type: object
        self.prepared = None  # type: object # an interpreter that was forked before
        self.number = 0
        self.trouble = ""  # why there is no interpreter
        self._spec = spec
        self._loop = loop
        self._log = log
        self._lane = lane
        self._failures = 0
        self._last_try = 0.0

    def fork(self):
        # type: () -> bool
        """A new generation; False (and `trouble`) where the machine has none to give."""
        self._last_try = time.monotonic()
        try:
            self.current = self.prepared or Interpreter.start(self._spec, self._spec["id"], self.number + 1, self._lane)
            self.prepared = None
        except OSError as error:
            self.trouble = "cannot start an interpreter: %s" % (error.strerror or error).lower()
            self._log("fork failed: %s", error)
            return False
        self.number += 1
        self._log("generation %d, pid %d", self.number, self.current.pid)
        return True

    def may_fork(self):
        # type: () -> bool
        """Whether a fork has a chance: not right after several that came to nothing."""
        return self._failures < MAX_FAILURES or time.monotonic() - self._last_try >= RETRY_AFTER

    @property
    def doubtful(self):
        # type: () -> bool
        """Whether the current generation is a new try after several failures, and has not proved itself yet."""
        return self._failures >= MAX_FAILURES

    def proved(self):
        # type: () -> None
        """The current interpreter has brought a cell to its end."""
        self._failures = 0

    def reap(self):
        # type: () -> bool
        """Collect children that have ended; True if the current interpreter is among them.

        The interpreter's group is killed before its pid is given back, so that the group's number is still its own.
        """
        ended = False
        while True:
            pid = osdep.peek_child()
            if pid == 0:
                return ended
            interpreter = self.current
            if interpreter is not None and pid == interpreter.pid:
                self._kill_group(interpreter)
            try:
                pid, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            if interpreter is not None and pid == interpreter.pid and interpreter.status is None:
                interpreter.status = status
                ended = True

    @staticmethod
    def _kill_group(interpreter):
        try:
            os.killpg(interpreter.pid, signal.SIGKILL)
        except OSError:
            pass

    def end(self, feed):
        # type: (object) -> Interpreter
        """End the current interpreter and everything it started; `feed(kind, data)` gets the output that was under way."""
        interpreter = self.current
        interpreter.signal(signal.SIGKILL)
        self.kill_tree()
        deadline = time.monotonic() + _KILL_SECONDS  # gigabytes of memory take their time to be given back
        while interpreter.status is None and not self.reap() and time.monotonic() < deadline:
            self._loop.pause(0.02)
        interpreter.drain(feed)
        if interpreter.status is None:
            self._log("pid %d did not end after SIGKILL and is left behind", interpreter.pid)
        if interpreter.cells == 0 or (self.doubtful and interpreter.results == 0):
            self._count_failure(interpreter)
        else:
            self._failures = 0
        self.current = None
        for fd in (interpreter.out_fd, interpreter.stdout_fd, interpreter.stderr_fd):
            self._loop.unwatch(fd)
        interpreter.close()
        return interpreter

    def _count_failure(self, interpreter):
        if interpreter.killed or interpreter.status is None:
            return  # replaced on request: no failure of its own
        self._failures += 1
        self.trouble = describe_exit(interpreter.status, interpreter.oom_killed())["message"] + " before it could run anything"
        if os.WIFEXITED(interpreter.status) and os.WEXITSTATUS(interpreter.status) == SETUP_FAILED:
            self.trouble = "the interpreter could not be set up"

    def kill_tree(self):
        # type: () -> None
        """Kill all descendants, also those that left the group or the session; strangers are never touched.

        Who forks while we look is found in the next round, so it goes on until nobody is left, for a bounded time.
        """
        own = os.getpid()
        end = time.monotonic() + _TREE_SECONDS
        while True:
            found = set(osdep.descendants(own)) | set(osdep.pids_with_mark(osdep.MARK, self._spec["id"]))
            if not any([osdep.kill_exact(pid, start, signal.SIGKILL) for pid, start in found]):
                return
            self.reap()
            if time.monotonic() >= end:
                self._log("%d descendants did not end in time", len(found))
                return
            self._loop.pause(0.002)
