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
