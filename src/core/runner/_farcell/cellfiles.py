"""The files of cells as the host's side uses them: shipping, finding, withdrawing, acknowledging, and the reply of one that died."""

import errno
import os
import time

from . import fastjson, files, lane_files
from .fault import Fault

LOCK_SECONDS = 10.0
NUMBER_MAX = 10 ** 9
_ANSWER_ATTEMPTS = 3


class Cell:
    """What the files say about one cell at one moment."""

    def __init__(self, number, fate, info=None):
        self.number = number
        self.fate = fate
        self.info = info  # stat of the file that says so


def look(directory, number):
    """The fate of a cell, without reading anything."""
    cell = _look(directory, number)
    return _look(directory, number) if cell.fate == "unknown" and lane_files.sync(directory, number=number) else cell


def _look(directory, number):
    """The files are asked in the order in which a cell goes through them, so none is missed."""
    for kind, fate in (("req", "waiting"), ("run", "running"), ("res", "settled")):
        info = _stat(files.cell_path(directory, kind, number))
        if info is not None:
            if kind == "run" and _stat(files.cell_path(directory, "res", number)) is not None:
                continue
            return Cell(number, fate, info)
    return Cell(number, "unknown")


def _stat(path):
    try:
        return os.lstat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise


def running_ms(cell):
    """How long a cell runs: claiming it was a rename, which is what its ctime tells."""
    return max(0.0, (time.time() - cell.info.st_ctime) * 1000.0)


def ahead(directory, number):
    return sum(1 for kind in ("req", "run") for other in files.cell_numbers(directory, kind) if other < number)


def cell_id(directory, number):
    """The id of the cell that has this number, from whichever of its files is there; None where none is."""
    for kind in ("req", "run", "res"):
        data = files.read_bytes(files.cell_path(directory, kind, number))
        if data is not None:
            return _id_in(data, kind)
    return None


def _id_in(data, kind):
    try:
        value = fastjson.loads(data)
    except ValueError:
        return None
    if isinstance(value, dict) and kind == "res":
        value = value.get("cell")
    return value.get("id") if isinstance(value, dict) else None


def find(directory, wanted):
    """The number of the cell with this id, or None."""
    number = _find(directory, wanted)
    return _find(directory, wanted) if number is None and lane_files.sync(directory, wanted) else number


def _find(directory, wanted):
    """The newest are asked first."""
    numbers = {number for kind in ("req", "run", "res") for number in files.cell_numbers(directory, kind)}
    needle = wanted.encode("utf-8", "replace")
    for number in sorted(numbers, reverse=True):
        for kind in ("req", "run", "res"):
            # A reply may be large, and is taken apart only where the id stands in it.
            data = files.read_bytes(files.cell_path(directory, kind, number))
            if data is not None and needle in data and _id_in(data, kind) == wanted:
                return number
    return None


def last(directory):
    """The highest number that has files, or None."""
    lane_files.sync(directory)
    return _last(directory)


def _last(directory):
    return max((number for kind in ("req", "run", "res") for number in files.cell_numbers(directory, kind)), default=None)


def wanted(directory, cell_id):
    """The number that a wait means: of the cell with this id (None where no file has it), or of the last cell."""
    number = last(directory) if cell_id is None else find(directory, cell_id)
    if number is None and cell_id is None:
        raise Fault("unknown-cell", "no cell waits, runs or has a reply here")
    return number


# --- shipping ----------------------------------------------------------------------------------------------------------------------

def submit(directory, request, again):
    """Ship a request to a kernel that lives, and wake it; gives (number, shipped). `again`: one that is here already is not shipped twice."""
    if not files.is_locked(directory):
        # Nothing is shipped to a dead kernel; but a cell that was shipped earlier has a fate to be told.
        number = find(directory, request["id"]) if again else None
        if number is None:
            raise Fault("kernel-dead", obituary(directory), "start a new one")
        return number, False
    shelf = Shelf(directory)
    try:
        number, shipped = shelf.ship(request, again, LOCK_SECONDS)
        if shipped:
            files.poke(directory + "/wake")
    finally:
        shelf.close()
    return number, shipped


class Shelf:
    """`cells/` of one kernel, held open by somebody who ships requests: one or many."""

    def __init__(self, directory):
        self._directory = directory
        self._cells = directory + "/cells"
        self._next = -1
        self._spare = None  # a temporary file that is open already
        self._used = []  # names of temporary files that are not needed any more
        try:
            self._fd = os.open(self._cells, files.DIR_FLAGS)
        except OSError as error:
            raise self._fault(error) or error

    def close(self):
        if self._spare is not None:
            os.close(self._spare[0])
            self._used.append(self._spare[1])
        self.tidy()
        os.close(self._fd)
        if self._next >= 0:
            os.close(self._next)

    def tidy(self):
        """Remove what is not needed any more; not while somebody waits for a cell to begin."""
        while self._used:
            try:
                # By the directory that we have open, whatever stands at its path by now.
                os.unlink(os.path.basename(self._used.pop()), dir_fd=self._fd)
            except OSError:
                pass

    def prepare(self):
        """Have a file open for the next request, when there is time."""
        try:
            if self._spare is None:
                self._spare = files.open_tmp(self._cells)
        except OSError:
            pass  # the next request tells, if it matters

    def ship(self, request, again, seconds):
        """Make a request visible under a new number; gives (number, shipped). LockTimeout where the lock cannot be had at once and `seconds` is 0."""
        try:
            data = files.content(request)
            tmp = self._written(data)
            self._lock(seconds)
            try:
                number = find(self._directory, request["id"]) if again else None
                if number is not None:
                    return number, False
                number = self._next_number()
                while not self._published(tmp, number, data):
                    # Only where `next` was lost: a file of that number is there already.
                    number += 1
                return number, True
            finally:
                files.unlock(self._fd)
        except BaseException as error:
            self.tidy()
            raise (self._fault(error) if isinstance(error, OSError) else None) or error

    def take_number(self, fits=None):
        """The next number, for a cell that needs no file; 0 where somebody holds the lock at this moment, or where it does not fit, and is not taken."""
        if not files.try_lock(self._fd):
            return 0
        try:
            return self._next_number(fits)
        finally:
            files.unlock(self._fd)

    def has_open(self, first, end):
        """Whether a cell with one of these numbers, the last excluded, waits or runs. The lock is held, so that none is just being shipped."""
        paths = (files.cell_path(self._directory, kind, number) for number in range(first, end) for kind in ("req", "run"))
        return any(_stat(path) is not None for path in paths)

    def _written(self, data):
        (fd, path), self._spare = self._spare or files.open_tmp(self._cells), None
        self._used.append(path)
        files.fill_tmp(fd, path, data)
        return path

    def _published(self, tmp, number, data):
        final = files.cell_path(self._directory, "req", number)
        try:
            return files.publish_new(tmp, final)
        except FileNotFoundError:
            # A cleaner of temporary files took it, if it was not the whole directory.
            return files.publish_new(self._written(data), final)

    def _lock(self, seconds):
        if files.try_lock(self._fd):
            return
        if not seconds:
            raise files.LockTimeout("it is held")
        try:
            files.lock(self._fd, seconds)
        except files.LockTimeout:
            raise Fault("busy", "another command holds the cells of this kernel", "try again")

    def _fault(self, error):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return Fault("disk-full", "no room for the request in %s" % self._cells, "free some space on the target")
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return Fault("no-kernel", "the kernel's directory is gone: %s" % self._directory)
        return None

    def _next_number(self, fits=None):
        """Take the next number; the lock is held. Another may have put a new file in the place of ours."""
        if self._next < 0 or not os.fstat(self._next).st_nlink:
            if self._next >= 0:
                os.close(self._next)
                self._next = -1
            self._next = os.open(self._cells + "/next", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        text = os.pread(self._next, 32, 0).strip()
        number = int(text) if text.isdigit() else 0
        if not 0 < number < NUMBER_MAX:
            number = max(_last(self._directory) or 0, lane_files.last(self._directory)) + 1
        if fits is not None and not fits(number):
            return 0
        # In place: digits never become fewer, and one small write is not torn by a death of ours.
        os.pwrite(self._next, b"%d\n" % (number + 1), 0)
        return number


def withdraw(directory, number):
    """Take a request back; False where the supervisor was quicker. Unlink and its rename cannot both win."""
    return files.remove(files.cell_path(directory, "req", number))


def answer(directory, number, cell_id, call, pieces):
    """Leave the answer to a call of a tool for the supervisor; False where its cell does not run (any more)."""
    content = [b"%s\n" % cell_id.encode("ascii")] + pieces
    for _attempt in range(_ANSWER_ATTEMPTS):
        if _look(directory, number).fate != "running":
            return False
        try:
            _leave_answer(directory + "/rpc", content, files.answer_path(directory, number, call))
        except FileNotFoundError:
            continue  # the cell has just ended, and what lay there for it was swept away
        files.poke(directory + "/wake")
        return True
    return False


def _leave_answer(folder, content, path):
    try:
        tmp = files.write_tmp(folder, content)
    except FileNotFoundError:
        # There was no room when the cell began, or a cleaner of temporary files took it.
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass  # somebody else has just made it
        tmp = files.write_tmp(folder, content)
    try:
        files.publish_new(tmp, path)  # one that is there already is the same, and stays
    finally:
        files.remove(tmp)


def acknowledge(directory, numbers, known=None):
    """Remove replies that the host has; the record file stays where the reply named it as the full text.

    `known`: of replies that were seen to name none, whether there is a record file at all.
    """
    for number in numbers:
        path = files.cell_path(directory, "res", number)
        records = known.get(number) if known else None
        if records is None:
            reply = files.read_json(path)
            if reply is None:
                lane_files.acknowledge(directory, number)
                continue
            output = reply.get("output")
            records = not (isinstance(output, dict) and output.get("spill"))
        if records:
            files.remove(files.cell_path(directory, "out", number))
        if not files.remove(path):
            lane_files.acknowledge(directory, number)


def is_gathered(raw):
    """Whether a reply leaves its output to the record file."""
    return raw.find(files.GATHERED, 0, 64 + len(files.GATHERED)) >= 0


def gathered(directory, number, raw):
    """Such a reply with its output in it, for who does not put it together himself."""
    from . import records
    from .strict import quote_utf8
    data = files.read_bytes(files.cell_path(directory, "out", number)) or b""
    stdout, stderr = (b"".join(payload for kind, payload in records.split(data) if kind == wanted) for wanted in (b"o", b"e"))
    before, after = raw.split(files.GATHERED, 1)
    return b"".join([before, b',"stdout":'] + quote_utf8(stdout) + [b',"stderr":'] + quote_utf8(stderr) + [after])


# --- cells of a kernel that died -----------------------------------------------------------------------------------------------------

def bury(directory, number, seen_alive=False):
    """The reply of a cell whose kernel died: written once, from its record file, and there for whoever asks later.

    `seen_alive`: the caller watched it die, so that now is the time of its end.
    """
    with files.locked(os.path.join(directory, "cells"), LOCK_SECONDS):
        path = files.cell_path(directory, "res", number)
        reply = files.read_json(path)
        if reply is not None:
            return reply
        request, began = files.read_json(files.cell_path(directory, "run", number)), True
        if request is None:
            request, began = files.read_json(files.cell_path(directory, "req", number)), False
        if request is None:
            return None
        from . import osdep, postmortem
        osdep.kill_marked(os.path.basename(directory))
        reply = postmortem.died(directory, number, request, began, how_it_ended(directory), seen_alive)
        try:
            files.atomic_write(path, files.to_json(reply))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                raise
            # The answer carries it all the same; the next who asks makes it anew.
            return reply
        lane_files.buried(directory, number)
        files.remove(files.cell_path(directory, "run" if began else "req", number))
        return reply


def obituary(directory):
    """How a kernel ended, as a sentence."""
    why = how_it_ended(directory)
    return {"died": "the kernel died", "idle": "the kernel was idle for too long, and ended", "stopped": "the kernel was stopped",
            "terminated": "the kernel was terminated by a signal"}.get(why, "the kernel ended: " + why)


def how_it_ended(directory):
    """What is known of a dead kernel's end, in a few words."""
    ended = files.read_json(os.path.join(directory, "ended.json"))
    if ended and isinstance(ended.get("why"), str):
        return ended["why"]
    record = files.read_json(os.path.join(directory, "kernel.json")) or {}
    if record.get("boot_id"):
        from . import osdep
        if osdep.boot_id() not in ("", record["boot_id"]):
            return "the machine was started anew"
    return "died"
