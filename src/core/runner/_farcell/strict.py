"""JSON between processes that do not trust each other: what is read is exactly one valid document, what is written any reader takes."""

from . import wire

try:
    import _json  # the core of json alone: the supervisor is to stay small, and json brings half a megabyte along
except ImportError:
    _json = None  # type: ignore

encode = wire.encode


def _no_constant(name):
    raise ValueError("%s is not JSON" % name)


class _Context(object):
    """What the C scanner wants to know: the defaults of json.JSONDecoder, without NaN and its kin."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_no_constant)
    memo = {}  # type: dict


def _make():
    try:
        scan = _json.make_scanner(_Context())
        if scan('{"a":[1,null]}', 0) == ({"a": [1, None]}, 14) and _json.encode_basestring("a\"") == '"a\\""':
            return scan, _json.encode_basestring, _json.encode_basestring_ascii
    except Exception:  # a Python that has them in another shape, or not at all
        pass
    import json
    from json import encoder
    return json.JSONDecoder(parse_constant=_no_constant).scan_once, encoder.encode_basestring, encoder.encode_basestring_ascii


# `quote` leaves text as it is, `quote_ascii` escapes all that is not ASCII, lone surrogates too.
_scan, quote, quote_ascii = _make()

_SMALL = 4096
_PLAIN = bytes(code for code in range(256) if code >= 32 and code not in b'"\\')
_SHORT = {8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}
_KINDS_MAX = 6


def quote_utf8(data):
    # type: (bytes) -> list
    """What `quote` gives for the text of these bytes, as pieces of UTF-8; bytes that are none are shown as `\\xNN`."""
    text = None
    if not _is_ascii(data):
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            text = data.decode("utf-8", "backslashreplace")
            data = text.encode("utf-8")
    # The C encoder looks at each character by itself. Where little is to be escaped, finding that is quicker.
    if len(data) >= _SMALL and _is_sparse(data[:_SMALL]):
        special = data.translate(None, _PLAIN)
        kinds = set(special)
        if len(kinds) <= _KINDS_MAX and _is_sparse(data, special):
            for code in sorted(kinds, reverse=True):  # the backslash first, as all others bring more of them
                data = data.replace(bytes((code,)), _SHORT.get(code) or b"\\u%04x" % code)
            return [b'"', data, b'"']
    return [quote(data.decode("ascii") if text is None else text).encode("utf-8")]


def _looked_through(data):
    try:
        data.decode("ascii")
        return True
    except UnicodeDecodeError:
        return False


_is_ascii = getattr(bytes, "isascii", _looked_through)  # 3.7


def _is_sparse(data, special=None):
    return len(data.translate(None, _PLAIN) if special is None else special) * 32 <= len(data)


def decode(data):
    # type: (bytes) -> object
    """The value of one JSON document in UTF-8; ValueError for anything else, whatever it is."""
    try:
        text = data.decode("utf-8")
        value, end = _scan(text, 0)
    except StopIteration:
        return _decode_padded(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply")
    except SystemError:  # the C scanner's way to say that something is wrong where json.decoder is not imported
        raise ValueError("not JSON")
    if end != len(text) and text[end:].strip(" \t\r\n"):
        raise ValueError("more than one JSON document")
    return value


def _decode_padded(text):
    """White space before the document is allowed, and rare."""
    rest = text.lstrip(" \t\r\n")
    if len(rest) == len(text) or not rest:
        raise ValueError("not JSON")
    return decode(rest.encode("utf-8"))
