"""A `run` or `wait` in the courier: followed by events, its records sent as they come, answered when there is something to tell."""

import time

from . import cellfiles, files, records, watch

# A cell that has to wait for others is told after this moment: most are over by then, and it costs a listing.
TELL_AFTER = 0.003


class Follow(watch.Watch):
    """Watches one cell for one call."""

    def __init__(self, courier, call, kernel, number, options, known_id=None, ours=False):
        watch.Watch.__init__(self, kernel.directory, number, options, call.end, known_id, ours)
        self.courier = courier
        self.call = call
        self.kernel = kernel
        self.cell = None  # type: object  # what is to be told, once there is something
        self.reply = None  # type: object
        self.told = not self.tell
        self.tape = None  # type: object
        if self.stream:
            self.tape = call.source = records.Tape(files.cell_path(kernel.directory, "out", number), self.offset)

    def begin(self, fresh):
        # type: (bool) -> None
        """`fresh`: just shipped, so that its end cannot have been missed."""
        self.seen_alive = True
        self.kernel.follow(self)
        if not self.told:
            self.call.at(time.monotonic() + TELL_AFTER, self._tell_waiting)
        else:
            self.call.at(self.until, self.expire)
        if not fresh:
            self.news()

    def news(self):
        """Something may have happened to the cell."""
        if self.cell is None:
            cell = cellfiles.look(self.directory, self.number)
            if cell.fate not in watch.UNSETTLED:
                self._finish(cell)
            elif self.tape is not None and self.tape.more():
                self.courier.sender.enlist(self.call)

    def _tell_waiting(self):
        self.told = True
        cell, telling = self.look()
        if telling:
            self._finish(cell)
        else:
            self.call.at(self.until, self.expire)

    def expire(self):
        """Time is up: what there is now is told, with the record that has been begun."""
        if self.tape is not None:
            self.tape.stop()
            self.call.at(self.call.end, self.cut)
        if self.cell is None:
            self._finish(cellfiles.look(self.directory, self.number))
        else:
            self.courier.sender.enlist(self.call)

    def cut(self):
        """The host has not even taken that by the end of the call: it is told how far it came."""
        if self.call.source is not None:
            self.call.source.close()
            self.call.source = None
            self.courier.finish(self.call, self.answered)

    def death(self):
        """The kernel is dead."""
        if self.cell is None:
            self.courier.guard(self.call, self._bereaved)

    def _bereaved(self):
        cell = self.bereaved()
        if cell.fate not in watch.UNSETTLED:
            self._finish(cell)
            return
        self.cell = cell
        self.kernel.leave(self)
        self.courier.bury(self)

    def buried(self, reply):
        self.reply = reply
        self.cell.fate = "dead" if reply is not None else "unknown"
        self._finish(self.cell)

    def _finish(self, cell):
        self.cell = cell
        self.kernel.leave(self)
        if self.tape is not None:
            self.tape.closed = True
            self.courier.sender.enlist(self.call)
        else:
            self.courier.finish(self.call, self.answered)

    def answered(self):
        """The answer, when all records are out."""
        if self.tape is not None:
            self.offset = self.tape.whole
            if self.cell.fate == "settled" and self.tape.left():
                self.cell.fate = "running"
        return self.answer(self.cell, self.reply)

    def drop(self):
        """Nobody waits any more."""
        self.kernel.leave(self)
