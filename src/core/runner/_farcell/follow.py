"""A `run` or `wait` in the courier: followed by events, its records sent as they come, answered when there is something to tell."""

import time

from . import cellfiles, files, in_lane, lane_files, link, records, watch

# A cell that has to wait for others is told after this moment: most are over by then, and it costs a listing.
TELL_AFTER = 0.003
# How the supervisor writes that a reply holds all output.
_WHOLE = b',"spill":null},"tools":'
QUICK = 32 << 20  # of a request or an answer: what goes into memory so quickly that others can wait for it
_REPLIES_MAX = 10000  # for a host that never acknowledges
# And that there was none.
_EMPTY, _QUIET, _NO_DISPLAYS = b',"stdout":"",', b',"output":{"stdout_bytes":0,"stdout_omitted":0,"stderr_bytes":0,', b',"displays":[]}'
_NO_CALLS = b',"tools":{"calls":0,"errors":[]},'


def run(courier, call, text):
    """Begin a `run`: ship the cell, then follow it. What is not needed for that comes after. `text` is the call as it came, in pieces where it is long."""
    kernel = courier.attendance.checked(call.field("dir", str, required=True))
    request, options = call.request(), call.wait_options()
    again, numbers = call.field("again", bool, default=False), call.numbers("ack")
    number = None
    is_long = isinstance(request, files.Written)
    if courier.attendance.attend(kernel) and not again and (not is_long or call.header["cell_bytes"] <= QUICK and kernel.is_in_memory()):
        if not is_long and in_lane.begin(courier, call, kernel, request, options, numbers):
            return
        try:
            number = kernel.ship(request)
        except files.LockTimeout:
            pass
    if number is not None:
        Follow(courier, call, kernel, number, options, request["id"], True).begin(True)
    elif is_long:
        courier.have_placed(call, b"".join(text))
        return  # with what there is to acknowledge
    else:
        # Somebody else is at the files, or the kernel is dead, or all files have to be searched: a helper can wait.
        courier.step(call, {"op": "submit", "dir": kernel.directory, "cell": request, "again": again},
                     lambda answer: follow_shipped(courier, call, answer["number"], request["id"]))
    try:
        kernel.acknowledge(numbers)
    except OSError:
        pass  # they stay, and cost some room; the cell is what matters


def follow_shipped(courier, call, number, cell_id):
    """Go on with a `run` whose cell a helper has shipped."""
    kernel = courier.attendance.checked(call.field("dir", str, required=True))
    courier.attendance.attend(kernel)
    Follow(courier, call, kernel, number, call.wait_options(), cell_id, True).begin(False)


def wait(courier, call):
    """Begin a `wait`."""
    kernel = courier.attendance.checked(call.field("dir", str, required=True))
    options, number, cell_id = call.wait_options(), call.number(), call.field("id", str)
    kernel.acknowledge(call.numbers("ack"))
    if number is None:
        courier.step(call, {"op": "find", "dir": kernel.directory, "id": cell_id}, lambda answer: _wait_found(courier, call, kernel, answer["number"], options, cell_id))
    else:
        _wait_found(courier, call, kernel, number, options, cell_id)


def _wait_found(courier, call, kernel, number, options, cell_id):
    if number is None:
        courier.finish(call, lambda: link.unknown(cell_id, options))
        return
    courier.attendance.attend(kernel)
    Follow(courier, call, kernel, number, options, cell_id).begin(False)


class Follow(watch.Watch):
    """Watches one cell for one call."""

    def __init__(self, courier, call, kernel, number, options, known_id=None, ours=False):
        watch.Watch.__init__(self, kernel.directory, number, options, call.end, known_id, ours)
        self.courier = courier
        self.call = call
        self.kernel = kernel
        self.cell = None  # type: object  # what is to be told, once there is something
        self.raw = None  # type: object
        self.reply = None  # type: object
        self.tape = None  # type: object
        self.res = files.cell_path(kernel.directory, "res", number)
        call.job = self
        if self.stream:
            self.tape = call.source = records.Tape(files.cell_path(kernel.directory, "out", number), self.offset)

    def guarded(self, function):
        self.courier.guard(self.call, function)

    def begin(self, fresh):
        # type: (bool) -> None
        """`fresh`: just shipped, so that its end cannot have been missed."""
        self.kernel.follow(self)
        if self.tell:
            self.call.at(time.monotonic() + TELL_AFTER, self._tell_waiting)
        else:
            self.call.at(self.until, self.expire)
        if fresh:
            self.seen_alive = True
            return
        alive = self.kernel.watched() or files.is_locked(self.directory)
        self.seen_alive = alive
        self.news()
        if self.cell is None and not alive:
            self.death()

    def news(self):
        """Something may have happened to the cell."""
        if self.cell is not None or self._has_settled():
            return
        if self.tape is not None and self.tape.more():
            self.courier.sender.enlist(self.call)
            return
        cell = self._fate()
        if cell.fate == "settled":
            self._has_settled()  # the reply was in the lane's page alone, and is in its file now
        elif cell.fate == "unknown":
            self._finish(cell)

    def _has_settled(self):
        """Whether the reply is in its file; if so, it is on its way."""
        raw = files.read_bytes(self.res)
        if raw is None:
            return False
        self.raw = raw
        quiet = raw.endswith(_NO_DISPLAYS) and raw.find(_EMPTY, 0, 64) >= 0 and raw.rfind(_QUIET) >= 0 and raw.rfind(_NO_CALLS) >= 0
        if raw.rfind(_WHOLE) >= 0 and len(self.kernel.replies) < _REPLIES_MAX:
            self.kernel.replies[self.number] = not quiet
        if self.gather and self.tape is None and cellfiles.is_gathered(raw):
            self.tape = self.call.source = records.Tape(files.cell_path(self.directory, "out", self.number), self.offset)
        if quiet and self.tape is not None:
            self.tape.close()
            self.tape = self.call.source = None
        self._finish(cellfiles.Cell(self.number, "settled"))
        return True

    def _fate(self):
        """The cell as it is now. One of which the lane's page knows more, that only others can tell, is as good as waiting."""
        try:
            return cellfiles.look(self.directory, self.number)
        except lane_files.Pending:
            return cellfiles.Cell(self.number, "waiting")

    def _tell_waiting(self):
        cell = self._fate()
        if cell.fate not in watch.UNSETTLED or cell.fate == "waiting" and cellfiles.ahead(self.directory, self.number) > 0:
            self._finish(cell)
        else:
            self.call.at(self.until, self.expire)

    def expire(self):
        """Time is up: what there is now is told, with the record that has been begun."""
        if self.cell is None and not self.kernel.watched() and not files.is_locked(self.directory):
            self.death()
            return
        if self.tape is not None:
            self.tape.stop()
            self.call.at(self.call.end, self.cut)
        if self.cell is not None:
            self.courier.sender.enlist(self.call)
        else:
            self._finish(self._fate())

    def cut(self):
        """The host has not even taken that by the end of the call: it is told how far it came."""
        if self.call.source is not None:
            self.call.source.close()
            self.call.source = None
            self.courier.finish(self.call, self.answered)

    def death(self):
        """The kernel is dead: the last word is in the files, or is written by a helper, which takes the lock and ends what is left of the kernel."""
        if self.cell is not None:
            return
        try:
            cell = self.bereaved()
        except lane_files.Pending:
            cell = cellfiles.Cell(self.number, "running")
        if cell.fate not in watch.UNSETTLED:
            self._finish(cell)
            return
        self.cell = cell
        self.kernel.leave(self)
        self.courier.step(self.call, {"op": "bury", "dir": self.directory, "number": self.number, "seen_alive": self.seen_alive, "ours": self.ours}, self._buried)

    def _buried(self, answer):
        self.call.job, self.reply = self, answer["reply"]
        self.cell.fate = "dead" if self.reply is not None else "unknown"
        self._finish(self.cell)

    def _finish(self, cell):
        self.cell = cell
        self.kernel.leave(self)
        if self.tape is not None:
            self.tape.closed = True
            if self.tape.more():
                self.raw = None  # read again when its turn has come: it may be large, and the host slow
                self.courier.sender.enlist(self.call)
                return
            self.call.source = None
            self.tape.close()
        self.courier.finish(self.call, self.answered)
        self.kernel.prepare()

    def answered(self):
        """The answer, when all records are out."""
        if self.tape is not None:
            self.offset = self.tape.whole
            if self.cell.fate in ("settled", "dead") and self.tape.left():
                self.cell.fate, self.reply = "running", None
        return self.answer(self.cell, self.reply, self.raw)

    def drop(self):
        """Nobody waits any more."""
        self.kernel.leave(self)
