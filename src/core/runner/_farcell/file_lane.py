"""What a lane adds to the port of a kernel in a directory: its cells get the files of any cell, as soon as they are more than a moment's work."""

import time

from . import files, lane_files, shared_lane
from .cell import VERSION
from .ports import Port
from .strict import decode, encode

LOOKED_AFTER = {"done": True, "detail": "what was in the lane is in files"}
_AGAIN = 0.5
_TAKING = 0.002  # between two looks at a cell that is just being taken, or about to be answered
_NUMBER_MAX = 10 ** 9


class FileLane(Port):
    """The part of a FilePort that has to do with the lane."""

    def _open_lane(self, lane):
        self._requests = []  # type: list
        self._from_lane = 0  # the last cell that became one with files before it had begun
        self.lane = lane or shared_lane.make(self.directory)

    def started(self, cell):
        """One that runs in the lane gets the file that others know it by, unless its reply comes right now."""
        if cell.in_lane and not cell.brief:
            timeout = None if cell.timeout is None else int(cell.timeout * 1000)
            self._write(self._path("run", cell.number), encode(
                {"v": VERSION, "id": cell.id, "timeout_ms": timeout, "max_output": cell.limit}))

    def forget(self, cell):
        """Its reply is in the page. What else there is of it goes when nobody needs that any more to find the cell."""
        if lane_files.flush(self.directory):
            files.remove(self._path("run", cell.number))
            files.remove(self._out_path(cell.number))
            cell.records.close()
        else:
            self._loop.at("forget-%d" % cell.number, time.monotonic() + _AGAIN, lambda: self.forget(cell))

    def _settled(self, cell):
        """Its reply is in a file, and nobody has been told yet: the next one may be here at once."""
        if self.lane is not None:
            if not self.waiting():
                self.lane.unbar()
            self.lane.settled(cell.number)

    def untaken(self, payload):
        """From now on it is a cell with files."""
        self._requests.append(payload)
        self._ship()

    def is_shipping(self):
        """Whether something has been taken from the lane for which there is no room yet. Nothing that came later is begun before it."""
        return bool(self._requests)

    def _ship(self):
        while self._requests:
            payload = self._requests[0]
            number = _number(payload)
            if not number:
                self._log("what was in the lane is no request")
            elif not self._write(self._path("req", number), payload):
                self._loop.at("ship", time.monotonic() + _AGAIN, self._ship)
                break
            else:
                self._from_lane = number
            del self._requests[0]
        self._scan()

    def _look_for_withdrawn(self, present):
        """One that its host has taken back is over: the lane does not wait for its reply."""
        number = self._from_lane
        if number and number not in present:
            self._from_lane = 0
            if number not in self._served:
                self.lane.withdrawn(number)

    def _take_from_lane(self):
        payload = self.lane.steal() if self.lane is not None else None
        if payload is not None:
            self.untaken(payload)

    def _look_after(self):
        """A host asks for its cell in the lane to become one with files; False where that takes a moment more."""
        if self.lane is None or self._kernel.find_out() and not self._requests:
            return True
        self._loop.at("ask", time.monotonic() + _TAKING, self._scan)
        return False


def _number(payload):
    """The number in a request, or 0."""
    try:
        number = decode(payload)["number"]
    except (ValueError, TypeError, KeyError):
        return 0
    return number if type(number) is int and 0 < number < _NUMBER_MAX else 0
