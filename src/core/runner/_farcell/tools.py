"""The tools of a cell: the module that it imports them from, and what becomes of a call."""

import sys
import types

from . import calling, owners, tool_stubs, wire
from .guarded import BUILTINS as __builtins__

USUAL = 'farcell_tools'
_NOBODY = 'what an earlier cell has left may not call tools'


class Tools(object):
    """What lasts from cell to cell. A cell without tools has nothing to do with it, unless an earlier one had some."""

    def __init__(self):
        self._line = None  # type: object
        self._owners = owners.Owners()
        self._begun = False
        self._module = None  # type: object
        self._key = None  # type: object # what the module was made from
        self._offers = {}
        self._errors = {}        # by the name of the module
        self._names = set()      # of modules that cells had
        sys.meta_path.append(_Missing(self._names))

    def attach(self, fd):
        # type: (int) -> None
        """In the process where cells are to run."""
        self._line = calling.Line(fd)

    def begin(self, told, enter):
        # type: (object, object) -> object
        """A cell starts, with these tools or without any; an exception says why it cannot have them."""
        if told is None and not self._begun:
            return
        self._begun = True
        if told is None:
            self._take_away()
            self._owners.begin(owners.Owner('', {}), enter)
            return
        if self._line is None:
            raise ImportError('this interpreter has no way to the host')
        self._provide(told['import'], told['list'])
        self._owners.begin(owners.Owner(told['token'], self._offers), enter)

    def _provide(self, name, listed):
        """Have the module, the same as before for the same tools."""
        key = name, wire.encode(listed)
        if not isinstance(sys.modules.get(name), (_Module, type(None))) or key != self._key and _is_real(name):
            raise ImportError('tools cannot be imported from %r: there is a module of that name' % name)
        if key != self._key:
            self._take_away()
            self._module, self._offers = self._make(name, listed)
            self._key = key
            self._names.add(name)
        sys.modules[name] = self._module

    def _take_away(self):
        module = self._module
        if module is not None and sys.modules.get(module.__name__) is module:
            del sys.modules[module.__name__]

    def _make(self, name, listed):
        module, offers = _Module(name), {}
        module.ToolError = self._error_class(name)
        for told in listed:
            tool = _Tool(self, module.ToolError, told)
            offers[tool.name] = tool.key
            setattr(module, tool.name, tool_stubs.make(tool.form, name, told.get('doc') or '', tool.call, tool.call_later))
        module.__all__ = list(offers) + ['ToolError']
        module.__doc__ = 'Functions of the host that this cell may call: %s.' % (', '.join(offers) or 'none')
        return module, offers

    def _error_class(self, name):
        """One for all modules of this name, so that code of an earlier cell still catches it."""
        if name not in self._errors:
            self._errors[name] = type('ToolError', (_ToolError,), {'__module__': name, '__doc__': _ToolError.__doc__, '__qualname__': 'ToolError'})
        return self._errors[name]

    def token_for(self, tool):
        # type: (_Tool) -> str
        """What the call is to carry; Refused where it is known already that it would be in vain."""
        owner = self._owners.whose()
        if owner is None:
            raise calling.Refused('refused', _NOBODY)
        if owner is self._owners.current:
            if not owner.token:
                raise calling.Refused('refused', 'this cell has no tools')
            if tool.name not in owner.offers:
                raise calling.Refused('unknown', 'this cell has no tool of that name (any more)')
            if owner.offers[tool.name] != tool.key:
                raise calling.Refused('unknown', 'the tool takes other arguments now: import it anew')
        return owner.token

    @property
    def line(self):
        return self._line


class _ToolError(Exception):
    """A call of a tool came to nothing. `kind` is `tool` where the tool itself failed."""

    def __init__(self, tool, kind, message):
        Exception.__init__(self, tool, kind, message)
        self.tool = tool
        self.kind = kind
        self.message = message

    def __str__(self):
        return '%s: %s' % (self.tool, self.message)


class _Module(types.ModuleType):
    """It tells what there is where something is not."""

    def __getattr__(self, name):
        raise AttributeError('there is no tool %r; %s' % (name, 'this cell has: ' + ', '.join(self.__dict__.get('__all__', ()))))


class _Tool(object):
    """One tool, as its function holds it."""

    def __init__(self, tools, error, told):
        # type: (Tools, type, dict) -> None
        schema = told.get('schema') or {}
        self.name = told['name']
        self.key = wire.encode(schema)
        self.form = tool_stubs.Form(self.name, schema)
        self._tools = tools
        self._error = error

    def call(self, values, others):
        # type: (tuple, dict) -> object
        data = self.form.encode(self.form.bind(values, others))
        try:
            answer = self._tools.line.call(self._tools.token_for(self), self.name, data)
        except calling.Refused as refused:
            raise self._error(self.name, *refused.args) from None
        return self._value(answer)

    async def call_later(self, values, others):
        data = self.form.encode(self.form.bind(values, others))
        import asyncio
        loop = asyncio.get_event_loop()
        if not loop.is_running():
            raise RuntimeError('%s.aio() needs a running loop of asyncio' % self.name)
        try:
            answer = await self._tools.line.call_later(loop, self._tools.token_for(self), self.name, data)
        except calling.Refused as refused:
            raise self._error(self.name, *refused.args) from None
        return self._value(answer)

    def _value(self, answer):
        """What the tool has given, or its error raised."""
        try:
            told = wire.decode(answer)
            if told['ok'] is True:
                return told['value']
            kind, message = str(told['error']['kind']), str(told['error']['message'])
        except (ValueError, TypeError, KeyError, RecursionError):
            kind, message = 'tool', 'its answer is none that can be read'
        raise self._error(self.name, kind, message)


def _is_real(name):
    """Whether importing this would find something."""
    for finder in list(sys.meta_path):
        find = getattr(finder, 'find_spec', None)
        if isinstance(finder, _Missing) or find is None:
            continue
        try:
            if find(name, None) is not None:
                return True
        except Exception:            # a finder of the user's
            continue
    return False


class _Missing(object):
    """The last of all finders: says why there are no tools to import."""

    def __init__(self, names):
        # type: (set) -> None
        self._names = names

    def find_spec(self, name, path=None, target=None):
        if name == USUAL or name in self._names:
            raise ModuleNotFoundError('this cell has no tools, so there is no module %r' % name, name=name)
        return None
