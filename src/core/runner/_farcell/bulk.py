"""The courier's share in files that are put and got: helpers of their own do the steps, and all bytes of files together take one turn."""

import io
from collections import deque

from . import calls, channel, duties, helpers, link, records
from .fault import Fault

HELPERS_MAX = 2
OPERATIONS = frozenset(("put", "get"))


class FileCall(calls.Call):
    """One step of a transfer."""

    is_out = False

    def over(self):
        self.is_out = True
        calls.Call.over(self)


class Bulk(channel.Outgoing):
    """The answers that carry bytes of files, one after the other: to the sender they are one that is never over."""

    def __init__(self):
        channel.Outgoing.__init__(self, 0)
        self._calls = deque()  # type: deque

    def add(self, call):
        # type: (FileCall) -> None
        self._calls.append(call)

    def remove(self, call):
        # type: (FileCall) -> None
        if call in self._calls:
            self._calls.remove(call)

    def frame(self):
        while self._calls:
            call = self._calls[0]
            frame = call.frame()
            if call.is_out or frame is None:
                # One that waits for its host to take something is enlisted on its own when that has happened.
                self._calls.popleft()
            if frame is not None:
                return frame
        return None


class Files(object):
    """Has the steps done, and their answers sent."""

    def __init__(self, courier, duty):
        # type: (object, duties.Duty) -> None
        self._courier = courier
        self._bulk = Bulk()
        self.pool = helpers.Pool(courier.loop, FileDuty(duty), HELPERS_MAX)

    def begin(self, number, header, text):
        # type: (int, dict, bytes) -> None
        """Have a step done; `text` is its header and what stands behind that."""
        if header.get("op") not in OPERATIONS:
            raise Fault("bad-request", "only a put or get can have bytes behind its header")
        call = FileCall(self._courier, number, header, duties.deadline(header))
        self._courier.accept(call)
        self._courier.have_done(call, helpers.Errand(text, call.end, lambda out, body: self._answer(call, out, body)), self.pool)

    def _answer(self, call, out, body):
        if not out:
            self._courier.answer(call, body)
            return
        call.source = records.Given(out)
        call.put(body)
        self._bulk.add(call)
        self._courier.sender.enlist(self._bulk)

    def forget(self, call):
        # type: (FileCall) -> None
        """Nobody waits for what this call still has."""
        self._bulk.remove(call)


class FileDuty(object):
    """What a helper does with a step, in the blocking way of the commands."""

    def __init__(self, duty):
        # type: (duties.Duty) -> None
        self._duty = duty

    def __call__(self, _kind, text, _end, answer):
        header = {}
        try:
            header, at = split(self._duty, text)
            answer.finish(link.operate(link.Call(header, io.BytesIO(memoryview(text)[at:]), self._duty.modules, answer)))
        except Exception as error:
            answer.send("json", duties.failure(error, header))


def split(duty, text):
    """(the header of a step, where the bytes behind it begin)."""
    head, line, _ = text[:duties.HEADER_MAX].partition(b"\n")
    return duty.header(head), len(head) + len(line)
