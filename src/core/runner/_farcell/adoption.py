"""How cells of the lane become the conductor's: found where they run, handed over by their host, or lost with their interpreter."""

import time

from . import lane_page as page, output, reply
from .cell import Cell
from .reply import Outcome

_TAKING = 0.1  # how long a cell that is just being taken from the lane is waited for at a stretch
_TAKING_LOOK = 0.002  # where others must not be kept waiting meanwhile


class Adoption(object):
    """The part of the conductor that looks into the lane. Whatever wakes the supervisor, it does that first."""

    _looked = 0  # the last cell in the lane that is known here
    _expected = None  # type: object
    _doubtful = ""  # a cell whose interpreter died while it wrote the reply

    def _watch_lane(self):
        self._loop.woken = self.look
        self._lane.seen = self._seen  # for the next interpreter, which is a fork of ours

    def _next_is(self, state, note):
        """What the next cell's reply says of its variables. In the lane only the usual can be said."""
        self._state, self._note = state, note
        if self._lane is not None:
            self._lane.words[page.PLAIN] = int(state == "kept" and not note)

    def look(self):
        # type: () -> None
        """See how things stand in the lane. A cell that runs there becomes one like any other."""
        if self._lane is None:
            return
        self._lane.absorb(self._seen)
        state, number = self._lane.standing()
        cell = self.running
        if cell is not None:
            if not cell.in_lane or state != page.SENT and number == cell.number:
                return
            self._forget(cell)  # stopped between its last look at our mark and its answer
        if number == self._looked or state in (page.FREE, page.TAKING):
            return
        fields = self._lane.cell_fields()
        if self._lane.words[page.NUMBER] != number:
            self.look()  # it is over, and its place taken by the next one
            return
        before, self._looked = self._looked, number
        if fields is None:
            self._log("what is in the lane is no cell")
            return
        self._seen.add(fields[1])
        current = self.generations.current
        state = self._lane.adopt(number, lambda: current is not None and not current.is_over())
        if state == page.TAKING:
            self._looked = before  # it is over; how, is seen when the next one has been taken or not
            return
        if current is not None:
            current.cells += 1
        dead = current is None or current.is_over()
        if state == page.DIRECT and dead:
            self._doubtful = fields[1]  # the host asks if it did not get the reply
        if state == page.SENT or state == page.DIRECT and dead:
            if current is not None:
                current.results += 1
                self.generations.proved()
            return
        self._adopt(state == page.VIA, *fields)

    def _adopt(self, over, number, cell_id, started, timeout, limit):
        cell = Cell(number, started)
        cell.id, cell.timeout, cell.started, cell.in_lane, cell.brief, cell.limit = cell_id, timeout, started, True, over, limit
        cell.stdout, cell.stderr = output.Capture(limit), output.Capture(limit)
        self._prepare(cell)
        self._follow(cell)

    def _forget(self, cell):
        """It was answered after all. What seemed to be its output goes out with the next."""
        self.running = None
        self.clock.stop()
        self._port.forget(cell)
        for late, printed in zip(self._late, (cell.stdout, cell.stderr)):
            if printed.total:
                late.absorb(printed)
                self._lane.words[page.LATE] = 1
        self._idle()

    def hand_over(self, cell_id, seq):
        # type: (str, int) -> object
        """Find out about a cell that the host has put into the lane; its request if nobody has taken it."""
        end = time.monotonic() + _TAKING
        while True:
            untaken = self._lane.steal()  # before the state is read: whoever takes it says so first
            if untaken is not None:
                self._expected = None
                return untaken
            state = self._lane.words[page.STATE]  # before the look: what has begun by then is seen there
            self.look()
            if state != page.TAKING or self.generations.current is None:
                self._expected = None
                if self._lane.words[page.SEQ] < seq or self._doubtful == cell_id:
                    self._vanished(cell_id, seq)
                return None
            if time.monotonic() >= end:
                self._expected = (cell_id, seq)
                self._loop.at("lane", time.monotonic() + _TAKING, lambda: self._port.handed_over(cell_id, seq))
                return None
            self._loop.pause(0.001)

    def find_out(self):
        # type: () -> bool
        """See to the cell that was last put into a shared lane; False where it is just being taken, and has to be asked after again."""
        untaken = self._lane.steal()
        if untaken is not None:
            self._port.untaken(untaken)
            return True
        is_on_its_way = self._lane.is_on_its_way()
        self.look()
        if is_on_its_way and self.generations.current is not None or self.running is not None and self.running.brief:
            return False
        self._lane.clear()
        return True

    def _is_ours(self):
        """Whether the interpreter runs nothing from the lane, and will not while cells wait that came by files."""
        lane = self._lane
        if lane is None or not lane.shared:
            return True
        if not self._port.waiting():
            lane.unbar()
            return True
        is_barred = lane.bar()
        if is_barred:
            self.look()
            if self.running is not None:
                return False
            # One that was put before has its turn before.
            untaken = lane.steal() if lane.words[page.SEQ] != lane.words[page.PUT] else None
            if untaken is not None:
                self._port.untaken(untaken)
        if not is_barred or self.generations.current is not None and lane.is_on_its_way() or self._port.is_shipping():
            self._loop.at("lane", time.monotonic() + _TAKING_LOOK, _look_again)
            return False
        return True

    def _of_lane(self, kind, payload):
        """Obey a frame of the interpreter's that only a shared lane brings: False for any other."""
        if self._lane is None or not self._lane.shared:
            return False
        if kind == b"q":  # taken, and not run there
            self._lane.words[page.SEQ] = self._lane.words[page.PUT]
            self._port.untaken(payload)
            return True
        return kind == b"n"  # a reason to wake up: what it has run so far has been noted by now

    def _vanished(self, cell_id, seq):
        """Its interpreter died as it took it, or as it wrote the reply."""
        self._lane.words[page.SEQ] = max(seq, self._lane.words[page.SEQ])
        self._doubtful = ""
        cell = Cell(seq if self._lane.shared else self._lane.next_number(), time.monotonic())
        cell.id, cell.state = cell_id, "reset"
        self._seen.add(cell_id)
        self._settle(cell, Outcome("died", reply.error(
            "signal", "KernelDied", "the interpreter ended as the cell was about to start, or had just ended")))

    def _bury(self):
        """The interpreter has ended: nothing goes on in the lane any more."""
        self.look()
        lost = self._lane.lost()
        if lost is not None:
            self._vanished(lost[1], lost[0])
        # Not before: it is not to look like one that never came.
        self._lane.words[page.STATE], self._lane.words[page.GIVEN] = page.FREE, 0
        if self._expected is not None:
            cell_id, seq = self._expected
            self._expected = None
            self._loop.cancel("lane")
            if self._lane.words[page.SEQ] < seq:
                self._vanished(cell_id, seq)


def _look_again():
    """The turn of the loop itself is what was wanted."""
