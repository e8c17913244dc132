"""A cell as the supervisor sees it: a request that was checked, and what is known of its run."""

from keyword import iskeyword

from . import output
from .strict import decode

MAX_OUTPUT = 64 << 20  # per stream; a request may wish for more, the supervisor's memory may not
MAX_TIMEOUT = 10 ** 12  # milliseconds; what is more than that cannot be meant
MAX_NAME = 128  # of a tool
MAX_DISPLAYS = 1000
MAX_DISPLAY_BYTES = 32 << 20
VERSION = 1
_HEX = "0123456789abcdef"


_NOTHING = output.Capture(0)  # of a cell that will not run


class BadRequest(ValueError):
    """A request that does not fit the protocol."""


class Cell(object):
    """One request on its way to exactly one reply."""

    # Defaults of the class: most cells never have most of these.
    id = ""
    code = ""
    size = 0  # of the request, in bytes
    timeout = None  # type: object
    echo = "last"
    cwd = None
    env = {}  # type: dict
    reset = False
    refusal = ""  # why it will not run
    started = 0.0
    queued_ms = 0.0
    stdout = stderr = _NOTHING
    displays = ()  # type: object
    display_bytes = 0
    displays_dropped = 0
    records = None  # type: object
    reason = ""  # why it is being stopped: timeout, interrupted
    rung = 0  # how far up the ladder of signals
    state = "kept"
    note = None  # type: object
    in_lane = False  # whether it came to the interpreter past the supervisor
    brief = False  # whether it was over when the supervisor came to know it
    limit = 1 << 20  # max_output
    tools = None  # type: object # what it may call, as the request has it
    token = b""  # what its calls have to know
    calls = 0  # those that had the token
    recorded = 0  # those that became records
    call_errors = ()  # type: object # of calls, for the reply

    def __init__(self, number, seen):
        # type: (int, float) -> None
        self.number = number
        self.seen = seen

    def add_display(self, payload):
        # type: (bytes) -> bool
        """Keep a display for the reply, within bounds."""
        if len(self.displays) >= MAX_DISPLAYS or self.display_bytes + len(payload) > MAX_DISPLAY_BYTES:
            self.displays_dropped += 1
            return False
        if not self.displays:
            self.displays = []
        self.displays.append(payload)
        self.display_bytes += len(payload)
        return True


def parse(data, number, seen, kind=Cell):
    # type: (bytes, int, float, type) -> Cell
    """The cell of a request; one that does not fit the protocol comes back with a `refusal`."""
    cell = kind(number, seen)
    try:
        _fill(cell, data)
    except BadRequest as error:
        cell.refusal = str(error)
    return cell


def _fill(cell, data):
    try:
        request = decode(data)
    except ValueError:
        raise BadRequest("the request is not JSON")
    if type(request) is not dict:
        raise BadRequest("the request is not a JSON object")
    get = request.get
    cell_id, version, limit, timeout = get("id"), get("v"), get("max_output", 1 << 20), get("timeout_ms")
    if type(cell_id) is str and len(cell_id) == 32 and not cell_id.strip(_HEX):
        cell.id = cell_id
    _check(version == VERSION and type(version) is int, "the request has another protocol version than %d" % VERSION)
    _check(cell.id, "the request's id is not 32 hex digits")
    _check(type(limit) is int and limit >= 0, "max_output is not a count of bytes")
    _check(timeout is None or type(timeout) is int and 0 <= timeout <= MAX_TIMEOUT, "timeout_ms is not a count of milliseconds")
    cell.code, cell.echo, cell.cwd, cell.env, cell.reset = get("code"), get("echo", "last"), get("cwd"), get("env") or {}, get("reset", False)
    _check(type(cell.code) is str, "the request has no code")
    _check(cell.echo == "last" or cell.echo == "all", "echo is neither 'last' nor 'all'")
    _check(cell.cwd is None or type(cell.cwd) is str, "cwd is not a path")
    _check(not cell.env or _is_env(cell.env), "env does not map names to texts")
    _check(type(cell.reset) is bool, "reset is not a boolean")
    if get("tools") is not None:
        _fill_tools(cell, get("tools"))
    cell.timeout = None if timeout is None else timeout / 1000.0
    limit = min(limit, MAX_OUTPUT)
    cell.stdout, cell.stderr = output.Capture(limit), output.Capture(limit)
    cell.size = len(data)


def _fill_tools(cell, tools):
    _check(type(tools) is dict, "tools is not an object")
    token, name, patience, listed = (tools.get(field) for field in ("token", "import", "patience_ms", "list"))
    _check(type(token) is str and len(token) == 32 and not token.strip(_HEX), "the token of the tools is not 32 hex digits")
    _check(_is_name(name), "tools.import is not a name that a module can have")
    _check(type(patience) is int and 0 <= patience <= MAX_TIMEOUT, "tools.patience_ms is not a count of milliseconds")
    _check(type(listed) is list and all(_is_tool(tool) for tool in listed), "tools.list is not a list of tools with name, doc and schema")
    names = [tool["name"] for tool in listed]
    _check(len(set(names)) == len(names), "two of the tools have the same name")
    cell.tools, cell.token = tools, token.encode("ascii")


def _is_tool(tool):
    return (type(tool) is dict and _is_name(tool.get("name")) and tool["name"] != "ToolError" and type(tool.get("doc", "")) is str
            and type(tool.get("schema", {})) is dict)


def _is_name(text):
    return type(text) is str and text.isidentifier() and not iskeyword(text) and not text.startswith("__") and len(text) <= MAX_NAME


def _check(fits, message):
    if not fits:
        raise BadRequest(message)


def _is_env(value):
    return type(value) is dict and all(
        _fits_env(name) and name and "=" not in name and (text is None or _fits_env(text)) for name, text in value.items())


def _fits_env(text):
    return isinstance(text, str) and "\0" not in text
