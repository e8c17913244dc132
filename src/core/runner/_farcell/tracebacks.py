"""What is told of an exception: name, message and a traceback without any frame of ours."""

import os
import traceback

from .guarded import BUILTINS as __builtins__

MESSAGE_LIMIT = 64 << 10
TRACEBACK_LIMIT = 1 << 20
OURS = (lambda: None).__code__.co_filename.rpartition('tracebacks')[0]
_ASYNCIO = os.sep + 'asyncio' + os.sep
_CELL = '<cell '
_TracebackException = traceback.TracebackException


def describe(error):
    # type: (BaseException) -> dict
    """name, message and traceback of an exception; never fails because of what the exception does."""
    described = {'name': type_name(type(error)), 'message': message(error)}
    try:
        text = clip(_format(error), TRACEBACK_LIMIT)
    except Exception as second:  # a chain too deep for the standard library, an exception that misbehaves, no memory
        text = '%s: %s\n[no traceback: %s]\n' % (described['name'], described['message'], type(second).__name__)
    described['traceback'] = text
    return described


def type_name(cls):
    # type: (type) -> str
    """As a traceback shows it."""
    try:
        name, module = cls.__qualname__, cls.__module__
        if module in ('__main__', 'builtins') or not isinstance(module, str):
            return str(name)
        return module + '.' + name
    except Exception:
        return 'Exception'


def message(error):
    # type: (BaseException) -> str
    try:
        return clip(str(error), MESSAGE_LIMIT)
    except Exception as second:
        return '<str() of the exception failed: %s>' % type(second).__name__


def clip(text, limit):
    # type: (str, int) -> str
    """Head and tail of a text that is too long."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return '%s\n[\u2026 %d characters omitted \u2026]\n%s' % (text[:half], len(text) - 2 * half, text[len(text) - half:])


def _format(error):
    told = _TracebackException(type(error), error, error.__traceback__)
    _clean(told, set())
    return ''.join(told.format())


def _clean(told, seen):
    """Takes our frames out of an exception, of those that it came from, and of the members of a group."""
    todo = [told]
    while todo:
        told = todo.pop()
        if told is None or id(told) in seen:
            continue
        seen.add(id(told))
        stack = told.stack
        if stack:
            kept = [frame for frame in stack if not frame.filename.startswith(OURS)]
            # A cell that awaits is run by asyncio: its frames above the cell's first are part of the machinery.
            first = next((at for at, frame in enumerate(kept) if frame.filename.startswith(_CELL)), 0)
            kept = [frame for at, frame in enumerate(kept) if at >= first or _ASYNCIO not in frame.filename]
            stack[:] = kept
        if not stack:
            _without_heading(told)
        todo.append(told.__cause__)
        todo.append(told.__context__)
        todo.extend(getattr(told, 'exceptions', None) or ())


def _without_heading(told):
    """No "Traceback (most recent call last)" over nothing: so the prompt shows a syntax error."""
    if hasattr(told, 'exc_traceback'):
        told.exc_traceback = None            # before 3.10
    else:
        told.stack = None
