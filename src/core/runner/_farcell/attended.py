"""What the courier keeps of the kernels it has to do with: a bell that is hung up once, an eye on the supervisor, and who waits for what."""

import os
import select
import time
from collections import OrderedDict

from . import cellfiles, doctor, files, kernels, lane_client, osdep, watch

# Kernels without an open wait of which everything stays open, and how many descriptors that takes for each.
KEPT = 256
_DESCRIPTORS = 12
LOOK_EVERY = 5.0  # although there are bells: a cleaner of temporary files may have taken one


class Attended(object):
    """One kernel. Whoever follows a cell of it is called when there may be news (`ring`) and when it is dead (`death`)."""

    def __init__(self, loop, directory, stamp, dead):
        # type: (object, str, tuple, object) -> None
        self.directory = directory
        self._dead = dead  # called with us when there is nothing more to attend to
        self.stamp = stamp
        self.follows = {}  # type: dict
        self.loop = self._loop = loop
        self.replies = {}  # type: dict  # of cells whose reply names no record file as its full text: whether there is one
        self._bell = None  # type: object
        self._process = -1
        self._searched = False
        self._record = {}  # type: dict
        self._lane = None  # type: object
        self._lane_sought = False
        self.in_lane = None  # type: object  # whoever waits for a cell in the lane
        self._shelf = None  # type: object
        self._in_memory = None  # type: object
        self._wake = -1
        self._pause = watch.POLL_FIRST
        self._next_pulse = 0.0

    # -- opening and closing ---------------------------------------------------------------------------------------------

    def open(self):
        # type: () -> None
        """Have a bell and an eye, as far as they can be had. To be called before anything is shipped or looked at."""
        if self._bell is None:
            bell = watch.Bell(self.directory, True)
            if bell.fd >= 0:
                self._bell = bell
                self._loop.watch(bell.fd, self._rung)
        if not self._searched:
            self._searched = True
            self._record = files.read_json(os.path.join(self.directory, "kernel.json")) or {}
            self._process = _supervisor(self.directory, self._record)
            if self._process >= 0:
                self._loop.watch(self._process, self._ended)

    def close(self):
        # type: () -> None
        self._loop.cancel(self.directory)
        if self._bell is not None:
            self._loop.unwatch(self._bell.fd)
            self._bell.close()
            self._bell = None
        self._close_process()
        self._searched = False
        if self._lane is not None:
            self._loop.unwatch(self._lane.reply_fd)
            self._lane.close()
        self._lane, self._lane_sought = None, False
        if self._shelf is not None:
            self._shelf.close()
            self._shelf = None
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1

    def _close_process(self):
        if self._process >= 0:
            self._loop.unwatch(self._process)
            os.close(self._process)
            self._process = -1

    def watched(self):
        # type: () -> bool
        """Whether the end of its supervisor is told by itself; else its lock has to be looked at."""
        return self._process >= 0

    def lane(self):
        # type: () -> object
        """The kernel's lane, open, or None where there is none or it cannot be had."""
        if not self._lane_sought:
            self._lane_sought = True
            self._lane = lane_client.Lane.open(self.directory, self._record)
        return self._lane

    def is_in_memory(self):
        # type: () -> bool
        """Whether nothing that is written to its directory has to wait for a disk."""
        if self._in_memory is None:
            self._in_memory = doctor.is_memory(self.directory)
        return self._in_memory

    def is_waited_for(self):
        # type: () -> bool
        return bool(self.follows) or self.in_lane is not None

    # -- what is done to it ----------------------------------------------------------------------------------------------

    def ship(self, request):
        # type: (dict) -> int
        """Ship a request and wake the supervisor; gives the number. LockTimeout where somebody holds the lock at this moment."""
        if self._shelf is None:
            self._shelf = cellfiles.Shelf(self.directory)
        number = self._shelf.ship(request, False, 0)[0]
        self._poke()
        self._shelf.tidy()
        return number

    def _poke(self):
        try:
            if self._wake < 0:
                self._wake = os.open(self.directory + "/wake", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            os.write(self._wake, b"\n")
        except OSError:
            pass  # it is full of wake-ups; or nobody reads it, which the death of the supervisor tells, or there is none and it polls

    def prepare(self):
        # type: () -> None
        """After an answer: the next request is to be shipped quickly."""
        if self._shelf is not None:
            self._shelf.prepare()

    def acknowledge(self, numbers):
        # type: (list) -> None
        cellfiles.acknowledge(self.directory, numbers, self.replies)
        self.delivered(numbers)

    def delivered(self, numbers):
        # type: (list) -> None
        """The host has these replies, and their files have been seen to."""
        for number in numbers:
            self.replies.pop(number, None)

    # -- who follows what ------------------------------------------------------------------------------------------------

    def follow(self, follow):
        self.follows[follow.call.ref] = follow
        self._pause = watch.POLL_FIRST
        if not self._loop.armed(self.directory) or self._bell is None:
            self._arm()

    def leave(self, follow):
        if self.follows.pop(follow.call.ref, None) is not None and not self.follows:
            self._loop.cancel(self.directory)

    def _arm(self):
        """Only while somebody waits: nothing of an idle courier ticks."""
        now = time.monotonic()
        wait = LOOK_EVERY if self._process >= 0 else watch.PULSE
        self._next_pulse = now + wait
        if self._bell is None:
            wait = self._pause
        self._loop.at(self.directory, now + wait, self._tick)

    def _tick(self):
        now = time.monotonic()
        try:
            if now >= self._next_pulse:
                self._next_pulse = now + (LOOK_EVERY if self._process >= 0 else watch.PULSE)
                self._pulse()
            self.ring()
        finally:
            if self.follows:
                wait = self._next_pulse - now
                if self._bell is None:
                    wait = min(wait, self._pause)
                    self._pause = min(self._pause * 2, watch.POLL_LAST)
                self._loop.at(self.directory, now + wait, self._tick)

    def _pulse(self):
        """What no event would tell: a supervisor without a pidfd that is dead, a bell that is gone."""
        if self._process < 0 and not files.is_locked(self.directory):
            self._dead(self)
        else:
            self.check_bell()

    def check_bell(self):
        # type: () -> None
        """Hang up a new bell where a cleaner of temporary files took the old one."""
        if self._bell is not None and not os.fstat(self._bell.fd).st_nlink:
            self._loop.unwatch(self._bell.fd)
            self._bell.close()
            self._bell = None
            self.open()

    def _rung(self, _events):
        try:
            os.read(self._bell.fd, 4096)
        except BlockingIOError:
            pass
        self.ring()

    def ring(self):
        for follow in list(self.follows.values()):
            follow.guarded(follow.news)

    def _ended(self, _events):
        self._close_process()
        if not files.is_locked(self.directory):
            self._dead(self)
        elif self.follows:
            self._arm()  # somebody else holds it, whose end the lock tells


class Attendance(object):
    """All kernels that are attended to; of those that nobody waits for, only the last ones used."""

    def __init__(self, loop):
        self._loop = loop
        self._known = OrderedDict()  # type: OrderedDict
        limit = osdep.open_files_limit()
        self._room = KEPT if limit is None else max(1, limit // 2 // _DESCRIPTORS)

    def checked(self, path):
        # type: (str) -> Attended
        """The kernel in this directory, which is ours and safe; Fault where it is not."""
        known = self._known.get(path) if isinstance(path, str) else None
        if known is not None:
            if known.stamp == _stamp(path):
                return known
            self._drop(known)
        kernels.checked_dir(path)
        return Attended(self._loop, path, _stamp(path), self._drop)

    def at_rest(self, path):
        # type: (object) -> object
        """A kernel that is attended to, whose end would be told, and of which nobody waits for anything; else None."""
        kernel = self._known.get(path) if type(path) is str else None
        if kernel is None or kernel.follows or kernel.in_lane is not None or not kernel.watched():
            return None
        self._known.move_to_end(path)
        return kernel

    def attend(self, kernel):
        # type: (Attended) -> bool
        """Keep an eye on it, and a bell in it, if it lives."""
        if self._known.get(kernel.directory) is kernel and kernel.watched():
            self._known.move_to_end(kernel.directory)
            kernel.check_bell()
            return True
        if not files.is_locked(kernel.directory):
            self._drop(kernel)
            return False
        kernel.open()
        self._known[kernel.directory] = kernel
        excess = len(self._known) - min(KEPT, self._room)
        if excess > 0:
            for other in [other for other in self._known.values() if not other.is_waited_for() and other is not kernel][:excess]:
                self._drop(other)
        return True

    def ring(self, directory):
        # type: (str) -> None
        """Look after the cells of a kernel by ourselves."""
        kernel = self._known.get(directory)
        if kernel is not None:
            kernel.ring()

    def _drop(self, kernel):
        kernel.close()
        if self._known.get(kernel.directory) is kernel:
            del self._known[kernel.directory]
        waiting = list(kernel.follows.values())
        if kernel.in_lane is not None:
            waiting.append(kernel.in_lane)
        for follow in waiting:
            follow.guarded(follow.death)

    def close(self):
        # type: () -> None
        for kernel in self._known.values():
            kernel.close()


def _stamp(path):
    """What must stay as it was when the directory was checked; None where it is gone."""
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_mode, info.st_uid


def _supervisor(directory, record):
    """A pidfd of the process that holds the kernel, or -1 where there is none or it cannot be had."""
    pid, start_time = record.get("pid"), record.get("start_time")
    if not isinstance(pid, int) or pid <= 1 or not start_time or record.get("boot_id") != osdep.boot_id():
        return -1
    fd = osdep.pidfd_open(pid)
    if fd < 0:
        return -1
    # In this order: what the descriptor means cannot change any more.
    if osdep.proc_start_time(pid) == start_time and files.is_locked(directory):
        return fd
    os.close(fd)
    return -1
