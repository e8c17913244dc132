"""A host with tools for the tests: sends cells that may call, hears the calls, answers them; over pipes and over files alike."""

import json
import os
import struct
import uuid

from tests.supervisor_kit import FileKernel, PipeKernel, until
from _farcell import cellfiles

ANYTHING = {"name": "echo", "doc": "Gives back what it got.", "schema": {"type": "object", "properties": {"value": {}}, "required": ["value"]}}
SEARCH = {"name": "search", "doc": "Looks for a text.", "schema": {
    "type": "object", "required": ["query"], "properties": {
        "query": {"type": "string", "description": "what to look for"}, "limit": {"type": "integer", "default": 10}, "deep": {"type": "boolean"}}}}
IMPORT = "from farcell_tools import echo, search, ToolError\n"


def offer(*tools, **fields):
    """The field `tools` of a request."""
    return dict({"token": uuid.uuid4().hex, "import": "farcell_tools", "patience_ms": 600000, "list": list(tools) or [ANYTHING, SEARCH]}, **fields)


def good(value):
    return {"ok": True, "value": value}


def bad(message, kind="tool"):
    return {"ok": False, "error": {"kind": kind, "name": "echo", "message": message}}


class Running(object):
    """A cell on its way, and the calls that it makes."""

    def __init__(self, host, cell_id, number, tools):
        self.host = host
        self.id = cell_id
        self.number = number
        self.token = tools["token"]

    def call(self):
        """The next call."""
        told = json.loads(self.host.record(self, "t").decode("utf-8"))
        assert told["token"] == self.token, told
        return told

    def given_up(self):
        """The number of the next call that was given up."""
        return json.loads(self.host.record(self, "w").decode("utf-8"))["call"]

    def answer(self, call, answer):
        self.host.answer(self, call["call"], answer)

    def serve(self, count, function=lambda arguments: good(arguments["value"])):
        """Answer so many calls; gives them."""
        calls = []
        for _ in range(count):
            call = self.call()
            calls.append(call)
            self.answer(call, function(call["arguments"]))
        return calls

    def reply(self):
        return self.host.reply(self)

    def value(self):
        reply = self.reply()
        assert reply["status"] == "ok", reply
        return (reply["result"] or {}).get("text/plain")


class PipeHost(object):
    """One that holds its kernel by pipes."""

    def __init__(self, **fields):
        self.kernel = PipeKernel(**fields)
        self.started = 0

    def start(self, code, tools=None, **fields):
        tools = tools or offer()
        self.started += 1
        return Running(self, self.kernel.send(code, tools=tools, **fields), self.started, tools)

    def record(self, cell, kind):
        head = struct.pack(">I", cell.number) + kind.encode()
        return bytes(self.kernel.next(b"O", lambda payload: payload[:5] == head)[9:])

    def answer(self, cell, call, answer):
        self.kernel.push(b"T", {"number": cell.number, "id": cell.id, "call": call, "answer": answer})

    def reply(self, cell):
        return self.kernel.reply(cell.id)

    def run(self, code, **fields):
        self.started += 1
        return self.kernel.run(code, **fields)

    def control(self, do, **fields):
        return self.kernel.control(do, **fields)

    def wait_printed(self, cell, text):
        found = b""
        while text not in found:
            found += self.record(cell, "o")

    def log(self):
        return self.kernel.get("log", size=1 << 20).decode()

    def close(self):
        self.kernel.close()


class FileHost(object):
    """One that sees the directory of its kernel."""

    def __init__(self, kernel=None, **fields):
        self.kernel = kernel or FileKernel(**fields)
        self.taken = {}

    def start(self, code, tools=None, **fields):
        tools = tools or offer()
        fields["id"] = fields.get("id") or uuid.uuid4().hex
        return Running(self, fields["id"], self.kernel.send(code, tools=tools, **fields), tools)

    def record(self, cell, kind):
        """The next one of this kind that was not asked for before."""
        at = self.taken.get((cell.number, kind), 0)
        self.taken[cell.number, kind] = at + 1
        try:
            return until(lambda: self._record(cell.number, kind, at), what="record %r %d" % (kind, at))
        except AssertionError as error:
            path = self.kernel.cell_path("res", cell.number)
            raise AssertionError("%s; cells: %s; reply: %s; log: %s" % (
                error, os.listdir(self.kernel.path("cells")), self.kernel.reply(cell.number) if os.path.exists(path) else None, self.log()))

    def _record(self, number, kind, index):
        found = [payload for name, payload in self.records(number) if name == kind]
        return found[index] if len(found) > index else None

    def records(self, number):
        found, at = [], 0
        try:
            data = self.kernel.read("cells/cell_out_%06d" % number)
        except FileNotFoundError:
            return []
        while at + 5 <= len(data):
            name, size = struct.unpack_from(">cI", data, at)
            if at + 5 + size <= len(data):
                found.append((name.decode(), data[at + 5:at + 5 + size]))
            at += 5 + size
        return found

    def answer(self, cell, call, answer):
        cellfiles.answer(self.kernel.dir, cell.number, cell.id, call, [json.dumps(answer).encode()])

    def reply(self, cell):
        return self.kernel.reply(cell.number)

    def run(self, code, **fields):
        return self.kernel.run(code, **fields)

    def control(self, do, **fields):
        return self.kernel.control(do, **fields)

    def wait_printed(self, cell, text):
        self.kernel.wait_printed(cell.number, text)

    def log(self):
        return self.kernel.read("runner.log").decode()

    def left(self):
        """What lies in rpc/."""
        return os.listdir(self.kernel.path("rpc"))

    def close(self):
        self.kernel.close()


class WithHost(object):
    """Of a test case: has a host for each test. `make` says of which kind."""

    make = None  # type: object

    def setUp(self):
        self.host = self.make()
        self.addCleanup(self.host.close)
