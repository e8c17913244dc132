"""JSON for processes that live for milliseconds: importing `json` costs more than starting Python, its C core costs nothing.

The C scanner and encoder are the very ones that `json` uses; where they are missing or changed, `json` itself does the work.
"""

import sys

try:
    import _json
except ImportError:
    _json = None


class _Context:
    """What the C scanner wants to know: the defaults of json.JSONDecoder."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = {"-Infinity": float("-inf"), "Infinity": float("inf"), "NaN": float("nan")}.__getitem__
    memo = {}  # type: dict


def _unknown(value):
    raise TypeError("no JSON for %s" % type(value).__name__)


def _make():
    """The two C functions, or a pair of None where this Python has them in another shape."""
    try:
        scan = _json.make_scanner(_Context())
        # markers, default, encoder, indent, key separator, item separator, sort_keys, skipkeys, allow_nan
        encode = _json.make_encoder(None, _unknown, _json.encode_basestring_ascii, None, ":", ",", False, False, True)
        if scan('{"a":[1,null]}', 0) == ({"a": [1, None]}, 14) and "".join(encode({"a": [1, "\u20ac"]}, 0)) == '{"a":[1,"\\u20ac"]}':
            return scan, encode
    except Exception:  # pylint: disable=broad-except
        pass
    return None, None


_scan, _encode = _make()


def loads(data):
    """Parse one JSON document from bytes (UTF-8) or text; ValueError where it is none."""
    text = data if isinstance(data, str) else bytes(data).decode("utf-8")
    try:
        if _scan is None or "json" in sys.modules:
            import json
            return json.loads(text)
        text = text.strip(" \t\r\n")
        value, end = _scan(text, 0)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply")
    except (StopIteration, SystemError):
        # SystemError: it wanted to raise the error class of a module that is not imported.
        raise ValueError("not JSON")
    if end != len(text):
        raise ValueError("more than one JSON document")
    return value


def dumps(value):
    """Compact JSON as ASCII text: lone surrogates survive it, and no byte is ever invalid UTF-8."""
    if _encode is None or not isinstance(value, (dict, list, tuple)):
        import json
        return json.dumps(value, separators=(",", ":"))
    return "".join(_encode(value, 0))
