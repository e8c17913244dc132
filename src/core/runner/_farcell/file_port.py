"""The port of a kernel that lives in a directory: requests, output, replies and controls are files."""

import errno
import os
import time

from . import cell, files, osdep, output, reply
from .file_calls import FileCalls
from .file_lane import LOOKED_AFTER, FileLane
from .lane_page import PUT
from .recent import Recent

RESERVE = 64 * 1024
_ZEROS = b"\0" * RESERVE  # made once, for all kernels that are forked from one process
REQUEST_MAX = 256 << 20
SPILL_DEFAULT = 64 << 20
SPILLS_KEPT = 2  # record files that replies point to
_POKE_EVERY = 0.01
_SCAN_EVERY = 60.0  # in case a wake-up was lost: its sender died between the file and the byte
_POLL_FIRST, _POLL_LAST = 0.001, 0.05
_WAITER_AGE = 5.0  # a waiter makes its FIFO first and opens it then
_DONE_AGE = 600.0


class FilePort(FileLane, FileCalls):
    """Serves the directory of one kernel; its supervisor is the only one that renames requests and writes replies."""

    gather_from = 64 * 1024

    def __init__(self, directory, spec, log, lane=None):
        # type: (str, dict, object, object) -> None
        self._enter(directory)
        self._spec = spec
        self._log = log
        self._queue = []  # type: list
        self._known = {}  # type: dict
        self._served = Recent()
        self._certain = 1  # no request has come before this number that no listing has shown
        self._spills = []  # type: list
        self._last_poke = 0.0
        self._pause = _POLL_FIRST
        self._tidied = time.monotonic()
        self._free = osdep.free_bytes(directory)
        self._lay_out()
        self._open_lane(lane)

    def _enter(self, directory):
        self.directory = directory
        self._cells = os.path.join(directory, "cells")
        self._waiters = os.path.join(directory, "waiters")
        self._reserve = os.path.join(directory, "reserve")
        self._rpc = os.path.join(directory, "rpc")

    def moved(self, directory):
        # type: (str) -> None
        """The directory has another name now, and nothing was done in it so far."""
        self._enter(directory)
        if self.lane is not None:
            self.lane.moved(directory)

    def _spill_bytes(self):
        limit = (self._spec.get("limits") or {}).get("spill_bytes")
        limit = SPILL_DEFAULT if limit is None else limit
        return min(limit, self._free // 4)

    def _lay_out(self):
        for folder in (self._cells, self._waiters):
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:
                pass
        fifo = os.path.join(self.directory, "wake")
        self._wake_fd = -1
        try:
            made = files.make_fifo(fifo)
        except FileExistsError:
            made = True
        if made:
            # Open for both: there is always a reader, and never an end of file.
            self._wake_fd = os.open(fifo, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
            osdep.set_pipe_size(self._wake_fd, 4096)
        self.wake = "fifo" if made else "poll"
        self._have_reserve = False
        self._refill_reserve()

    def open(self, loop, kernel):
        self._loop = loop
        self._kernel = kernel
        if self._wake_fd >= 0:
            loop.watch(self._wake_fd, self._woken)
        self._next_look()

    def _woken(self, _events):
        try:
            os.read(self._wake_fd, 65536)
        except OSError:
            pass
        self._scan()

    def _next_look(self):
        when = _SCAN_EVERY if self.wake == "fifo" else self._pause
        self._loop.at("look", time.monotonic() + when, self._look_by_itself)

    def _look_by_itself(self):
        if time.monotonic() - self._tidied > _SCAN_EVERY / 2:
            self._tidied = time.monotonic()
            self._tidy()
            self._refill_reserve()
        before = len(self._known)
        self._scan()
        self._pause = min(self._pause * 2, _POLL_LAST) if len(self._known) == before else _POLL_FIRST
        self._next_look()

    def look(self):
        self._take_from_lane()
        self._scan()

    def _scan(self):
        """One listing: new requests are queued by number, withdrawn ones forgotten, controls carried out. Answers to calls come first."""
        if self._expecting:
            self._take_answers()
        for name in self._list():
            self._control(name)

    def _list(self):
        """The names of controls; what there is of requests is noted."""
        try:
            names = os.listdir(self._cells)
        except OSError as error:
            self._check_gone(error)
            return ()
        now = time.monotonic()
        present, controls = set(), []
        for name in names:
            if name.startswith("cell_req_"):
                number = _number(name)
                if number:
                    present.add(number)
            elif name.startswith("ctl_") and name.endswith(".json"):
                controls.append(name)
        if present != self._known.keys():
            self._known = {number: self._known.get(number, now) for number in present}
            self._queue = sorted(present, reverse=True)
        self._look_for_withdrawn(present)
        return controls

    def waiting(self):
        return len(self._known) + len(self._requests)

    def take(self):
        while self._queue and not self._loop.armed("claim"):
            if self._queue[-1] > self._certain and (self.lane is None or self._queue[-1] > self.lane.words[PUT] + 1):
                # Those before it were there before it, but a listing that began before it was may have missed them, and it not.
                self._certain = self._queue[-1]
                self._list()
                continue
            number = self._queue.pop()
            self._certain = max(self._certain, number + 1)
            seen = self._known.pop(number, None)
            if seen is not None:
                claimed = self._claim(number, seen)
                if claimed is not None:
                    return claimed
        return None

    def _claim(self, number, seen):
        """The rename is what decides between us and whoever withdraws the request."""
        request, run = self._path("req", number), self._path("run", number)
        if number in self._served:
            # Its reply may still wait to be fetched: a second one under its number must not replace it.
            self._log("a second request with number %d was removed", number)
            _remove(request)
            return None
        try:
            os.rename(request, run)
        except OSError as error:
            if error.errno != errno.ENOENT:
                self._log("cannot claim %d: %s", number, error)
                if error.errno in osdep.NO_ROOM:
                    self._loop.at("claim", time.monotonic() + 0.5, self._scan)
            self._check_gone(error)
            return None
        self._served.add(number)
        try:
            data = _read_request(run)
        except OSError as error:
            refused = cell.Cell(number, seen)
            refused.refusal = "the request cannot be read: %s" % (error.strerror or error)
            return refused
        return cell.parse(data, number, seen)

    def _path(self, kind, number):
        return "%s/cell_%s_%06d.json" % (self._cells, kind, number)

    def _out_path(self, number):
        return "%s/cell_out_%06d" % (self._cells, number)

    def records(self, number):
        path = self._out_path(number)
        return output.RecordFile(
            lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), self._spill_bytes())

    def output(self, number, blob):
        now = time.monotonic()
        if now - self._last_poke >= _POKE_EVERY:
            self._poke(True)
        elif not self._loop.armed("poke"):
            self._loop.at("poke", self._last_poke + _POKE_EVERY, lambda: self._poke(True))

    def _poke(self, only_output):
        """Wake those who wait; a FIFO that nobody reads is removed."""
        if only_output:
            self._last_poke = time.monotonic()
        self._pause = _POLL_FIRST
        try:
            names = os.listdir(self._waiters)
        except OSError:
            return
        for name in names:
            if not name.startswith("w-") or (only_output and not name.endswith("-o")):
                continue
            path = self._waiters + "/" + name
            try:
                if not files.poke(path) and abs(time.time() - os.lstat(path).st_mtime) > _WAITER_AGE:
                    _remove(path)
            except OSError:
                pass

    def spill(self, number):
        return self._out_path(number)

    def _write(self, path, data):
        """Put a file there that must not fail to be, if need be in the place of the reserve."""
        for attempt in (1, 2):
            try:
                files.atomic_write(path, data)
                return True
            except OSError as error:
                if error.errno not in osdep.NO_ROOM:
                    self._check_gone(error)
                    self._log("cannot write %s: %s", os.path.basename(path), error)
                    return False
                if attempt == 2 or not self._have_reserve:
                    return False
                self._log("the disk is full: the reserve is given back")
                self._have_reserve = False
                _remove(self._reserve)
        return False

    def settle(self, cell, reply, spilled):
        if not self._write(self._path("res", cell.number), reply):
            return False
        self._settled(cell)
        _remove(self._path("run", cell.number))
        if cell.records is not None:
            cell.records.close()
        if spilled:
            self._spills.append(cell.number)
            while len(self._spills) > SPILLS_KEPT:
                _remove(self._out_path(self._spills.pop(0)))
        self._loop.cancel("poke")
        self._poke(False)
        return True

    def _control(self, name):
        """Carry out one control. It is unlinked before, so that it is done once at most."""
        path = self._cells + "/" + name
        try:
            request = files.read_json(path)
        except OSError:
            request = None
        of_lane = request is not None and request.get("do") == "lane"
        if of_lane and not self._look_after():
            return  # for the next time
        if not _remove(path):
            return  # the asker took it back, or it cannot be removed and would be done again and again
        answer = dict(LOOKED_AFTER if of_lane else self._kernel.control(request or {}), v=cell.VERSION)
        try:
            files.atomic_write(path[:-len(".json")] + ".done", reply.encode(answer))
        except OSError as error:
            self._log("cannot answer a control: %s", error)
        self._poke(False)

    def write_record(self, record):
        try:
            files.atomic_write(os.path.join(self.directory, "kernel.json"), reply.encode(record))
        except OSError as error:
            self._check_gone(error)
            self._log("cannot rewrite kernel.json: %s", error)
            self._loop.at("record", time.monotonic() + 0.5, self._kernel.write_record)

    def _check_gone(self, error):
        """Whether the directory was removed under us: then there is nobody left to serve."""
        if error.errno in (errno.ENOENT, errno.ENOTDIR) and not os.path.isdir(self._cells):
            self._kernel.gone("directory removed")

    def _refill_reserve(self):
        """Space that is given back when the disk is full, so that a reply can still be written."""
        if self._have_reserve:
            return
        try:
            fd = os.open(self._reserve, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            try:
                # Written, not only stretched: holes take no space and would give none back.
                self._have_reserve = os.write(fd, _ZEROS) == RESERVE
            finally:
                os.close(fd)
        except OSError:
            _remove(self._reserve)

    def _tidy(self):
        """Remove answers whose asker never came for them."""
        try:
            for name in os.listdir(self._cells):
                if name.startswith("ctl_") and name.endswith(".done"):
                    path = self._cells + "/" + name
                    if time.time() - os.lstat(path).st_mtime > _DONE_AGE:
                        _remove(path)
        except OSError:
            pass

    def close(self, why):
        try:
            files.atomic_write(os.path.join(self.directory, "ended.json"),
                               reply.encode({"v": cell.VERSION, "why": why, "at": time.time()}))
        except OSError:
            pass
        self._poke(False)


def _number(name):
    """The number in cell_req_NNNNNN.json, or 0."""
    digits = name[9:-5]
    if name.endswith(".json") and 6 <= len(digits) <= 18 and not digits.strip("0123456789"):
        return int(digits)
    return 0


def _read_request(path):
    """The content of a claimed request; anything but a plain file of bearable size is an OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(fd, "rb", 0) as file:
        info = os.fstat(fd)
        if info.st_mode & 0o170000 != 0o100000:
            raise OSError(errno.EINVAL, "not a plain file")
        if info.st_size > REQUEST_MAX:
            raise OSError(errno.EFBIG, "larger than %d bytes" % REQUEST_MAX)
        return file.read()


def _remove(path):
    """Remove whatever stands there; True if it is gone through us."""
    try:
        os.unlink(path)
        return True
    except FileNotFoundError:
        return False
    except OSError:
        pass
    try:
        files.remove_tree(path)  # somebody put a directory in its place
        return True
    except OSError:
        return False
