"""JSON for the interpreter's frames: out of reach of a cell that patches `json`, and always valid for a strict reader."""

import codecs

from .fastjson import _Context
from .guarded import BUILTINS as __builtins__

try:
    import _json
except ImportError:
    _json = None

_ESCAPE = 'farcell-escape'


def _escape_surrogates(error):
    # Surrogates stand only inside of JSON strings, where one backslash is written as two.
    return ''.join('\\\\u%04x' % ord(char) for char in error.object[error.start:error.end]), error.end


codecs.register_error(_ESCAPE, _escape_surrogates)


def _refuse(value):
    raise TypeError('%s is not JSON' % type(value).__name__)


def _make():
    """Decoder and encoder; the C ones hold all that they need, json's classes look their methods up at every call."""
    try:
        scan = _json.make_scanner(_Context())
        # markers, default, encoder, indent, key separator, item separator, sort_keys, skipkeys, allow_nan
        write = _json.make_encoder(None, _refuse, _json.encode_basestring, None, ':', ',', False, False, False)
        join = ''.join
        if scan('{"a":[1]}', 0)[0] == {'a': [1]} and join(write({'a': [1, '\u20ac']}, 0)) == '{"a":[1,"\u20ac"]}':
            return scan, lambda value: join(write(value, 0))
    except Exception:            # a Python that has them in another shape, or not at all
        pass
    import json
    return json.JSONDecoder().scan_once, json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


_scan, _encode_text = _make()


def encode(value):
    # type: (object) -> bytes
    """JSON as UTF-8; lone surrogates become visible escapes; NaN and foreign objects raise ValueError or TypeError."""
    text = _encode_text(value)
    try:
        return text.encode('utf-8')
    except UnicodeEncodeError:
        return text.encode('utf-8', _ESCAPE)


def encode_strictly(value):
    # type: (object) -> bytes
    """The same where nothing may be changed on the way: lone surrogates raise UnicodeEncodeError."""
    return _encode_text(value).encode('utf-8')


def decode(payload):
    # type: (object) -> object
    """The value of a JSON text, in any buffer, that our own side wrote or has checked."""
    try:
        return _scan(str(payload, 'utf-8'), 0)[0]
    except StopIteration:
        raise ValueError('not JSON')
