"""A host's end of a stream: starts a courier as the engine does, sends calls, and sorts what comes back by call."""

import json
import os
import select
import struct
import time

from tests import link_harness as harness

HEAD = struct.Struct(">IBI")


class Stream:
    """One courier and the channel to it. `pump` is the only place where it is read."""

    def __init__(self, far, ahead=b"", python=None, header=None, env=None):
        self.far = far
        fields = {"op": "courier", "base": far.base if far.installed else None, "place": {"dir": far.base}}
        fields.update(header or {})
        self.nonce, data = harness.request(fields, bundle=not far.installed, python=python)
        self.process = harness.start(env=env)
        self.input, self.output = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self.output, False)
        self.hello = None
        self.frames = []  # every frame in order: (kind, call, payload)
        self.records = {}  # by call
        self.answers = {}
        self.credit = True  # whether records are acknowledged as they come
        self.ended = False
        self._raw = b""
        self._parts = {}
        self._next = 0
        self.write(data + ahead)

    def write(self, data):
        view = memoryview(data)
        while view:
            view = view[os.write(self.input, view):]

    def frame(self, kind, number, payload=b""):
        return HEAD.pack(len(payload) + 4, kind[0], number) + payload

    def call_frame(self, op, deadline_ms=60000, **fields):
        """(number, the frame) of a call that is not sent."""
        self._next += 1
        header = dict(fields, op=op, deadline_ms=deadline_ms)
        return self._next, self.frame(b"C", self._next, json.dumps(header).encode("ascii"))

    def call(self, op, **fields):
        number, data = self.call_frame(op, **fields)
        self.write(data)
        return number

    def ok(self, op, **fields):
        return self.answer(self.call(op, **fields))

    def answer(self, number, seconds=harness.SLACK):
        """The answer of a call that must be there within the time, and be good."""
        answer = self.result(number, seconds)
        if not answer["ok"]:
            raise AssertionError("call %d: %r" % (number, answer))
        return answer

    def result(self, number, seconds=harness.SLACK):
        self.until(lambda: number in self.answers, seconds, "the answer of call %d" % number)
        return self.answers.pop(number)

    def run(self, directory, code, wait=None, ack=(), **fields):
        cell = fields.pop("cell", None) or self.far.cell(code)
        return self.call("run", dir=directory, cell=cell, wait=dict({"hold_ms": 25000}, **(wait or {})), ack=list(ack), **fields)

    def run_behind(self, directory, request, cell_id, ack=(), **fields):
        """A long `run` whose request, as bytes, stands behind its header; gives the call's number."""
        self._next += 1
        header = dict({"op": "run", "dir": directory, "id": cell_id, "cell_bytes": len(request), "wait": {"hold_ms": 25000}, "ack": list(ack), "deadline_ms": 60000}, **fields)
        body = json.dumps(header).encode("ascii") + b"\n" + request
        pieces = [body[at:at + 65536] for at in range(0, len(body), 65536)]
        for piece in pieces[:-1]:
            self.write(self.frame(b"c", self._next, piece))
        self.write(self.frame(b"C", self._next, pieces[-1]))
        return self._next

    def value(self, directory, code, **options):
        answer = self.answer(self.run(directory, code, **options))
        if answer["fate"] != "settled" or answer["reply"]["status"] != "ok":
            raise AssertionError(answer)
        return (answer["reply"]["result"] or {}).get("text/plain")

    def take(self, number, count):
        self.write(self.frame(b"W", number, struct.pack(">I", count)))

    def until(self, condition, seconds=harness.SLACK, what="condition"):
        end = time.monotonic() + seconds
        while not condition():
            left = end - time.monotonic()
            if left <= 0 or self.ended:
                raise AssertionError("%s did not come (%s)" % (what, "the stream has ended" if self.ended else "%s s" % seconds))
            self.pump(left)

    def pump(self, seconds):
        """Take in what comes, waiting for the first of it."""
        if not select.select([self.output], [], [], max(seconds, 0))[0]:
            return
        data = os.read(self.output, 1 << 20)
        self.ended = not data
        self._raw += data
        if self.hello is None:
            self._greet()
        at, raw = 0, self._raw
        while self.hello is not None and len(raw) - at >= 9:
            length, kind, number = HEAD.unpack_from(raw, at)
            if len(raw) - at < 5 + length:
                break
            payload = raw[at + 9:at + 5 + length]
            at += 5 + length
            self._frame(bytes((kind,)), number, payload)
        self._raw = raw[at:]

    def _greet(self):
        words, newline, rest = self._raw.partition(b"\n")
        if newline:
            nonce, kind, size = words.split(b" ")
            size = int(size)
            if (nonce.decode(), kind) != (self.nonce, b"json"):
                raise AssertionError(self._raw)
            if len(rest) > size:
                self.hello, self._raw = json.loads(rest[:size].decode("ascii")), rest[size + 1:]

    def _frame(self, kind, number, payload):
        self.frames.append((kind, number, len(payload)))
        if kind == b"O":
            self.records.setdefault(number, bytearray()).extend(payload)
            if self.credit:
                self.take(number, len(payload))
        elif kind in (b"j", b"J"):
            self._parts.setdefault(number, []).append(payload)
            if kind == b"J":
                self.answers[number] = json.loads(b"".join(self._parts.pop(number)).decode("utf-8"))

    def greeted(self):
        self.until(lambda: self.hello is not None, what="the hello")
        return self.hello["courier"]

    def close(self):
        """End it in order; its exit status."""
        if not self.process.stdin.closed:
            self.process.stdin.close()
        try:
            return self.process.wait(harness.SLACK)
        finally:
            self.process.stdout.close()
            self.process.stderr.close()


class StreamTest(harness.FarTest):
    """A test with a stream to a target with an installed runner."""

    def stream(self, **options):
        stream = Stream(self.far, **options)
        self.addCleanup(stream.close)
        return stream
