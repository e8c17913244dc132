"""What the supervisor knows of the world: a port that brings requests and takes away output, replies and answers."""


class Port(object):
    """The interface. `FilePort` serves a kernel's directory, `PipePort` a host on the other end of two pipes."""

    directory = None  # type: object
    wake = ""  # how requests make themselves known
    has_host = False  # whether a host started us and has to be there for us to live
    congested = False  # the host takes no more output for now
    gather_from = None  # type: object # so much output is not told by the reply if the records hold all of it: who reads them puts it together
    lane = None  # type: object

    def open(self, loop, kernel):
        """Begin to serve. The port may call `kernel`: control(request), facts(), busy(), gone(why), write_record()."""

    def when_relieved(self, function):
        """Call `function` once when a congested host has taken enough."""

    def look(self):
        """Look for requests and controls now, without being woken."""

    def waiting(self):
        # type: () -> int
        """How many requests have not been taken."""
        raise NotImplementedError

    def take(self):
        """Claim the next request and give it as a Cell, or None. One with a `refusal` is to be refused."""
        raise NotImplementedError

    def records(self, number):
        # type: (int) -> object
        """A RecordFile for the output of a cell."""
        raise NotImplementedError

    def started(self, cell):
        """The cell's code was handed to the interpreter."""

    def handed_over(self, cell_id, seq):
        """Ask again after a cell in the lane."""

    def untaken(self, payload):
        # type: (bytes) -> None
        """A request that was in the lane and is not run from there."""

    def forget(self, cell):
        """A cell that was started is over and was answered elsewhere."""

    def output(self, number, blob):
        # type: (int, bytes) -> None
        """Records that were added to the cell's record file."""

    def called(self, number, blob):
        # type: (int, bytes) -> None
        """A record of a call of a tool: to be told at once."""
        self.output(number, blob)

    def expect_answers(self):
        """A cell with tools begins. Answers go to `kernel`: awaits_answers(), answer_call(number, cell_id, call, text)."""

    def expect_no_answers(self):
        """It has ended: what comes from now on comes too late."""

    def is_waited_for(self):
        # type: () -> bool
        """Whether a host is there that waits for a cell."""
        return True

    def spill(self, number):
        # type: (int) -> str
        """The name under which a host finds the record file of a cell whose reply does not hold all output."""
        raise NotImplementedError

    def settle(self, cell, reply, spilled):
        # type: (object, bytes, bool) -> bool
        """Hand the reply over, for good; False where there is no room for it now, and it has to be tried again."""
        raise NotImplementedError

    def write_record(self, record):
        # type: (dict) -> None
        """Tell what the kernel is now: another generation has begun."""

    def close(self, why):
        """The kernel ends."""
