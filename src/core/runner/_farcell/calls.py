"""One call of a stream: its header, and what there is to send for it."""

import time

from . import channel, duties, link, records


class Call(link.Call, channel.Outgoing):
    """Known to the courier from its last piece until its answer is out."""

    def __init__(self, courier, ref, header, seconds):
        channel.Outgoing.__init__(self, ref)
        self.header = header
        self.modules = None
        self.answer = self
        self.end = time.monotonic() + seconds
        self.courier = courier
        self.job = None  # type: object  # the Follow or the Errand that works for it
        self.due = None  # type: object
        self.on_due = None  # type: object

    def at(self, when, function):
        """Call `function` at that moment, instead of what was to be called before."""
        self.due, self.on_due = when, function
        self.courier.expect(when)

    def directory(self):
        return self.courier.attendance.checked(self.field("dir", str, required=True)).directory

    def send(self, _kind, payload):
        """As an operation's Answer: bytes of the answer's `out` frames."""
        self.source = records.Given(payload)

    def ended(self):
        return self.courier.composed(self, self.job.answered)

    def failed(self, error):
        return duties.failure(error, self.header)

    def over(self):
        self.courier.close_call(self)
