"""The files of cells as the host's side uses them: shipping, finding, withdrawing, acknowledging, and the reply of one that died."""

import errno
import os
import time

from . import files, lane_files
from .fault import Fault

LOCK_SECONDS = 10.0
NUMBER_MAX = 10 ** 9


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
        value = files.read_json(files.cell_path(directory, kind, number))
        if value is not None:
            return value["cell"].get("id") if kind == "res" and isinstance(value.get("cell"), dict) else value.get("id")
    return None


def find(directory, wanted):
    """The number of the cell with this id, or None."""
    number = _find(directory, wanted)
    return _find(directory, wanted) if number is None and lane_files.sync(directory, wanted) else number


def _find(directory, wanted):
    """The newest are asked first."""
    numbers = {number for kind in ("req", "run", "res") for number in files.cell_numbers(directory, kind)}
    for number in sorted(numbers, reverse=True):
        if cell_id(directory, number) == wanted:
            return number
    return None


def last(directory):
    """The highest number that has files, or None."""
    lane_files.sync(directory)
    return _last(directory)


def _last(directory):
    return max((number for kind in ("req", "run", "res") for number in files.cell_numbers(directory, kind)), default=None)


# --- shipping ----------------------------------------------------------------------------------------------------------------------

def ship(directory, request, again):
    """Make a request visible under a new number; gives (number, shipped). With `again` one that is here already is not shipped twice."""
    where = os.path.join(directory, "cells")
    tmp = None
    try:
        tmp = files.write_tmp(where, files.to_json(request))
        with files.locked(where, LOCK_SECONDS):
            if again:
                number = find(directory, request["id"])
                if number is not None:
                    return number, False
            number = _next_number(directory)
            while not files.publish_new(tmp, files.cell_path(directory, "req", number)):
                # Only where `next` was lost: a file of that number is there already.
                number += 1
                tmp = files.write_tmp(where, files.to_json(request))
            tmp = None
            return number, True
    except files.LockTimeout:
        raise Fault("busy", "another command holds the cells of this kernel", "try again")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Fault("disk-full", "no room for the request in %s" % where, "free some space on the target")
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise Fault("no-kernel", "the kernel's directory is gone: %s" % directory)
        raise
    finally:
        if tmp:
            files.remove(tmp)


def _next_number(directory):
    """Take the next number; the caller holds the lock of cells/."""
    fd = os.open(os.path.join(directory, "cells", "next"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        text = os.read(fd, 32).strip()
        number = int(text) if text.isdigit() else 0
        if not 0 < number < NUMBER_MAX:
            number = max(_last(directory) or 0, lane_files.last(directory)) + 1
        # In place: digits never become fewer, and one small write is not torn by a death of ours.
        os.pwrite(fd, b"%d\n" % (number + 1), 0)
        return number
    finally:
        os.close(fd)


def withdraw(directory, number):
    """Take a request back; False where the supervisor was quicker. Unlink and its rename cannot both win."""
    return files.remove(files.cell_path(directory, "req", number))


def acknowledge(directory, numbers):
    """Remove replies that the host has; the record file stays where the reply named it as the full text."""
    for number in numbers:
        path = files.cell_path(directory, "res", number)
        reply = files.read_json(path)
        if reply is None:
            lane_files.acknowledge(directory, number)
            continue
        output = reply.get("output")
        if not (isinstance(output, dict) and output.get("spill")):
            files.remove(files.cell_path(directory, "out", number))
        files.remove(path)


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
