"""Replies: one JSON document per cell, and the sentences that say how an interpreter ended."""

import os
import signal
import struct

from . import fastjson, files, osdep
from .frames import HEADER, LONG, pack
from .strict import decode, encode, quote, quote_ascii, quote_utf8

STATUSES = ("ok", "error", "exit", "interrupted")  # what the interpreter may say; the rest is said by the supervisor
_NUMBER = struct.Struct(">I")
_SIGNAL_WORDS = {"SIGSEGV": "segmentation fault", "SIGBUS": "bus error", "SIGFPE": "arithmetic error", "SIGILL": "illegal instruction",
                 "SIGABRT": "abort", "SIGXCPU": "processor time used up", "SIGSYS": "forbidden system call"}


def error(kind, name, message, traceback="", hint=""):
    # type: (str, str, str, str, str) -> dict
    return {"kind": kind, "name": name, "message": message, "traceback": traceback or None, "hint": hint or None}


def timed_out(cell, told):
    # type: (object, object) -> dict
    """The error of a cell whose time is over; `told` is the one that it ended with, if it did."""
    return error("deadline", "Timeout", "the cell ran longer than %s" % seconds(cell.timeout), told and told["traceback"])


def checked_result(data):
    # type: (bytes) -> dict
    """The content of an `r` frame with exactly the fields of the protocol; ValueError where it does not fit."""
    value = decode(data)
    if not isinstance(value, dict) or value.get("status") not in STATUSES or not _is_int(value.get("number")):
        raise ValueError("not a result")
    result, failure, code = value.get("result"), value.get("error"), value.get("exit_code")
    if not (result is None or isinstance(result, dict)) or not (code is None or _is_int(code)):
        raise ValueError("not a result")
    if failure is not None:
        if not isinstance(failure, dict):
            raise ValueError("not a result")
        failure = {name: _text(failure.get(name)) for name in ("kind", "name", "message", "traceback", "hint")}
        failure = error(**failure)
        if failure["kind"] not in ("exception", "exit", "signal", "spawn"):
            failure["kind"] = "exception"
    if code is not None and not -(1 << 63) <= code < 1 << 63:
        code = 255  # what a shell sees of sys.exit(10 ** 30)
    return {"number": value["number"], "status": value["status"], "result": result, "error": failure, "exit_code": code}


def run_frames(cell):
    # type: (object) -> tuple
    """The frame that has a cell run, in pieces."""
    if len(cell.code) <= LONG:
        return pack(b"X", _run(cell, cell.code)),
    # Not as JSON, which would take longer to write and to read than to send.
    code, head = cell.code.encode("utf-8", "surrogatepass"), _run(cell, "")
    return HEADER.pack(4 + len(head) + len(code), b"x"[0]) + _NUMBER.pack(len(head)) + head, code


def _run(cell, code):
    """All ASCII: lone surrogates arrive as they were."""
    text = '{"number":%d,"id":"%s","code":%s,"echo":"%s","cwd":%s,"env":%s%s}' % (
        cell.number, cell.id, quote_ascii(code), cell.echo, "null" if cell.cwd is None else quote_ascii(cell.cwd),
        _env_ascii(cell.env) if cell.env else "{}", "" if cell.tools is None else ',"tools":' + fastjson.dumps(cell.tools))
    return text.encode("ascii")


def _env_ascii(env):
    return "{%s}" % ",".join(
        "%s:%s" % (quote_ascii(name), "null" if value is None else quote_ascii(value)) for name, value in env.items())


def _is_int(value):
    return isinstance(value, int) and not isinstance(value, bool)


def _text(value):
    return value if isinstance(value, str) else "" if value is None else str(value)


# Written out, because a cell of nothing is to cost next to nothing.
_HEAD = b'{"v":1,"status":"%s","stdout":'
_GATHERED = b'{"v":1,"status":"%s"' + files.GATHERED
_REST = (',"result":%s,"error":%s,"exit_code":%s,"signal":%s,'
         '"output":{"stdout_bytes":%d,"stdout_omitted":%d,"stderr_bytes":%d,"stderr_omitted":%d,"spill":%s},'
         '"tools":{"calls":%d,"errors":%s},"duration_ms":%.3f,"queued_ms":%.3f,"cell":{"id":"%s","number":%d},'
         '"kernel":{"id":%s,"generation":%d,"state":"%s","note":%s},"displays":[')


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


def build(cell, outcome, kernel, generation, spill, gather_from=None):
    # type: (object, Outcome, str, int, str, object) -> tuple
    """(the reply, whether it names `spill`). Displays are JSON already and are put in as they are.

    With `gather_from`, so much output or more is left to the records, if they hold all of it.
    """
    records, note = cell.records, cell.note
    gathered = gather_from is not None and cell.stdout.total + cell.stderr.total >= gather_from
    gathered = gathered and records is not None and records.is_whole() and cell.stdout.is_whole() and cell.stderr.is_whole()
    (stdout, out_omitted), (stderr, err_omitted) = ((b"", 0), (b"", 0)) if gathered else (cell.stdout.text_bytes(), cell.stderr.text_bytes())
    spilled = bool(out_omitted or err_omitted) and records is not None and records.size > 0 and not records.broken
    if records is not None and records.broken:
        note = join_notes(note, "the full output was not kept: %s" % records.broken)
    if cell.displays_dropped:
        note = join_notes(note, "%d displays were too many or too large and were left out" % cell.displays_dropped)
    rest = _REST % (
        _json(outcome.result), _json(outcome.error), _json(outcome.exit_code), _json(outcome.signal), cell.stdout.total, out_omitted, cell.stderr.total, err_omitted,
        quote(spill) if spilled else "null", cell.calls, _json(cell.call_errors) if cell.call_errors else "[]", outcome.duration_ms, cell.queued_ms, cell.id, cell.number,
        quote(kernel), generation, cell.state, _json(note))
    status = outcome.status.encode("ascii")
    parts = [_GATHERED % status] if gathered else [_HEAD % status] + quote_utf8(stdout) + [b',"stderr":'] + quote_utf8(stderr)
    return b"".join(parts + [rest.encode("utf-8"), b",".join(cell.displays), b"]}"]), spilled


def _json(value):
    return "null" if value is None else encode(value).decode("utf-8")


def join_notes(*notes):
    return "; ".join(note for note in notes if note) or None


def describe_exit(status, oom, limits=None):
    # type: (object, bool, object) -> dict
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
            limit = (limits or {}).get("cpu_seconds")
            hint = "the limit cpu_seconds%s was reached" % (" of %s" % seconds(limit) if limit else "")
        return {"message": message, "error": error("signal", name, message, hint=hint), "exit_code": None, "signal": name}
    code = os.WEXITSTATUS(status)
    message = "the interpreter exited with code %d" % code
    return {"message": message, "error": error("exit", "Exit", message), "exit_code": code, "signal": None}


def seconds(value):
    # type: (float) -> str
    return "%g s" % round(value, 3)
