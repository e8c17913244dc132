"""Values as mime bundles: what IPython's rich display protocol gives, checked, and bounded in size."""

import binascii

from . import figures, tracebacks, wire
from .guarded import BUILTINS as __builtins__

TEXT_LIMIT = 1 << 20
BUNDLE_LIMIT = 16 << 20
COUNT_LIMIT = 256

_METHODS = (
    ('_repr_html_', 'text/html'),
    ('_repr_markdown_', 'text/markdown'),
    ('_repr_svg_', 'image/svg+xml'),
    ('_repr_png_', 'image/png'),
    ('_repr_jpeg_', 'image/jpeg'),
    ('_repr_latex_', 'text/latex'),
    ('_repr_json_', 'application/json'),
)
_CANARY = '_ipython_canary_method_should_not_exist_'     # the name that libraries know from IPython
_DEPTH = 64                # levels of nesting in a JSON form
_LARGEST = 1 << 63         # the bound of its whole numbers
_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range))
_to_base64 = binascii.b2a_base64


def result(value):
    # type: (object) -> dict
    """The bundle of a cell's value; what repr() raises is the cell's own exception."""
    text = repr(value)
    bundle = {} if type(value) in _PLAIN else _rich(value)
    bundle.setdefault('text/plain', text)
    return _bounded(bundle)


def shown(value):
    # type: (object) -> dict
    """The bundle of an object given to display()."""
    bundle = {} if type(value) in _PLAIN else _rich(value)
    if 'text/plain' not in bundle:
        bundle['text/plain'] = _safe_repr(value)
    return _bounded(bundle)


def raw(data):
    # type: (dict) -> dict
    """A bundle that the cell made itself."""
    bundle = {}
    _merge(bundle, data)
    bundle.setdefault('text/plain', '')
    return _bounded(bundle)


def _safe_repr(value):
    try:
        return repr(value)
    except Exception as error:
        return '<%s: repr() failed: %s: %s>' % (
            tracebacks.type_name(type(value)), tracebacks.type_name(type(error)), tracebacks.message(error))


def _rich(value):
    """All forms that the object offers; one that fails or gives nonsense is left out."""
    bundle = {}
    if _answers_everything(value):
        return bundle
    method = _method(value, '_repr_mimebundle_')
    if method is not None:
        data = _call_mimebundle(method)
        if isinstance(data, tuple) and data:
            data = data[0]
        _merge(bundle, data)
    for name, mime in _METHODS:
        if mime in bundle:
            continue
        method = _method(value, name)
        if method is not None:
            try:
                data = method()
            except Exception:
                continue
            if isinstance(data, tuple) and len(data) == 2 and mime != 'application/json':
                data = data[0]       # with metadata
            _merge(bundle, {mime: data})
    if 'image/png' not in bundle:
        bundle.update(figures.form(value))
    return bundle


def _answers_everything(value):
    """Mocks and proxies that have any attribute one asks for: their _repr_*_ mean nothing."""
    try:
        return getattr(value, _CANARY, None) is not None
    except Exception:
        return True


def _method(value, name):
    try:
        method = getattr(value, name, None)
    except Exception:
        return None
    if isinstance(value, type) and getattr(method, '__self__', None) is not value:
        return None              # a method for instances, looked up on their class
    return method if callable(method) else None


def _call_mimebundle(method):
    for arguments in ({'include': None, 'exclude': None}, {}):
        try:
            return method(**arguments)
        except TypeError:
            continue
        except Exception:
            return None
    return None


def _merge(bundle, data):
    """Takes over what can be sent: text, bytes as base64, JSON for types that are JSON."""
    try:
        items = list(data.items())
    except Exception:
        return
    for mime, content in items:
        if isinstance(mime, str) and '/' in mime:
            content = _content(mime, content)
            if content is not None:
                bundle[mime] = content


def _content(mime, content):
    if isinstance(content, str):
        return str(content)
    if isinstance(content, (bytes, bytearray, memoryview)):
        return _to_base64(content, newline=False).decode('ascii')
    if content is None or not (mime == 'application/json' or mime.endswith('+json')):
        return None
    try:
        content = wire.decode(wire.encode(content))  # a copy: the cell may go on changing its own
    except Exception:            # NaN, an object, a circle
        return None
    return content if _travels(content, _DEPTH) else None


def _travels(content, depth):
    """Whether every reader of JSON takes it: not nested too deep, and no number beyond 64 bits."""
    if isinstance(content, int):
        return -_LARGEST <= content < _LARGEST
    if isinstance(content, dict):
        content = content.values()
    elif not isinstance(content, list):
        return True
    return depth > 0 and all([_travels(part, depth - 1) for part in content])


def _bounded(bundle):
    text = bundle['text/plain']
    if not isinstance(text, str):
        text = bundle['text/plain'] = str(text)
    if len(text) > TEXT_LIMIT:
        bundle['text/plain'] = tracebacks.clip(text, TEXT_LIMIT)
    if len(bundle) > 1:
        _leave_out(bundle)
    return bundle


def _leave_out(bundle):
    """Drops the largest forms until the rest may be sent; the text tells which."""
    sizes = {mime: len(wire.encode(content)) for mime, content in bundle.items()}
    while len(bundle) > 1 and sum(sizes.values()) > BUNDLE_LIMIT:
        mime = max((mime for mime in bundle if mime != 'text/plain'), key=sizes.get)
        bundle['text/plain'] += '\n[%s of %d bytes left out: a display holds at most %d]' % (
            mime, sizes.pop(mime), BUNDLE_LIMIT)
        del bundle[mime]


class Displays(object):
    """Sends the displays of a cell, as many as it may have."""

    def __init__(self, publish):
        self._publish = publish
        self._count = 0

    def begin(self):
        self._count = 0

    def display(self, *objects, **options):
        """Show objects in their rich forms; with raw=True each is a dict from mime types to data."""
        make = raw if options.get('raw') else shown
        for each in objects:
            if self._room():
                self._publish(make(each))

    def publish(self, bundle):
        # type: (dict) -> None
        if self._room():
            self._publish(bundle)

    def _room(self):
        self._count += 1
        if self._count == COUNT_LIMIT:
            self._publish({'text/plain': '[a cell has at most %d displays; the rest is left out]' % COUNT_LIMIT})
        return self._count < COUNT_LIMIT
