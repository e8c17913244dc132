"""What a helper of the courier does with an errand, in the blocking way of the commands."""

import time

from . import cellfiles, fastjson, helpers, link, postmortem, spawn  # noqa: F401  the last two here, so that they are there when they are needed
from .fault import Fault, reason


HEADER_MAX = 256 << 10  # of a call whose request stands behind it


class Duty(object):
    """Made in the courier, called in its helpers."""

    def __init__(self, defaults, modules):
        # type: (dict, object) -> None
        self._defaults = defaults
        self.modules = modules  # where the courier brought the bundle; given up when the runner is installed

    def __call__(self, kind, text, end, answer):
        try:
            result = self._do(kind, text, end, answer)
        except Exception as error:
            answer.send("json", failure(error))
        else:
            answer.finish(result)

    def _do(self, kind, text, end, answer):
        text, written = split(text) if kind == helpers.LONG else (text, None)
        header = self.header(text)
        if kind == helpers.STEP:
            return _STEPS[header["op"]](header)
        if kind == helpers.LONG:
            end = time.monotonic() + deadline(header)
        header["deadline_ms"] = max(0, int((end - time.monotonic()) * 1000))
        if kind == helpers.LONG and header.get("op") == "answer":
            return link.operate(_written(link.Call(header, None, self.modules or {}, answer), written))
        if header.get("op") == "run":
            return _place(_written(link.Call(header, None, None, answer), written))
        return self._spawn(header, answer) if header.get("op") == "spawn" else link.operate(link.Call(header, None, self.modules or {}, answer))

    def header(self, text):
        """A call's header, with what all calls of a stream have in common."""
        try:
            header = fastjson.loads(text)
        except ValueError:
            raise Fault("bad-request", "the call is not JSON")
        if not isinstance(header, dict):
            raise Fault("bad-request", "a call must be a JSON object")
        for name, value in self._defaults.items():
            header.setdefault(name, value)
        return header

    def _spawn(self, header, answer):
        """The modules are written out once; from then on it is enough to see that they are there."""
        if self.modules is None:
            return link.operate(link.Call(header, None, None, answer))
        if not self._installed:
            result = link.operate(link.Call(header, None, self.modules, answer))
            self._installed = True
            return result
        try:
            return link.operate(link.Call(header, None, None, answer))
        except Fault as fault:
            if fault.code != "need-runner":
                raise
            return link.operate(link.Call(header, None, self.modules, answer))

    _installed = False


def split(text):
    """The header of a long call, and what stands behind it on a line of its own: the request of a `run`, the `answer` of a tool, or None."""
    header, line, _ = text[:HEADER_MAX].partition(b"\n")
    if not line or b'"cell_bytes":' not in header and b'"answer_bytes":' not in header:
        return text, None
    return header, memoryview(text)[len(header) + 1:]


def _written(call, written):
    call.written = None if written is None else [written]
    return call


def _place(call):
    """A `run` with much code: shipped here, followed by the courier, which gets the header without the code."""
    directory, request = call.directory(), call.request()
    call.wait_options()
    cellfiles.acknowledge(directory, call.numbers("ack"))
    number, _shipped = cellfiles.submit(directory, request, call.field("again", bool, default=False))
    return {"placed": number, "id": request["id"], "header": dict(call.header, cell=None)}


def _submit(header):
    number, _shipped = cellfiles.submit(header["dir"], header["cell"], header["again"])
    return {"number": number}


def _bury(header):
    directory, number = header["dir"], header["number"]
    # One that only the lane's page tells of comes into files by this look.
    cell = cellfiles.look(directory, number)
    if cell.fate == "waiting" and header["ours"] and cellfiles.withdraw(directory, number):
        raise Fault("kernel-dead", cellfiles.obituary(directory), "start a new one")
    return {"reply": cellfiles.bury(directory, number, header["seen_alive"])}


def _find(header):
    return {"number": cellfiles.wanted(header["dir"], header["id"])}


_STEPS = {"submit": _submit, "bury": _bury, "find": _find}


def deadline(header):
    """Seconds that a call may take."""
    value = header.get("deadline_ms")
    if not isinstance(value, int) or value < 0:
        raise Fault("bad-request", "deadline_ms must be a whole number")
    return value / 1000.0


def failure(error, header=None):
    """The answer for whatever went wrong."""
    if isinstance(error, OSError):
        error = link.known_fault(error, header or {}) or error
    return link.failure(error if isinstance(error, Fault) else internal(error))


def internal(error):
    """A defect of ours, with the place where it showed."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = " (%s line %d)" % (at.tb_frame.f_code.co_filename, at.tb_lineno) if at is not None else ""
    return Fault("internal", "%s: %s%s" % (type(error).__name__, reason(error), where))
