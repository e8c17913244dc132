"""The courier's helper processes: each does one call at a time that may take long, in the blocking way, and none holds an end of the channel."""

import errno
import fcntl
import os
import select
import signal
import socket
import struct
import time
from collections import deque

from . import frames, lane_files, link, loop, osdep
from .fault import Fault, reason

HELPERS_MAX = 4
END_SECONDS = 5  # for what SIGKILL does not end at once
# What an errand is: a call as the host sent it; one that is so long that only a helper takes it apart; a step that the courier asks for.
CALL, LONG, STEP = b"CLS"
_HEAD = struct.Struct(">d")


class Errand(object):
    """Something for a helper to do: JSON with an `op`, and who wants to know. Steps of a call are short and are let finish; calls are not."""

    def __init__(self, text, end, done, step=False, kind=CALL):
        # type: (bytes, float, object, bool, int) -> None
        self.text = text
        self.end = end
        self.done = done  # called with (records, the answer's text)
        self.step = step
        self.kind = kind
        self.helper = None  # type: object
        self.pool = None  # type: object


class Pool(object):
    """At most four helpers, or as many as there is a word of, forked when they are needed."""

    def __init__(self, loop_, duty, most=HELPERS_MAX):
        # type: (loop.Loop, object, int) -> None
        self._loop = loop_
        self._most = most
        self._duty = duty
        self._helpers = []  # type: list
        self._waiting = deque()  # type: deque

    def send(self, errand):
        # type: (Errand) -> None
        errand.pool = self
        if errand.step:
            self._waiting.appendleft(errand)
        else:
            self._waiting.append(errand)
        self._advance()

    def _advance(self):
        while self._waiting:
            helper = next((helper for helper in self._helpers if helper.errand is None and not helper.ending), None)
            if helper is None and len(self._helpers) >= self._most:
                return
            errand = self._waiting.popleft()
            try:
                helper = helper or self._fork()
            except OSError as error:
                errand.done(b"", link.failure(_no_helper(errand, error)))
                continue
            helper.begin(errand)

    def _fork(self):
        helper = Helper(self._loop, self._duty, self._advance)
        self._helpers.append(helper)
        return helper

    def cancel(self, errand):
        # type: (Errand) -> None
        """Nobody waits for it any more."""
        errand.done = _nobody
        if errand.helper is None:
            if errand in self._waiting:
                self._waiting.remove(errand)
        elif not errand.step:
            errand.helper.kill()

    def reap(self):
        # type: () -> None
        """SIGCHLD."""
        for helper in list(self._helpers):
            if helper.reaped():
                self._helpers.remove(helper)
                untouched = helper.lost()
                if untouched is not None:
                    self._waiting.appendleft(untouched)
        self._advance()

    def close(self):
        # type: () -> None
        """End and reap them: where nobody else does, they would stay as zombies."""
        self._waiting.clear()
        for helper in self._helpers:
            helper.kill()
        signal.alarm(END_SECONDS)
        for helper in self._helpers:
            helper.reaped(0)


def _no_helper(errand, error):
    # Of a whole call nothing has been done; a step is part of one of which much may have been.
    code = "no-process" if error.errno == errno.EAGAIN and errand.kind == CALL and not errand.step else "internal"
    return Fault(code, "no free process on the target" if code == "no-process" else "a helper process cannot be had: " + reason(error),
                 "end processes of this user there, or raise its limit (ulimit -u, pids.max)")


def _nobody(_records, _text):
    pass


class Helper(object):
    """One process, as the courier sees it."""

    def __init__(self, loop_, duty, free):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            held, lifeline = socket.socketpair()
            with held, lifeline:
                self._pid = os.fork()
                if self._pid == 0:
                    _live(theirs.detach(), lifeline.detach(), duty)
                self._fd, self._held = ours.detach(), held.detach()
        self.errand = None  # type: object
        self._loop = loop_
        self._free = free
        self._reader = frames.Reader()
        self._records = []  # type: list
        self._rest = b""  # type: object
        self._missed = False  # it died before it could have begun
        self.ending = False  # killed, though it may have answered before; what it is given now would be lost with it
        os.set_blocking(self._fd, False)
        loop_.watch(self._fd, self._ready)

    def begin(self, errand):
        # type: (Errand) -> None
        errand.helper = self
        self.errand = errand
        self._rest = memoryview(frames.pack(bytes((errand.kind,)), _HEAD.pack(errand.end) + errand.text))
        self._push()

    def _push(self):
        try:
            self._rest = self._rest[os.write(self._fd, self._rest):]
        except BlockingIOError:
            pass
        except OSError:
            # It is dead, as SIGCHLD is about to tell, and has not got the whole of its errand.
            self._rest = b""
            self._missed = True
        self._loop.watch(self._fd, self._ready, select.POLLIN | (select.POLLOUT if self._rest else 0))

    def _ready(self, events):
        if self._rest and events & select.POLLOUT:
            self._push()
        if not self._read() and self._fd in self._loop:
            self._loop.unwatch(self._fd)  # it has ended, as SIGCHLD is about to tell

    def _read(self):
        """Take what has come; False at the end."""
        data = loop.read_some(self._fd, 1 << 17)
        for kind, payload in self._reader.feed(data or b""):
            if kind == b"O":
                self._records.append(payload)
            elif self.errand is not None:
                records, self._records = b"".join(self._records), []
                errand, self.errand = self.errand, None
                errand.helper = None
                errand.done(records, payload)
                self._free()
        return data is None or bool(data)

    def kill(self):
        # type: () -> None
        self.ending = True
        try:
            os.kill(self._pid, signal.SIGKILL)
        except OSError:
            pass

    def reaped(self, how=os.WNOHANG):
        # type: (int) -> bool
        try:
            return os.waitpid(self._pid, how)[0] != 0
        except ChildProcessError:
            return True

    def lost(self):
        # type: () -> object
        """It is dead. What it had said before counts. Gives its errand back if it has not been begun."""
        while self.errand is not None and self._read():
            pass
        self._loop.unwatch(self._fd)
        os.close(self._fd)
        os.close(self._held)
        errand, self.errand = self.errand, None
        if errand is None:
            return None
        errand.helper = None
        if self._missed and errand.done is not _nobody:
            return errand
        errand.done(b"", link.failure(Fault("internal", "the helper process of this call was killed", "ask again")))
        return None


# -- the helper's side -------------------------------------------------------------------------------------------------

class Answer(link.Answer):
    """Frames to the courier."""

    def __init__(self, fd):
        link.Answer.__init__(self, "", fd)

    def send(self, kind, payload):
        if kind == "json":
            signal.alarm(0)  # before the courier can have another errand for us
        frames.write_all(self.fd, frames.pack(b"O" if kind == "out" else b"J", payload))


def _live(fd, lifeline, duty):
    """The life of a helper: call after call, until the courier is gone."""
    try:
        _leave_courier(fd, lifeline)
        while True:
            frame = frames.read_frame(fd)
            if frame is None:
                break
            end = _HEAD.unpack_from(frame[1])[0]
            # We end at its deadline, whatever it hangs in.
            signal.alarm(max(1, int(end - time.monotonic()) + 2))
            duty(frame[0][0], frame[1][_HEAD.size:], end, Answer(fd))
    except BaseException:
        os._exit(1)
    os._exit(0)


def _leave_courier(fd, lifeline):
    """Nothing of the courier's stays with us: neither the channel nor a kernel's bell, which must fall silent when the courier dies."""
    lane_files.may_wait = True
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    osdep.close_all_except({fd, lifeline, 2})
    osdep.null_on((0, 1))
    # Nothing is ever said on it, so that SIGIO is the courier's death, and ends us whatever we hang in. Of the other socket it could be what we have read:
    # a process may be halted between its writing and its ringing.
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:
        os._exit(1)  # it died before
