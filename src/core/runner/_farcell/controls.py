"""What a host wants of a kernel beside cells: interrupt, reset, stop, and the clock that it holds and lets go on."""


class Controls(object):
    """The part of the supervisor that carries controls out."""

    def control(self, request):
        # type: (dict) -> dict
        """Carry out what a host wants of the kernel beside cells, and say what came of it."""
        what = request.get("do")
        act = {"interrupt": self._interrupt, "reset": self._reset, "stop": self._stop_if, "hold": self._hold, "resume": self._resume}.get(
            what if isinstance(what, str) else None)
        if act is None:
            return _answer(False, "unknown control")
        if self._ended:
            return _answer(False, "the kernel is ending")
        self._log("control: %s", what)
        return act(request)

    def _other(self, request):
        """What is to be said where the cell that a control is for does not run, or nothing."""
        cell = self._conductor.running
        number, cell_id = request.get("number"), request.get("id")
        if cell is None:
            return "no cell runs"
        if (number is not None and number != cell.number) or (cell_id is not None and cell_id != cell.id):
            return "another cell runs: %d" % cell.number
        return ""

    def _interrupt(self, request):
        other = self._other(request)
        if other:
            return _answer(False, other)
        done = self._conductor.interrupt()
        return _answer(bool(done), done or "the cell had just ended")

    def _hold(self, request):
        """The deadline stands still."""
        milliseconds = request.get("for_ms")
        if type(milliseconds) is not int or milliseconds < 0:
            return _answer(False, "for_ms is not a count of milliseconds")
        other = self._other(request)
        if not other:
            self._conductor.calls.host_spoke()
            self._conductor.clock.hold(milliseconds / 1000.0)
        return _answer(not other, other or "held")

    def _resume(self, request):
        other = self._other(request)
        if not other:
            self._conductor.calls.host_spoke()
            other = "" if self._conductor.clock.resume() else "nothing is held"
        return _answer(not other, other or "resumed")

    def _reset(self, _request):
        self._conductor.reset("the kernel was reset")
        generations = self._conductor.generations
        if generations.current is None:
            return _answer(False, generations.trouble)
        return _answer(True, "generation %d" % generations.number)

    def _stop_if(self, request):
        if request.get("if_idle") and (self._conductor.busy() or self._port.waiting()):
            return _answer(False, "busy")
        self._stop("stopped")
        return _answer(True, "stopped")


def _answer(done, detail):
    return {"done": done, "detail": detail}
