"""A `run` in the courier whose cell went into the lane of its kernel: answered from there, or after a moment left to the supervisor and followed by its files."""

import time

from . import follow

HAND_OVER_AFTER = 0.002
HOLD_MIN = 100  # milliseconds; who wants to know sooner wants files
ANSWER = b'{"number":%d,"id":"%s","fate":"settled","offset":%d,"ahead":0,"running_ms":0.0,"ok":true,"reply":%s}'


def begin(courier, call, kernel, request, options, acks):
    # type: (object, object, object, dict, dict, list) -> bool
    """Put the cell into the lane and wait for it there; False where it has to be shipped as a file."""
    if kernel.follows or kernel.in_lane is not None or options["hold_ms"] < HOLD_MIN:
        return False
    lane = kernel.lane()
    if lane is None or not lane.offer(request, acks, kernel.replies):
        return False
    kernel.delivered(acks)
    InLane(courier, call, kernel, lane, options, request["id"])
    return True


class InLane(object):
    """One cell, from the moment when it was put until its reply is there or its files are."""

    def __init__(self, courier, call, kernel, lane, options, cell_id):
        self.call = call
        self._courier = courier
        self._kernel = kernel
        self._lane = lane
        self._number = lane.number
        self._options = options
        self._cell_id = cell_id
        self._handed = None  # type: object
        kernel.in_lane = call.job = self
        now = time.monotonic()
        self._until = min(now + options["hold_ms"] / 1000.0, call.end)
        kernel.loop.watch(lane.reply_fd, self._rung)
        kernel.loop.at(self, now + HAND_OVER_AFTER, self._leave)

    def guarded(self, function):
        self._courier.guard(self.call, function)

    def _rung(self, _events):
        self.guarded(self._look)

    def _look(self):
        raw = self._lane.take_reply()
        if raw is None:
            if self._lane.ended:
                self._hand_over()
            return
        self._part()
        if self._lane.direct:
            self._courier.answer(self.call, ANSWER % (self._number, self._cell_id.encode("ascii"), self._options["offset"], raw))
        else:
            self._follow().begin(False)

    def _leave(self):
        """It takes longer than most, or somebody else has heard its bell."""
        self.guarded(self._look)
        if self._kernel.in_lane is self:
            self.guarded(self._hand_over)

    def _part(self):
        """Nothing more is to be heard from the lane."""
        if self._kernel.in_lane is self:
            self._kernel.in_lane = None
            self._kernel.loop.unwatch(self._lane.reply_fd)
            self._kernel.loop.cancel(self)

    def _hand_over(self):
        self._part()
        self._handed = self._lane.hand_over()
        self._kernel.follow(self)
        self.call.at(self._until, self._expire)
        self.news()

    def news(self):
        if self._handed.arrived():
            self._kernel.leave(self)
            self._follow().begin(False)

    def _follow(self):
        return follow.Follow(self._courier, self.call, self._kernel, self._number, self._options, self._cell_id, True)

    def death(self):
        """The kernel is dead. What it made of the cell stands in its page, which is read as the cell is buried."""
        self._give_up()
        self._follow().death()

    def _expire(self):
        """The supervisor lives and does nothing: nobody knows more than that the cell may be about to run."""
        self._give_up()
        self._courier.finish(self.call, lambda: {
            "number": self._number, "id": self._cell_id, "fate": "waiting", "offset": self._options["offset"], "ahead": 0, "reply": None, "running_ms": 0.0})

    def _give_up(self):
        self._part()
        self._kernel.leave(self)
        if self._handed is None and self._lane.number == self._number:
            self._handed = self._lane.hand_over()
        if self._handed is not None:
            self._handed.forget()

    def drop(self):
        """Nobody waits any more. The cell goes on."""
        self._give_up()
