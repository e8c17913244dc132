"""Functions for tools, made from their JSON schemas: signature, documentation, and the checks of arguments before anything travels."""

import functools
import keyword
import operator
import sys

from . import tracebacks, wire
from .guarded import BUILTINS as __builtins__

_TYPES = {'string': str, 'integer': int, 'number': float, 'boolean': bool, 'array': list, 'object': dict, 'null': type(None)}
_FILE = tracebacks.OURS + 'tool'         # no traceback shows frames of this
_NAMED_MAX = 200                         # parameters; Python 3.6 takes 255
_UNION = sys.version_info >= (3, 10)
_PARAMETERS = ('others', 'arguments')


class _Omitted(object):
    """The default of a parameter whose argument does not travel where there is none."""

    def __repr__(self):
        return '...'


_OMITTED = _Omitted()


class Parameter(object):
    """One property of the schema."""

    __slots__ = ('name', 'types', 'required', 'default', 'text')

    def __init__(self, name, schema, required):
        # type: (str, object, bool) -> None
        schema = schema if isinstance(schema, dict) else {}
        self.name = name
        self.types = _types_of(schema)
        self.required = required
        self.default = _OMITTED
        if 'default' in schema and not required and self.fits(schema['default']):
            self.default = schema['default']
        text = schema.get('description')
        self.text = text if isinstance(text, str) else ''

    def fits(self, value):
        # type: (object) -> bool
        types = self.types
        return not types or any(_is(value, each) for each in types)

    def words(self):
        # type: () -> str
        """The types, as a message names them."""
        return ' or '.join('None' if each == 'null' else _TYPES[each].__name__ for each in self.types)

    def annotation(self):
        # type: () -> object
        """The types, as a signature shows them; None for anything."""
        types = [_TYPES[each] for each in self.types]
        if len(types) < 2:
            return types[0] if types else None
        if _UNION:
            return functools.reduce(operator.or_, types)
        return ' | '.join('None' if each is type(None) else each.__name__ for each in types)


def _types_of(schema):
    """The JSON types that a value may have; none for anything, or where the schema says it in another way."""
    told = schema.get('type')
    if told is None:
        for word in ('anyOf', 'oneOf'):
            if isinstance(schema.get(word), list):
                parts = [_types_of(each) if isinstance(each, dict) else () for each in schema[word]]
                return tuple(dict.fromkeys(each for part in parts for each in part)) if all(parts) else ()
    types = told if isinstance(told, list) else [told]
    return tuple(types) if types and all(isinstance(each, str) and each in _TYPES for each in types) else ()


def _is(value, kind):
    if kind == 'number':
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == 'integer':
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == 'array':
        return isinstance(value, (list, tuple))
    return isinstance(value, _TYPES[kind])


class Form(object):
    """What arguments a tool takes, and how they become JSON."""

    def __init__(self, name, schema):
        # type: (str, dict) -> None
        self.name = name
        properties = schema.get('properties')
        properties = properties if isinstance(properties, dict) else {}
        required = schema.get('required')
        required = [each for each in required if isinstance(each, str)] if isinstance(required, list) else []
        parameters = [Parameter(each, properties[each], each in required) for each in properties]
        parameters += [Parameter(each, {}, True) for each in dict.fromkeys(required) if each not in properties]
        named = [each for each in parameters if _is_parameter(each.name)][:_NAMED_MAX]
        self.named = [each for each in named if each.required] + [each for each in named if not each.required]
        self.others = {each.name: each for each in parameters if each not in named}
        more = schema.get('additionalProperties', not parameters)
        self.open = more is not False        # whether it takes what its schema does not name
        self._more = more if isinstance(more, dict) else {}

    def bind(self, values, others):
        # type: (tuple, dict) -> dict
        """The arguments by name, checked; `values` are those of `named`."""
        arguments = {}
        for parameter, value in zip(self.named, values):
            if value is not _OMITTED:
                self._check(parameter, value)
                arguments[parameter.name] = value
        for name, value in others.items():
            parameter = self.others.get(name)
            if parameter is None:
                if not self.open:
                    raise TypeError('%s() got an unexpected keyword argument %r' % (self.name, name))
                parameter = Parameter(name, self._more, False)
            self._check(parameter, value)
            arguments[name] = value
        missing = [name for name, parameter in self.others.items() if parameter.required and name not in arguments]
        if missing:
            raise TypeError('%s() missing required argument %r: pass it as **{%r: ...}' % (self.name, missing[0], missing[0]))
        for name, parameter in self.others.items():
            if name not in arguments and parameter.default is not _OMITTED:
                arguments[name] = parameter.default
        return arguments

    def _check(self, parameter, value):
        if not parameter.fits(value):
            raise TypeError('%s() argument %r must be %s, not %s' % (
                self.name, parameter.name, parameter.words(), 'None' if value is None else tracebacks.type_name(type(value))))

    def encode(self, arguments):
        # type: (dict) -> bytes
        """As JSON; what JSON cannot say is an error that names the argument."""
        try:
            return wire.encode_strictly(arguments)
        except (TypeError, ValueError, RecursionError):
            for name, value in arguments.items():
                self._explain(name, value)
            raise

    def _explain(self, name, value):
        where = '%s() argument %r ' % (self.name, name)
        try:
            wire.encode_strictly({name: value})
        except UnicodeEncodeError:
            raise ValueError(where + 'has a lone surrogate, which JSON cannot carry') from None
        except RecursionError:
            raise ValueError(where + 'contains itself, or is nested too deeply') from None
        except TypeError as error:
            raise TypeError(where + 'cannot be JSON: %s' % error) from None
        except ValueError as error:
            raise ValueError(where + 'cannot be JSON: %s' % error) from None


def _is_parameter(name):
    if not name.isidentifier() or keyword.iskeyword(name) or name == '__debug__':
        return False
    try:
        name.encode('ascii')
        return True
    except UnicodeEncodeError:
        import unicodedata
        return unicodedata.normalize('NFKC', name) == name       # as Python reads it


def make(form, module, doc, call, call_later):
    # type: (Form, str, str, object, object) -> object
    """The function, with its twin for tasks as `aio`. Both hand (values, others) on."""
    function = _function(form, module, doc, call, 'def', 'return')
    function.aio = _function(form, module, doc, call_later, 'async def', 'return await')
    function.aio.__qualname__ = form.name + '.aio'
    return function


def _function(form, module, doc, call, define, give):
    names = [parameter.name for parameter in form.named]
    taken = set(names).union(form.others)
    rest = _unused(_PARAMETERS[not names], taken) if form.others or form.open else None
    target = _unused('call', taken.union((form.name, rest)))
    listed = [name if parameter.required else name + '=None' for name, parameter in zip(names, form.named)]
    source = '%s %s(%s):\n %s %s((%s), %s)\n' % (
        define, form.name, ', '.join(listed + (['**' + rest] if rest else [])), give, target, ''.join(name + ', ' for name in names), rest or '{}')
    space = {'__name__': module, target: call}
    exec(compile(source, _FILE, 'exec', 0, True), space)
    function = space.pop(form.name)
    function.__defaults__ = tuple(parameter.default for parameter in form.named if not parameter.required)
    annotations = [(parameter.name, parameter.annotation()) for parameter in form.named]
    function.__annotations__ = {name: annotation for name, annotation in annotations if annotation is not None}
    function.__doc__ = _document(form, doc)
    return function


def _unused(name, taken):
    while name in taken:
        name = '_' + name
    return name


def _document(form, doc):
    lines = []
    for parameter in form.named + list(form.others.values()):
        notes = [parameter.words()] if parameter.types else []
        if parameter.name in form.others:
            notes.append('as **{%r: ...}' % parameter.name)
        if not parameter.required:
            notes.append('optional')
        if notes and (parameter.text or parameter.name in form.others):
            lines.append('    %s (%s)%s' % (parameter.name, ', '.join(notes), ': ' + parameter.text if parameter.text else ''))
        elif parameter.text:
            lines.append('    %s: %s' % (parameter.name, parameter.text))
    parts = [doc.strip()] if doc.strip() else []
    return '\n\n'.join(parts + (['Arguments:\n' + '\n'.join(lines)] if lines else [])) or None
