"""The reply of a cell whose supervisor died: made by whoever finds the body, from the record file."""

import os
import struct
import time

from . import fastjson, files, output

_HEADER = struct.Struct(">cI")
_CHUNK = 1 << 20
MAX_DISPLAYS = 1000
MAX_DISPLAY_BYTES = 32 << 20


def died(directory, number, request, began, why, seen_alive):
    """The reply (as protocol.md has it) for a request that will never be answered by its kernel."""
    limit = request.get("max_output")
    limit = min(limit, 64 << 20) if isinstance(limit, int) and limit >= 0 else 1 << 20
    streams = {b"o": output.Capture(limit), b"e": output.Capture(limit)}
    displays = []
    path = files.cell_path(directory, "out", number)
    last_output, calls = _replay(path, streams, displays) if began else (None, 0)
    stdout, stdout_omitted = streams[b"o"].text()
    stderr, stderr_omitted = streams[b"e"].text()
    record = files.read_json(os.path.join(directory, "kernel.json"))
    generation = record.get("generation") if isinstance(record, dict) else None
    message = "the kernel %s" % ("died" if why == "died" else "ended: " + why)
    hint = "its variables are gone; the next cell starts a new kernel"
    if not began:
        message += " before this cell began"
    return {
        "v": 1, "status": "died", "stdout": stdout, "stderr": stderr, "result": None, "displays": displays,
        "error": {"kind": "signal", "name": "KernelDied", "message": message, "traceback": None, "hint": hint},
        "exit_code": None, "signal": None,
        "output": {"stdout_bytes": streams[b"o"].total, "stdout_omitted": stdout_omitted,
                   "stderr_bytes": streams[b"e"].total, "stderr_omitted": stderr_omitted,
                   "spill": path if stdout_omitted or stderr_omitted else None},
        "tools": {"calls": calls, "errors": []},
        "duration_ms": _duration(directory, number, time.time() if seen_alive else last_output) if began else 0.0, "queued_ms": 0.0,
        "cell": {"id": request.get("id"), "number": number},
        # Its cells could write to the record: who it is tells the name of its directory.
        "kernel": {"id": os.path.basename(directory), "generation": generation if type(generation) is int and generation > 0 else 1,
                   "state": "lost", "note": None},
    }


def _duration(directory, number, end):
    """From the claim to the end, or to the last sign of life; 0 where there was none."""
    try:
        claimed = os.lstat(files.cell_path(directory, "run", number)).st_ctime
    except OSError:
        return 0.0
    return round(max(0.0, ((end or claimed) - claimed) * 1000.0), 3)


def _replay(path, streams, displays):
    """Feed the records of a file to the captures; gives the time of its last write, or None, and the number of calls. A record cut off at the end is shown as far as it came."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None, 0
    room, calls = MAX_DISPLAY_BYTES, 0
    with open(fd, "rb") as file:
        while True:
            head = file.read(_HEADER.size)
            if len(head) < _HEADER.size:
                return os.fstat(file.fileno()).st_mtime, calls
            kind, length = _HEADER.unpack(head)
            if kind in streams:
                _feed(file, length, streams[kind])
            elif kind == b"d" and length <= room and len(displays) < MAX_DISPLAYS:
                room -= length
                try:
                    displays.append(fastjson.loads(file.read(length)))
                except ValueError:
                    pass
            else:
                calls += kind == b"t"
                file.seek(length, os.SEEK_CUR)


def _feed(file, length, capture):
    while length:
        data = file.read(min(length, _CHUNK))
        if not data:
            return
        capture.feed(data)
        length -= len(data)
