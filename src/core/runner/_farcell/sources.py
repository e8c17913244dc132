"""The source text of cells, for tracebacks and for inspect."""

import _ast
import collections
import io
import linecache

from .guarded import BUILTINS as __builtins__

LIMIT = 64 << 20
LONG = 64 << 10          # from here on a source is split into lines only when somebody wants to see them
_OVERHEAD = 512          # of an entry, so that a million small cells are bounded, too
_cache = linecache.cache


class Sources(object):
    """Keeps the newest cells' sources, up to a total size, and shows them to linecache."""

    def __init__(self, limit=LIMIT):
        # type: (int) -> None
        self._limit = limit
        self._total = 0
        self._entries = collections.OrderedDict()

    def add(self, filename, source):
        # type: (str, str) -> None
        if len(source) < LONG:
            entry = (len(source), None, _split(source), filename)
        else:
            entry = _Unsplit((len(source), None, [], filename))
            entry.source = source
        if filename in self._entries:
            self._drop(filename)
        self._entries[filename] = entry
        self._total += len(source) + _OVERHEAD
        self._cache()[filename] = entry
        while self._total > self._limit and len(self._entries) > 1:
            self._drop(next(iter(self._entries)))

    def lines(self, filename):
        # type: (str) -> list
        """The lines of a cell as the parser counts them."""
        return self._entries[filename][2]

    def _cache(self):
        # A cell may have put another dict there.
        return getattr(linecache, 'cache', _cache)

    def _drop(self, filename):
        entry = self._entries.pop(filename, None)
        if entry is not None:
            self._total -= entry[0] + _OVERHEAD
            self._cache().pop(filename, None)

    def restore(self):
        """Puts back what linecache.clearcache() took away."""
        cache = self._cache()
        for filename, entry in self._entries.items():
            if filename not in cache:
                cache[filename] = entry

    def __contains__(self, filename):
        return filename in self._entries

    def file_of_class(self, cls):
        # type: (type) -> object
        """The cell that defines a class, or None: by its methods, else the newest one that has its name."""
        filename = self._by_methods(cls) or self._by_text(cls)
        if filename is not None:
            self.restore()
        return filename

    def _by_methods(self, cls):
        qualname = cls.__qualname__
        for name, value in list(vars(cls).items()):
            value = getattr(value, 'fget', None) or getattr(value, '__func__', value)
            code = getattr(value, '__code__', None)
            if code is not None and getattr(value, '__qualname__', None) == '%s.%s' % (qualname, name):
                if code.co_filename in self._entries:
                    return code.co_filename
        return None

    def _by_text(self, cls):
        qualname = cls.__qualname__
        line = vars(cls).get('__firstlineno__')      # 3.13
        for filename in reversed(list(self._entries)):
            found = self._lines_of_class(filename, qualname)
            if found and (line is None or line in found):
                return filename
        return None

    def _lines_of_class(self, filename, qualname):
        source = ''.join(self._entries[filename][2])
        if qualname.rpartition('.')[2] not in source:
            return ()
        try:
            tree = compile(source, filename, 'exec', _ast.PyCF_ONLY_AST, 1)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ()
        return set(_class_lines(tree, '', qualname))


class _Unsplit(tuple):
    """An entry of linecache's whose lines are made when they are asked for: what they are then is a plain list, which C code takes apart, too."""

    source = None  # type: object

    def __getitem__(self, index):
        if index != 0:               # the size is asked for by us, when the entry goes
            self._fill()
        return tuple.__getitem__(self, index)

    def __iter__(self):
        self._fill()
        return tuple.__iter__(self)

    def _fill(self):
        source = self.source
        if source is not None:
            tuple.__getitem__(self, 2)[:] = _split(source)       # by two threads at once: the same twice
            self.source = None


def _split(source):
    """Lines as the parser counts them, each with its end."""
    if '\n' not in source and '\r' not in source:
        return [source + '\n'] if source else []
    # Not splitlines(): the parser does not end a line at a form feed or U+2028.
    lines = io.StringIO(source, None).readlines()
    if not lines[-1].endswith('\n'):
        lines[-1] += '\n'    # as linecache does; traceback puts its carets by it
    return lines


def last_line(source):
    # type: (str) -> int
    """Where the last line begins, as the parser counts them; found without splitting the rest or copying any."""
    end = len(source)
    if source.endswith('\r\n'):
        end -= 2
    elif source.endswith(('\n', '\r')):
        end -= 1
    return max(source.rfind('\n', 0, end), source.rfind('\r', 0, end)) + 1


def _class_lines(node, prefix, qualname):
    """Where classes of this qualified name start, with their decorators."""
    for field in getattr(node, '_fields', ()):
        children = getattr(node, field)
        for child in children if isinstance(children, list) else (children,):
            if not isinstance(child, _ast.AST) or isinstance(child, _ast.expr):
                continue
            inner = prefix
            if isinstance(child, _ast.ClassDef):
                inner = prefix + child.name
                if inner == qualname:
                    yield min([child.lineno] + [each.lineno for each in child.decorator_list])
                inner += '.'
            elif isinstance(child, (_ast.FunctionDef, _ast.AsyncFunctionDef)):
                inner = prefix + child.name + '.<locals>.'
            for line in _class_lines(child, inner, qualname):
                yield line
