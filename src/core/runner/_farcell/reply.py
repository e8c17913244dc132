"""Replies: one JSON document per cell, and the sentences that say how an interpreter ended."""

import json
import os
import re
import signal

from . import osdep
from .cell import VERSION

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_encode_ascii = json.JSONEncoder(separators=(",", ":")).encode
_LONE = re.compile("[\ud800-\udfff]")
STATUSES = ("ok", "error", "exit", "interrupted")  # what the interpreter may say; the rest is said by the supervisor
_SIGNAL_WORDS = {"SIGSEGV": "segmentation fault", "SIGBUS": "bus error", "SIGFPE": "arithmetic error", "SIGILL": "illegal instruction",
                 "SIGABRT": "abort", "SIGXCPU": "processor time used up", "SIGSYS": "forbidden system call"}


def encode(value):
    # type: (object) -> bytes
    """JSON as UTF-8. Lone surrogates, which no JSON reader has to accept, are shown as the text of their escape."""
    text = _encode(value)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return _LONE.sub(lambda found: "\\\\u%04x" % ord(found.group()), text).encode("utf-8")


def encode_ascii(value):
    # type: (object) -> bytes
    """JSON as ASCII, for the interpreter: lone surrogates arrive there as they were."""
    return _encode_ascii(value).encode("ascii")


def decode_strict(data):
    # type: (bytes) -> object
    """Parse JSON of the interpreter's; ValueError for all that is none, NaN and nesting without end included."""
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply")


def _no_constant(name):
    raise ValueError("%s is not JSON" % name)


def error(kind, name, message, traceback="", hint=""):
    # type: (str, str, str, str, str) -> dict
    return {"kind": kind, "name": name, "message": message, "traceback": traceback, "hint": hint}


def checked_result(data):
    # type: (bytes) -> dict
    """The content of an `r` frame with exactly the fields of the protocol; ValueError where it does not fit."""
    value = decode_strict(data)
    if not isinstance(value, dict) or value.get("status") not in STATUSES or not _is_int(value.get("number")):
        raise ValueError("not a result")
    result, failure, code = value.get("result"), value.get("error"), value.get("exit_code")
    if not (result is None or isinstance(result, dict)) or not (code is None or _is_int(code)):
        raise ValueError("not a result")
    if failure is not None:
        if not isinstance(failure, dict):
            raise ValueError("not a result")
        failure = {name: _text(failure.get(name)) for name in ("kind", "name", "message", "traceback", "hint")}
        if failure["kind"] not in ("exception", "exit", "signal", "spawn"):
            failure["kind"] = "exception"
    return {"number": value["number"], "status": value["status"], "result": result, "error": failure, "exit_code": code}


def _is_int(value):
    return isinstance(value, int) and not isinstance(value, bool)


def _text(value):
    return value if isinstance(value, str) else "" if value is None else str(value)


class Outcome(object):
    """How a cell ended: what the reply says beside its output."""

    __slots__ = ("status", "result", "error", "exit_code", "signal", "duration_ms")

    def __init__(self, status, error=None, result=None, exit_code=None, signal=None, duration_ms=0.0):
        self.status = status
        self.result = result
        self.error = error
        self.exit_code = exit_code
        self.signal = signal
        self.duration_ms = duration_ms


def build(cell, outcome, kernel, generation, spill):
    # type: (object, Outcome, str, int, str) -> tuple
    """(the reply, whether it names `spill`). Displays are JSON already and are put in as they are."""
    stdout, out_omitted = cell.stdout.text()
    stderr, err_omitted = cell.stderr.text()
    records, note = cell.records, cell.note
    spilled = bool(out_omitted or err_omitted) and records is not None and records.size > 0 and not records.broken
    if records is not None and records.broken:
        note = join_notes(note, "the full output was not kept: %s" % records.broken)
    if cell.displays_dropped:
        note = join_notes(note, "%d displays were too many or too large and were left out" % cell.displays_dropped)
    data = encode({
        "v": VERSION, "status": outcome.status, "stdout": stdout, "stderr": stderr, "result": outcome.result, "error": outcome.error,
        "exit_code": outcome.exit_code, "signal": outcome.signal,
        "output": {"stdout_bytes": cell.stdout.total, "stdout_omitted": out_omitted,
                   "stderr_bytes": cell.stderr.total, "stderr_omitted": err_omitted, "spill": spill if spilled else None},
        "tools": {"calls": 0, "errors": []}, "duration_ms": round(outcome.duration_ms, 3), "queued_ms": round(cell.queued_ms, 3),
        "cell": {"id": cell.id, "number": cell.number},
        "kernel": {"id": kernel, "generation": generation, "state": cell.state, "note": note}})
    return data[:-1] + b',"displays":[' + b",".join(cell.displays) + b"]}", spilled


def join_notes(*notes):
    return "; ".join(note for note in notes if note) or None


def describe_exit(status, oom):
    # type: (object, bool) -> dict
    """Words and codes for a wait status: {message, error, exit_code, signal}. None: it would not even end."""
    if status is None:
        status = signal.SIGKILL
    if os.WIFSIGNALED(status):
        name = osdep.signal_name(os.WTERMSIG(status))
        words = _SIGNAL_WORDS.get(name)
        message = "the interpreter was killed by %s%s" % (name, " (%s)" % words if words else "")
        hint = ""
        if oom:
            hint = "the out-of-memory killer ended it: use less memory, or give the machine or container more"
        elif os.WTERMSIG(status) == signal.SIGKILL:
            hint = "nobody here sent it: it may have been the out-of-memory killer, or another process of this user"
        elif name == "SIGXCPU":
            hint = "the limit cpu_seconds was reached"
        return {"message": message, "error": error("signal", name, message, hint=hint), "exit_code": None, "signal": name}
    code = os.WEXITSTATUS(status)
    message = "the interpreter exited with code %d" % code
    return {"message": message, "error": error("exit", "Exit", message), "exit_code": code, "signal": None}


def seconds(value):
    # type: (float) -> str
    return "%g s" % round(value, 3)
