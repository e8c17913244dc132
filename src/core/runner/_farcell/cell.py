"""A cell as the supervisor sees it: a request that was checked, and what is known of its run."""

import re
from collections import deque

from . import output
from .fastjson import loads

MAX_OUTPUT = 64 << 20  # per stream; a request may wish for more, the supervisor's memory may not
MAX_DISPLAYS = 1000
MAX_DISPLAY_BYTES = 32 << 20
VERSION = 1
_ID = re.compile(r"\A[0-9a-f]{32}\Z")


_NOTHING = output.Capture(0)  # of a cell that will not run


class BadRequest(ValueError):
    """A request that does not fit the protocol."""


class Recent(object):
    """The last things seen: a set that forgets the oldest."""

    def __init__(self, limit=100000):
        # type: (int) -> None
        self._limit = limit
        self._order = deque()  # type: deque
        self._set = set()  # type: set

    def __contains__(self, item):
        return item in self._set

    def add(self, item):
        # type: (object) -> bool
        """False if it was here already."""
        if item in self._set:
            return False
        self._set.add(item)
        self._order.append(item)
        if len(self._order) > self._limit:
            self._set.discard(self._order.popleft())
        return True


class Cell(object):
    """One request on its way to exactly one reply."""

    __slots__ = ("number", "id", "code", "timeout", "echo", "cwd", "env", "reset", "refusal", "seen", "started", "queued_ms",
                 "stdout", "stderr", "displays", "display_bytes", "displays_dropped", "records", "reason", "rung", "state", "note")

    def __init__(self, number, seen):
        # type: (int, float) -> None
        self.number = number
        self.id = ""
        self.code = ""
        self.timeout = None  # type: object
        self.echo = "last"
        self.cwd = None
        self.env = {}  # type: dict
        self.reset = False
        self.refusal = ""  # why it will not run
        self.seen = seen
        self.started = 0.0
        self.queued_ms = 0.0
        self.stdout = self.stderr = _NOTHING
        self.displays = []  # type: list
        self.display_bytes = 0
        self.displays_dropped = 0
        self.records = None  # type: object
        self.reason = ""  # why it is being stopped: timeout, interrupted
        self.rung = 0  # how far up the ladder of signals
        self.state = "kept"
        self.note = None  # type: object

    def add_display(self, payload):
        # type: (bytes) -> bool
        """Keep a display for the reply, within bounds."""
        if len(self.displays) >= MAX_DISPLAYS or self.display_bytes + len(payload) > MAX_DISPLAY_BYTES:
            self.displays_dropped += 1
            return False
        self.displays.append(payload)
        self.display_bytes += len(payload)
        return True


def parse(data, number, seen):
    # type: (bytes, int, float) -> Cell
    """The cell of a request; one that does not fit the protocol comes back with a `refusal`."""
    cell = Cell(number, seen)
    try:
        _fill(cell, data)
    except BadRequest as error:
        cell.refusal = str(error)
    return cell


def _fill(cell, data):
    try:
        request = loads(data)
    except (ValueError, RecursionError):
        raise BadRequest("the request is not JSON")
    if not isinstance(request, dict):
        raise BadRequest("the request is not a JSON object")
    get = request.get
    cell_id = get("id")
    if isinstance(cell_id, str) and _ID.match(cell_id):
        cell.id = cell_id
    if get("v") != VERSION:
        raise BadRequest("the request has protocol version %.20r, this side speaks %d" % (get("v"), VERSION))
    if not cell.id:
        raise BadRequest("the request's id is not 32 hex digits")
    limit = _checked(get("max_output", 1 << 20), _is_count, "max_output is not a count of bytes")
    cell.code = _checked(get("code"), _is_text, "the request has no code")
    timeout = _checked(get("timeout_ms"), _is_count_or_none, "timeout_ms is not a count of milliseconds")
    cell.timeout = None if timeout is None else timeout / 1000.0
    cell.echo = _checked(get("echo", "last"), ("last", "all").__contains__, "echo is neither 'last' nor 'all'")
    cell.cwd = _checked(get("cwd"), _is_text_or_none, "cwd is not a path")
    cell.env = _checked(get("env") or {}, _is_env, "env does not map names to texts")
    cell.reset = _checked(get("reset", False), (True, False).__contains__, "reset is not a boolean")
    cell.stdout = output.Capture(min(limit, MAX_OUTPUT))
    cell.stderr = output.Capture(min(limit, MAX_OUTPUT))


def _checked(value, fits, message):
    try:
        if fits(value):
            return value
    except TypeError:  # an unhashable value where a name was expected
        pass
    raise BadRequest(message)


def _is_text(value):
    return isinstance(value, str)


def _is_text_or_none(value):
    return value is None or isinstance(value, str)


def _is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_count_or_none(value):
    return value is None or _is_count(value)


def _is_env(value):
    if not isinstance(value, dict):
        return False
    return all(_fits_env(name) and name and "=" not in name and (text is None or _fits_env(text)) for name, text in value.items())


def _fits_env(text):
    return isinstance(text, str) and "\0" not in text
