"""Conducts cells: starts one after the other, follows the one that runs, and sees to it that each gets its one reply.

Nothing that comes from the interpreter is believed before it is checked.
"""

import signal
import struct
import time

from . import lane_page, output, reply
from .adoption import Adoption
from .clock import Clock
from .frames import pack
from .generations import Generations
from .loop import Outbox
from .pump import Pump
from .recent import Recent
from .reply import Outcome
from .tool_calls import ToolCalls

_LATE_LIMIT = 64 * 1024  # what is kept of each stream between two cells
_SETTLE_AGAIN = 0.5
_EXIT_SEEN = 0.5  # between the end of the interpreter's pipe and the end of the interpreter itself
_LADDER = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
_NUDGE_AFTER = 0.02  # seconds, and twice as long each time
_NUMBER = struct.Struct(">I")
_INTERRUPTED = pack(b"I", b"")


class Conductor(Adoption):
    """Everything between a request and its reply."""

    def __init__(self, spec, port, loop, log, changed, idle):
        # type: (dict, object, object, object, object, object) -> None
        self.running = None  # type: object
        self.closing = False  # no new cell and no new interpreter
        self._lane = port.lane
        self.generations = Generations(spec, loop, log, self._lane)
        self._spec = spec
        self._port = port
        self._loop = loop
        self._log = log
        self._changed = changed  # called when another generation has begun
        self._idle = idle  # called when a cell has ended
        self._pump = Pump(loop, port, self._printed)
        self.calls = ToolCalls(loop, port, log, self._pump.take)
        self.clock = Clock(loop, log, self._deadline)
        self._outbox = None  # type: object
        self._seen = Recent()
        self._unsettled = None  # type: object
        self._late = _captures()
        self._state = "fresh"  # of the next cell
        self.read_spec()
        if self._lane is not None:
            self._watch_lane()

    def read_spec(self):
        # type: () -> None
        """Of a kernel that has run nothing yet."""
        self._grace = max(0, self._spec.get("grace_ms", 2000) or 0) / 1000.0
        self._note = self._spec.get("note")  # of the next cell

    # -- generations ---------------------------------------------------------------------------------------------------

    def fork(self):
        # type: () -> bool
        """Have an interpreter stand ready."""
        if not self.generations.fork():
            return False
        interpreter = self.generations.current
        self._outbox = Outbox(self._loop, interpreter.in_fd, self._pipe_ended)
        self._pump.attach(interpreter.stdout_fd, interpreter.stderr_fd)
        self._loop.watch(interpreter.out_fd, self._frames)
        self.calls.attach(interpreter.calls)
        self._changed()
        return True

    def end_generation(self):
        """End the interpreter with all that it started, and keep what they had printed."""
        self.look()
        self._pump.detach()
        self._outbox.close()
        self.calls.detach()
        self._loop.cancel("exit")
        interpreter = self.generations.end(lambda kind, data: self._printed([(kind, data)]))
        if self._lane is not None:
            self._bury()
        return interpreter

    def child_ended(self):
        # type: () -> None
        """SIGCHLD."""
        if self.generations.reap():
            self._exited()

    def _exited(self):
        """The interpreter has ended. Its last words may hold the result of the cell that seemed to run."""
        interpreter = self.generations.current
        while self.generations.current is interpreter and interpreter.out_fd in self._loop and self._frames(0):
            pass
        if self.generations.current is interpreter:
            self._lost()

    def _lost(self, failure=None):
        """The current interpreter has ended, or has to: answer for the cell that ran, and put another in its place."""
        interpreter = self.end_generation()
        how = reply.describe_exit(interpreter.status, interpreter.oom_killed(), self._spec.get("limits"))
        message = failure["message"] if failure is not None else how["message"]
        cell = self.running
        if cell is not None:
            self._next_is("fresh", None)
            cell.state = "reset"
            if cell.reason:
                self._finish_stopped(cell, signal_name=how["signal"])
            elif failure is None and self.generations.doubtful:
                self._finish(cell, Outcome("died", self._no_interpreter(), None, how["exit_code"], how["signal"]))
            else:
                self._finish(cell, Outcome("died", failure or how["error"], None, how["exit_code"], how["signal"]))
        elif interpreter.cells:
            self._next_is("lost", "between two cells " + message)
        self._log("generation %d ended: %s", interpreter.generation, message)
        if not self.closing and not self.generations.doubtful:
            self.fork()
        else:
            self._changed()

    def reset(self, reason):
        # type: (str) -> None
        """Replace the interpreter; a cell that runs is interrupted for good."""
        if self.generations.current is not None:
            self.end_generation()
        cell = self.running
        if cell is not None:
            cell.state = "reset"
            cell.reason = "interrupted"
            self._finish_stopped(cell, signal_name="SIGKILL", message=reason + " while the cell ran")
        self._next_is("fresh", reason)
        self.fork()

    # -- from request to start -----------------------------------------------------------------------------------------

    def advance(self):
        # type: () -> None
        """Start the next cell if there is one and nothing is under way."""
        while self.running is None and self._unsettled is None and self._expected is None and not self.closing:
            cell = self._port.take() if self._is_ours() else None
            if cell is None:
                return
            if not cell.refusal and not self._seen.add(cell.id):
                cell.refusal = "a cell with this id was here before, and none is run twice"
            if cell.refusal:
                self.refuse(cell, reply.error("protocol", "Refused", cell.refusal))
            else:
                self._begin(cell)

    def busy(self):
        # type: () -> bool
        return self.running is not None or self._unsettled is not None or self._expected is not None

    def refuse(self, cell, failure):
        self._log("cell %d refused: %s", cell.number, failure["message"])
        self._settle(cell, Outcome("refused", failure))

    def _begin(self, cell):
        if self.generations.reap():
            self._exited()
        current = self.generations.current
        if cell.reset and current is not None and current.cells:
            self._log("reset by the request of cell %d", cell.number)
            self.end_generation()
            self._next_is("reset", None)
            self.fork()
        if self.generations.current is None and not (self.generations.may_fork() and self.fork()):
            cell.state, cell.note = ("lost" if self._state == "lost" else "reset"), self._note
            self._settle(cell, Outcome("died", self._no_interpreter()))
            return
        self.generations.current.cells += 1
        self._prepare(cell)
        cell.started = time.monotonic()  # before the interpreter can begin
        cell.queued_ms = (cell.started - cell.seen) * 1000
        for piece in reply.run_frames(cell):
            self._outbox.push(piece)
        cell.code = ""
        if cell.tools is not None:
            self.calls.begin(cell)
        self._follow(cell)

    def _prepare(self, cell):
        cell.state, cell.note = self._state, self._note
        self._next_is("kept", None)
        cell.records = self._port.records(cell.number)
        self.running = cell

    def _follow(self, cell):
        self._port.started(cell)
        self._loop.cancel("idle")
        self.clock.start(cell)
        if self._late[0].total or self._late[1].total:
            self._bring_late(cell)

    def _no_interpreter(self):
        return reply.error("spawn", "NoInterpreter", self.generations.trouble or "there is no interpreter",
                           hint="the machine may lack processes or memory; the kernel's log tells more")

    # -- output --------------------------------------------------------------------------------------------------------

    def _printed(self, records):
        """Output of the running cell, or late output that goes out with the next."""
        self.look()
        cell = self.running
        if cell is None and self._lane is not None:
            self._lane.words[lane_page.LATE] = 1
        stdout, stderr = (cell.stdout, cell.stderr) if cell is not None else self._late
        for kind, data in records:
            (stdout if kind == b"o" else stderr).feed(data)
        if cell is not None:
            self._record(cell, records)

    def _record(self, cell, records):
        blob = cell.records.add(records)
        if blob:
            self._port.output(cell.number, blob)

    def _bring_late(self, cell):
        late, self._late = self._late, _captures()
        if self._lane is not None:
            self._lane.words[lane_page.LATE] = 0
        records = []
        for kind, capture, old in ((b"o", cell.stdout, late[0]), (b"e", cell.stderr, late[1])):
            if old.total:
                capture.absorb(old)
                records.append((kind, old.text_bytes()[0]))
        self._record(cell, records)

    # -- from the interpreter ------------------------------------------------------------------------------------------

    def _frames(self, _events):
        """Read and obey; whether there was anything."""
        interpreter = self.generations.current
        try:
            arrived = interpreter.read_frames()
        except ValueError:
            self._violated("sent what is no frame")
            return False
        if arrived is None:
            self._loop.unwatch(interpreter.out_fd)
            self._pipe_ended()
            return False
        for kind, payload in arrived:
            if self.generations.current is not interpreter:
                break
            try:
                if kind == b"r":
                    self._result(payload)
                elif kind == b"d":
                    self._display(payload)
                elif not self._of_lane(kind, payload):
                    raise ValueError
            except ValueError:
                self._violated("sent a frame that does not fit the protocol")
        return interpreter.more

    def _pipe_ended(self):
        """As a rule because it has ended, which is about to be told with more detail."""
        if not self._loop.armed("exit"):
            self._loop.at("exit", time.monotonic() + _EXIT_SEEN, lambda: self._violated("closed its pipe to the supervisor"))

    def _violated(self, what):
        self._log("the interpreter %s", what)
        self._lost(reply.error("protocol", "InterpreterBroke", "the interpreter %s" % what,
                               hint="code in the cell may have closed or written to descriptors that are not its own"))

    def _display(self, payload):
        self.look()
        cell = self.running
        number = _NUMBER.unpack_from(payload)[0] if len(payload) >= 4 else -1
        bundle = reply.decode(payload[4:])
        if not isinstance(bundle, dict):
            raise ValueError
        if cell is None or cell.number != number:
            self._log("a display of cell %d was dropped", number)
            return
        self._pump.take()
        data = reply.encode(bundle)
        if cell.add_display(data):
            self._record(cell, [(b"d", data)])

    def _result(self, payload):
        result = reply.checked_result(payload)
        self.look()
        cell = self.running
        if cell is None or cell.number != result["number"]:
            self._log("a result of cell %d was dropped", result["number"])
            return
        self._pump.take()
        self.generations.proved()
        if cell.reason:
            self._finish_stopped(cell, result)
            return
        status = result["status"]
        code = 0 if status == "ok" else 1 if status == "error" else result["exit_code"] if status == "exit" else None
        self._finish(cell, Outcome(status, result["error"], result["result"], code))

    # -- stopping a cell -----------------------------------------------------------------------------------------------

    def interrupt(self):
        # type: () -> str
        """Interrupt the running cell, or go a step further if that was done before; says what was done."""
        self.look()
        cell = self.running
        if cell is None:
            return ""
        if not cell.reason:
            self._stop_cell("interrupted")
            if self.running is not cell and not cell.reason:
                return ""
        else:
            self._next_rung()
        return "%s sent" % _LADDER[cell.rung - 1].name

    def _deadline(self):
        self.look()
        if self.running is None:
            return
        if self.running.reason:
            self._next_rung()
        else:
            self._stop_cell("timeout")

    def _stop_cell(self, reason):
        cell = self.running
        self._frames(0)  # a result that is there already counts
        if self.running is cell:
            cell.reason = reason
            self._next_rung()

    def _next_rung(self):
        """SIGINT, SIGTERM, SIGKILL: the first leaves the variables, the last leaves nothing."""
        cell = self.running
        signum = _LADDER[cell.rung]
        self.clock.stopping()
        cell.rung += 1
        self._log("cell %d: %s, %s", cell.number, cell.reason, signum.name)
        if signum == signal.SIGKILL:
            self._lost()
            return
        if signum == signal.SIGINT:
            self._outbox.push(_INTERRUPTED)  # tells the interpreter which cell the signal is for
            self._nudge_in(cell, _NUDGE_AFTER)
        self.generations.current.signal(signum)
        grace = self._grace if signum == signal.SIGINT else self._grace / 2
        self._loop.at("ladder", time.monotonic() + grace, self._deadline)

    def _nudge_in(self, cell, seconds):
        """Again and again, until it ends or the next rung comes."""
        def nudge():
            if self.running is cell and cell.rung == 1:
                self.generations.current.nudge()
                self._nudge_in(cell, seconds * 2)

        self._loop.at("nudge", time.monotonic() + seconds, nudge)

    def _finish_stopped(self, cell, result=None, signal_name=None, message=""):
        """The end of a cell that was told to end: with its result if it obeyed, else with the signal that it took."""
        told = (result and result["error"]) or reply.error("", "", "")
        if cell.reason == "timeout":
            failure = reply.timed_out(cell, told)
        elif told["name"]:
            failure = told
        else:
            failure = reply.error("signal", "Interrupted", message or "the cell was interrupted")
        if result is None and not message:
            failure["hint"] = "it did not end on SIGINT, so its variables are lost"
        self._finish(cell, Outcome(cell.reason, failure, result and result["result"], None, signal_name))

    def abandon(self, failure):
        # type: (dict) -> None
        """The kernel ends while a cell runs."""
        cell = self.running
        cell.state = "lost"
        self._finish(cell, Outcome("died", failure))

    # -- the reply -----------------------------------------------------------------------------------------------------

    def _finish(self, cell, outcome):
        """The running cell has come to its end, in whatever way."""
        outcome.duration_ms = (time.monotonic() - cell.started) * 1000
        self.running = None
        self.clock.stop()
        if cell.tools is not None:
            self.calls.end()
        self._settle(cell, outcome)
        self._idle()

    def _settle(self, cell, outcome):
        """Write the reply. A full disk costs the record file first, and then time, but never the reply."""
        if self._port.settle(cell, *self._compose(cell, outcome)):
            return
        self._log("no room for the reply of cell %d", cell.number)
        if cell.records is not None:
            cell.records.truncate()
        self._unsettled = (cell, self._compose(cell, outcome))
        self._settle_again()

    def _compose(self, cell, outcome):
        return reply.build(cell, outcome, self._spec["id"], self.generations.number, self._port.spill(cell.number), self._port.gather_from)

    def _settle_again(self):
        cell, composed = self._unsettled
        if self._port.settle(cell, *composed):
            self._unsettled = None
            self._log("the reply of cell %d is written", cell.number)
        else:
            self._loop.at("settle", time.monotonic() + _SETTLE_AGAIN, self._settle_again)


def _captures():
    return output.Capture(_LATE_LIMIT), output.Capture(_LATE_LIMIT)
