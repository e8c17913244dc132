"""Waiting for a cell or a control on the target itself, so that the host needs one round trip and no polling."""

import os
import select
import signal
import time

from . import cellfiles, fastjson, files
from .fault import Fault, HostGone
from .records import STREAM_MAX, Glance, read_records

# How often the lock is looked at while nothing rings: a dead supervisor rings no bell.
PULSE = 0.2
POLL_FIRST = 0.001
POLL_LAST = 0.05
# What is kept back from the deadline for the answer itself.
ANSWER_SECONDS = 0.5


class Bell:
    """A FIFO of ours among the kernel's waiters. Without FIFOs it is a pause that grows from 1 to 50 ms."""

    def __init__(self, directory, output, stdout_fd=1):
        self.fd = -1
        self.path = None
        self.pause = POLL_FIRST
        self.poll = select.poll()
        # No events asked for: what comes is POLLERR or POLLHUP, when the reader of our answer is gone.
        self.poll.register(stdout_fd, 0)
        self.stdout_fd = stdout_fd
        waiters = os.path.join(directory, "waiters")
        name = os.urandom(8).hex()
        hidden = os.path.join(waiters, ".new-" + name)
        try:
            if not files.make_fifo(hidden):
                return
            self.path = hidden
            # Open for both: with a writer of its own it never reports a hang-up. And before the supervisor can see it, which removes what nobody reads.
            self.fd = os.open(hidden, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            final = os.path.join(waiters, "w-" + name + ("-o" if output else ""))
            os.rename(hidden, final)
            self.path = final
            self.poll.register(self.fd, select.POLLIN)
        except OSError:
            # A full disk, a directory without waiters: polling is always possible.
            self.close()

    def wait(self, seconds):
        """Until it rings, at most `seconds`; True if it did."""
        if self.fd < 0:
            seconds = min(seconds, self.pause)
            self.pause = min(self.pause * 2, POLL_LAST)
        rung = False
        for fd, _event in self.poll.poll(max(0, int(seconds * 1000 + 0.999))):
            if fd == self.stdout_fd:
                raise HostGone()
            rung = True
            try:
                os.read(fd, 4096)
            except BlockingIOError:
                pass
        return rung

    def close(self):
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self.path:
            files.remove(self.path)
            self.path = None


# --- a cell ------------------------------------------------------------------------------------------------------------------------

UNSETTLED = ("waiting", "running")


class Watch:
    """What there is to tell of one cell, and until when it is waited for. It looks and never waits: its users do, each in their own way."""

    def __init__(self, directory, number, options, end, known_id=None, ours=False):
        self.directory = directory
        self.number = number
        self.known_id = known_id
        self.ours = ours  # we shipped it, so it may be taken back from a dead kernel
        self.offset = options["offset"]
        self.stream = options["stream"]
        self.gather = options["gather"]
        self.tell = options["tell"]
        self.until = min(time.monotonic() + options["hold_ms"] / 1000.0, end - ANSWER_SECONDS)
        self.seen_alive = False

    def look(self):
        """The cell as it is now, and whether that is worth an answer."""
        cell = cellfiles.look(self.directory, self.number)
        if cell.fate == "waiting":
            return cell, self.tell and cellfiles.ahead(self.directory, self.number) > 0
        return cell, cell.fate != "running"

    def bereaved(self):
        """The cell of a kernel that is dead: settled in its last moment, taken back (a Fault), or to be buried."""
        cell = cellfiles.look(self.directory, self.number)
        if cell.fate == "waiting" and self.ours and cellfiles.withdraw(self.directory, self.number):
            raise Fault("kernel-dead", cellfiles.obituary(self.directory), "start a new one")
        return cell

    def answer(self, cell, reply=None, raw=None):
        """The fields of the answer, and the reply's text where there is one. `reply` is that of a cell that was buried, `raw` a text that was read already."""
        fate, known_id = cell.fate, self.known_id
        if fate == "settled":
            raw = raw or files.read_bytes(files.cell_path(self.directory, "res", self.number))
            if raw is None:
                fate = "unknown"
            elif known_id is None or raw.rfind(b'"cell":{"id":"%s"' % known_id.encode("utf-8", "replace")) < 0:
                # Taken apart only where the text does not show at once that it is the reply of our cell.
                reply = fastjson.loads(raw)
        if reply is not None:
            known_id = reply["cell"].get("id") if isinstance(reply.get("cell"), dict) else None
            if self.known_id and known_id and known_id != self.known_id:
                # The number was given anew after the cell was acknowledged, or the host mixes up kernels.
                fate, reply, raw, known_id = "unknown", None, None, self.known_id
        if raw is not None and not self.gather and cellfiles.is_gathered(raw):
            raw = cellfiles.gathered(self.directory, self.number, raw)
        if fate == "unknown" and not os.path.isdir(self.directory):
            # Not `no-kernel`, which says that nothing was shipped: this cell was here, and may have run.
            raise Fault("kernel-gone", "the kernel was removed while the cell was there: " + self.directory)
        answer = {
            "number": self.number, "id": known_id or cellfiles.cell_id(self.directory, self.number), "fate": fate, "offset": self.offset,
            "ahead": cellfiles.ahead(self.directory, self.number) if fate == "waiting" else 0,
            "running_ms": round(cellfiles.running_ms(cell), 3) if cell.info is not None and fate == "running" else 0.0,
        }
        if raw is None:
            answer["reply"] = reply
        return answer, raw


class Poll(Watch):
    """One long poll: waits by itself, and takes the records that one answer can hold."""

    def __init__(self, directory, number, options, end, known_id=None, ours=False):
        Watch.__init__(self, directory, number, options, end, known_id, ours)
        self.lull = options["lull_ms"] / 1000.0
        self.gather = False  # one answer need not hold all records
        self.records = b""
        self.seen_output = None  # when there was output past the offset for the first time
        self.glance = Glance(self.offset)

    def follow(self):
        """Wait; gives the cell as it was when there was something to tell."""
        cell = self._look()
        if cell is not None or time.monotonic() >= self.until:
            return cell or self._tell()
        bell = Bell(self.directory, self.stream)
        try:
            # Look again before the first wait: what settled while the bell was being hung up did not ring it.
            alive = files.is_locked(self.directory)
            while True:
                cell = self._look()
                if cell is not None:
                    return cell
                if not alive:
                    return self._tell()
                self.seen_alive = True
                left = self._left()
                if left <= 0:
                    return self._tell()
                if not bell.wait(min(left, PULSE)):
                    # Asked before the files are looked at: whatever it wrote in its last moment is seen.
                    alive = files.is_locked(self.directory)
        finally:
            bell.close()

    def _left(self):
        end = self.until
        if self.seen_output is not None:
            end = min(end, self.seen_output + self.lull)
        return end - time.monotonic()

    def _look(self):
        """The cell if there is something to tell now, else None."""
        cell, telling = self.look()
        if telling:
            return self._tell(cell)
        if self.stream and cell.fate == "running":
            size = self._out_size()
            if size - self.offset >= STREAM_MAX or size > self.offset and self.glance.finds_call(self._out_path()):
                return self._tell(cell)
            if self.seen_output is None and size > self.offset:
                self.seen_output = time.monotonic()
        return None

    def _tell(self, cell=None):
        """Take the records that belong to what is told; a cell counts as settled when nothing of its output is left behind."""
        cell = cell or cellfiles.look(self.directory, self.number)
        if self.stream and cell.fate in ("settled", "running"):
            self.take()
            if cell.fate == "settled" and len(self.records) >= STREAM_MAX // 2 and read_records(self._out_path(), self.offset, probe=True):
                cell.fate = "running"
        return cell

    def take(self):
        """Records past the offset."""
        more = read_records(self._out_path(), self.offset)
        self.records += more
        self.offset += len(more)

    def _out_path(self):
        return files.cell_path(self.directory, "out", self.number)

    def _out_size(self):
        try:
            return os.lstat(self._out_path()).st_size
        except OSError:
            return 0


def settle(directory, number, options, end, send, expected_id=None, ours=False, shipped=False):
    """Follow a cell and give the answer's fields. `shipped`: just now, to a kernel that lived."""
    poll = Poll(directory, number, options, end, expected_id, ours)
    poll.seen_alive = shipped
    cell, reply = poll.follow(), None
    if cell.fate in UNSETTLED and not files.is_locked(directory):
        cell = poll.bereaved()
        if cell.fate in UNSETTLED:
            if poll.stream:
                poll.take()
            reply = cellfiles.bury(directory, number, poll.seen_alive)
            cell.fate = "dead" if reply is not None else "unknown"
    answer = poll.answer(cell, reply)
    if poll.records and answer[0]["fate"] != "unknown":
        send("out", poll.records)
    return answer


# --- a control ---------------------------------------------------------------------------------------------------------------------

def control(directory, request, hold, end):
    """Leave a control for the supervisor and wait for its answer; gives (done, detail)."""
    do = request["do"]
    if not files.is_locked(directory):
        if do == "stop":
            return True, "it had ended already"
        raise Fault("kernel-dead", cellfiles.obituary(directory), "start a new one")
    stem = os.path.join(directory, "cells", "ctl_" + os.urandom(8).hex())
    until = min(time.monotonic() + hold, end - ANSWER_SECONDS)
    bell = Bell(directory, False)
    try:
        _leave(stem + ".json", request, directory)
        answer = None
        while True:
            # In this order: the answer may be the last thing that it wrote.
            alive = files.is_locked(directory)
            answer = answer or files.read_json(stem + ".done")
            if answer is not None and not (do == "stop" and answer.get("done") and alive):
                return bool(answer.get("done")), answer.get("detail")
            if not alive:
                if do == "stop":
                    return True, None
                raise Fault("kernel-dead", cellfiles.obituary(directory), "start a new one")
            left = until - time.monotonic()
            if left <= 0 and do == "stop" and not (request["if_idle"] and answer is None):
                return _force(directory)
            if left <= 0:
                return False, "the kernel lives and does not answer"
            # The last moments of a kernel that is stopping ring no bell; they are short.
            bell.wait(min(left, PULSE if answer is None else 0.01))
    finally:
        bell.close()
        for suffix in (".json", ".done"):
            files.remove(stem + suffix)


def _force(directory):
    """End a kernel whose supervisor does not: stopped by SIGSTOP, starved, or hung."""
    from . import osdep
    record = files.read_json(os.path.join(directory, "kernel.json")) or {}
    pid, start_time = record.get("pid"), record.get("start_time")
    if not isinstance(pid, int) or pid <= 1 or not start_time or record.get("boot_id") != osdep.boot_id():
        return False, "the kernel does not answer, and its process is not known"
    osdep.kill_exact(pid, start_time, signal.SIGKILL)
    osdep.kill_marked(os.path.basename(directory))
    until = time.monotonic() + 1.0
    while files.is_locked(directory) and time.monotonic() < until:
        time.sleep(POLL_FIRST)  # the kernel's own time to tear a process down; nothing rings when it has
    if files.is_locked(directory):
        return False, "its process could not be ended"
    return True, "it did not answer, and was killed"


def _leave(path, request, directory):
    try:
        files.atomic_write(path, files.to_json(request))
    except FileNotFoundError:
        raise Fault("no-kernel", "the kernel's directory is gone: " + directory)
    files.poke(os.path.join(directory, "wake"))
