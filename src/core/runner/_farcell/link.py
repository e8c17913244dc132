"""The far end of one command: reads an operation from the header, does it, and prints framed answers."""

import errno
import os
import time

from . import fastjson, files
from .fault import Fault, HostGone, reason

WAIT_DEFAULTS = {"hold_ms": 25000, "offset": 0, "stream": False, "lull_ms": 30, "tell": False, "gather": False}
NUMBER_MAX = 10 ** 9
CONTROLS = ("interrupt", "reset", "stop", "hold", "resume")


class Answer:
    """Frames on stdout: nonce, kind, length, payload."""

    def __init__(self, nonce, fd=1):
        self.nonce = nonce
        self.fd = fd

    def send(self, kind, payload):
        head = ("%s %s %d\n" % (self.nonce, kind, len(payload))).encode("ascii")
        files.write_all(self.fd, b"".join((head, payload, b"\n")))

    def finish(self, result):
        self.send("json", body(result))

    def fail(self, fault):
        self.send("json", failure(fault))


def body(result):
    """The json frame's content for what an operation gave. A reply's text is put in as the supervisor wrote it, however large it is."""
    fields, raw_reply = result if isinstance(result, tuple) else (result, None)
    text = files.to_json(dict(fields, ok=True))
    if raw_reply is not None:
        text = b"".join((text[:-1], b',"reply":', raw_reply.strip(), b"}"))
    return text


def failure(fault):
    return files.to_json({"ok": False, "error": fault.as_json()})


class Call:
    """One operation: the header with its fields checked as they are asked for."""

    written = None  # type: object  # the pieces of the text that stands behind the header
    stdin = None  # type: object

    def __init__(self, header, stdin, modules, answer):
        self.header = header
        self.stdin = stdin
        self.modules = modules
        self.answer = answer
        self.end = time.monotonic() + header["deadline_ms"] / 1000.0

    def field(self, name, kind, default=None, required=False):
        value = self.header.get(name)
        if value is None:
            if required:
                raise Fault("bad-request", "%s is missing" % name)
            return default
        if not _is(value, kind):
            raise Fault("bad-request", "%s must be %s" % (name, _KINDS[kind]))
        return value

    def number(self, required=False):
        value = self.field("number", int, required=required)
        if value is not None and not 0 < value < NUMBER_MAX:
            raise Fault("bad-request", "number is out of range")
        return value

    def numbers(self, name):
        values = self.field(name, list, default=[])
        if not all(_is(value, int) and 0 < value < NUMBER_MAX for value in values):
            raise Fault("bad-request", "%s must be a list of cell numbers" % name)
        return values

    def directory(self):
        from . import kernels
        return kernels.checked_dir(self.field("dir", str, required=True))

    def request(self):
        """The cell that is to be run, as far as it must be right to be found again; the rest is the supervisor's to judge."""
        if self.written is not None:
            if self.field("cell_bytes", int, required=True) != sum(map(len, self.written)):
                raise Fault("bad-request", "cell_bytes is not the length of what follows")
            return files.Written(_checked_id(self.header.get("id"), "id"), self.written)
        request = self.field("cell", dict, required=True)
        _checked_id(request.get("id"), "cell.id")
        if not isinstance(request.get("code"), str):
            raise Fault("bad-request", "cell.code must be text")
        return request

    def tool_answer(self):
        """What a tool has answered, as pieces of JSON; it is not taken apart here."""
        size = self.field("answer_bytes", int)
        if size is None:
            return [files.to_json(self.field("answer", dict, required=True))]
        if self.written is None and self.stdin is not None:
            self.written = [self.stdin.read(size)]
        if self.written is None or size != sum(map(len, self.written)):
            raise Fault("bad-request", "answer_bytes is not the length of what follows")
        return self.written

    def wait_options(self):
        options = dict(WAIT_DEFAULTS)
        for name, value in self.field("wait", dict, default={}).items():
            if name in options:
                if not _is(value, type(options[name])) or value < 0:
                    raise Fault("bad-request", "wait.%s must be %s" % (name, _KINDS[type(options[name])]))
                options[name] = value
        return options


def _checked_id(value, name):
    if not isinstance(value, str) or len(value) != 32 or value.strip("0123456789abcdef"):
        raise Fault("bad-request", "%s must be 32 hex digits" % name)
    return value


_KINDS = {int: "a whole number", str: "text", bool: "true or false", dict: "an object", list: "a list"}


def _is(value, kind):
    # True is an int for Python, and 5.0 is no int: neither is what the protocol means.
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


# --- operations: each gives the answer's fields, or a pair of them and a reply's raw text ---------------------------------------------

def op_spawn(call):
    from . import spawn
    return spawn.spawn(call.header, call.modules, call.end)


def op_run(call):
    from . import cellfiles, watch
    directory = call.directory()
    request = call.request()
    cell_id = request["id"]
    options = call.wait_options()
    again = call.field("again", bool, default=False)
    cellfiles.acknowledge(directory, call.numbers("ack"))
    number, shipped = cellfiles.submit(directory, request, again)
    return watch.settle(directory, number, options, call.end, call.answer.send, cell_id, ours=True, shipped=shipped)


def op_wait(call):
    from . import cellfiles, watch
    directory = call.directory()
    options = call.wait_options()
    number, cell_id = call.number(), call.field("id", str)
    cellfiles.acknowledge(directory, call.numbers("ack"))
    if number is None:
        number = cellfiles.wanted(directory, cell_id)
        if number is None:
            return unknown(cell_id, options)
    return watch.settle(directory, number, options, call.end, call.answer.send, cell_id)


def unknown(cell_id, options):
    """The answer for an id that no file has."""
    return {"number": None, "id": cell_id, "fate": "unknown", "ahead": 0, "offset": options["offset"], "reply": None, "running_ms": 0.0}


def op_withdraw(call):
    from . import cellfiles
    directory = call.directory()
    number = cellfiles.find(directory, call.field("id", str, required=True))
    return {"withdrawn": number is not None and cellfiles.withdraw(directory, number)}


def op_control(call):
    from . import watch
    directory = call.directory()
    do = call.field("do", str, required=True)
    if do not in CONTROLS:
        raise Fault("bad-request", "do must be one of %s" % ", ".join(CONTROLS))
    hold = call.field("hold_ms", int, default=10000)
    holds = do in ("hold", "resume")
    request = {"v": 1, "do": do, "number": call.number(required=holds), "id": call.field("id", str, required=holds), "if_idle": call.field("if_idle", bool, default=False)}
    if do == "hold":
        request["for_ms"] = call.field("for_ms", int, required=True)
    done, detail = watch.control(directory, request, hold / 1000.0, call.end)
    return {"done": done, "detail": detail}


def op_probe(call):
    from . import kernels
    return kernels.probe(call.directory())


def op_answer(call):
    from . import cellfiles
    directory = call.directory()
    number, cell_id = call.number(required=True), _checked_id(call.header.get("id"), "id")
    of = call.field("call", int, required=True)
    if of <= 0:
        raise Fault("bad-request", "call is out of range")
    return {"taken": cellfiles.answer(directory, number, cell_id, of, call.tool_answer())}


def op_ack(call):
    from . import cellfiles
    cellfiles.acknowledge(call.directory(), call.numbers("numbers"))
    return {}


def op_read(call):
    from . import kernels
    directory = call.directory()
    kind = call.field("file", str, required=True)
    if kind not in ("out", "log"):
        raise Fault("bad-request", "file must be out or log")
    number = call.number(required=kind == "out")
    offset, limit = call.field("offset", int, default=0), call.field("max", int, default=65536)
    if offset < 0 or limit < 0:
        raise Fault("bad-request", "offset and max must not be negative")
    data, size = kernels.read(directory, kind, number, offset, limit)
    call.answer.send("out", data)
    return {"offset": offset + len(data), "size": size}


def op_list(call):
    from . import kernels
    return {"kernels": kernels.listing(call.header)}


def op_sweep(call):
    from . import kernels
    older_than = call.header.get("older_than_s")
    if not _is(older_than, (int, float)) or older_than < 0:
        raise Fault("bad-request", "older_than_s must be a number of seconds")
    return {"removed": kernels.sweep(call.header, older_than)}


def op_cool(call):
    from . import kernels
    return {"ended": kernels.cool(call.header)}


def op_remove(call):
    from . import kernels
    kernels.remove(call.directory())
    return {}


def op_doctor(call):
    from . import doctor
    return doctor.facts(call.header)


def op_put(call):
    from . import putting
    return putting.put(call)


def op_get(call):
    from . import getting
    return getting.get(call)


def op_once(call):
    from . import once
    return once.run(call)


def op_stdio(call):
    from . import pipes
    pipes.become(call.header, call.stdin, call.modules)


def op_courier(call):
    from . import courier
    courier.serve(call.header, call.stdin, call.modules, call.answer)


OPERATIONS = {
    "spawn": op_spawn, "run": op_run, "wait": op_wait, "withdraw": op_withdraw, "control": op_control, "probe": op_probe, "ack": op_ack, "answer": op_answer,
    "read": op_read, "list": op_list, "sweep": op_sweep, "cool": op_cool, "remove": op_remove, "doctor": op_doctor, "put": op_put, "get": op_get,
    "once": op_once, "stdio": op_stdio, "courier": op_courier,
}


def main(header, stdin, modules=None):
    """Do what the header asks, and answer. What is raised beyond this is an error of ours; the loader tells it."""
    answer = Answer(header["nonce"])
    try:
        try:
            result = operate(Call(header, stdin, modules, answer))
        except Fault as fault:
            answer.fail(fault)
        else:
            answer.finish(result)
    except (HostGone, BrokenPipeError):
        os._exit(99)


def operate(call):
    """Do what the call's header asks; gives the answer's fields, or a pair of them and a reply's raw text."""
    header = call.header
    operation = OPERATIONS.get(header.get("op")) if isinstance(header.get("op"), str) else None
    if operation is None:
        raise Fault("bad-request", "there is no operation %r" % (header.get("op"),))
    check(header)
    try:
        return operation(call)
    except BrokenPipeError:
        raise
    except ImportError as error:
        # Every operation imports what it needs before it does anything, so nothing has been done yet. Shipped anew, the modules come from the bundle.
        if call.modules is None:
            raise Fault("need-runner", "a module of the runner is gone: %s" % error)
        raise
    except OSError as error:
        fault = known_fault(error, header)
        if fault is None:
            raise
        raise fault


def known_fault(error, header):
    """What an OSError means where that is plain, else None."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Fault("disk-full", "no room on the target: %s" % reason(error), "free some space there")
    directory = header.get("dir")
    if error.errno in (errno.ENOENT, errno.ENOTDIR) and isinstance(directory, str) and not os.path.isdir(directory):
        return Fault("no-kernel", "the kernel's directory is gone: %s" % directory)
    return None


def check(header):
    base = header.get("base")
    if base is not None and (not isinstance(base, str) or not os.path.isabs(base) or "\0" in base or os.path.normpath(base) != base):
        raise Fault("bad-request", "base must be an absolute path")
    if not isinstance(header.get("runner"), str):
        raise Fault("bad-request", "runner must be a hash")
