"""Runs one cell: parses it, evaluates it in __main__, and says how it ended."""

import _ast
import builtins
import os
import re
import sys
import tokenize
import types

from . import display, osdep, tracebacks
from .sources import last_line
from .guarded import BUILTINS as __builtins__

_AWAIT = getattr(_ast, 'PyCF_ALLOW_TOP_LEVEL_AWAIT', 0)          # 3.8
_ONLY_AST = _ast.PyCF_ONLY_AST
_COROUTINE = 0x80
_FUNCTIONS = (type(lambda: None), types.MethodType)      # what gettext.install() makes of `_`
_compile = compile
_eval = eval
_getpid = os.getpid
_gettrace, _settrace = sys.gettrace, sys.settrace
_getlimit, _setlimit = sys.getrecursionlimit, sys.setrecursionlimit
_GLANCE = 1000           # characters of a last line, of which most begin with what they are
_DEPTH = 200             # of the stack, which our own work between two cells needs
_exit = os._exit
# A last line that can be nothing but an assignment (or an error): a name, perhaps an operator, and an equals sign.
_assigns = re.compile(r'[A-Za-z_][A-Za-z0-9_.]*[ \t]*(?:[-+*/%&|^@]|\*\*|//|<<|>>)?=[^=;]').match
# A line that cannot be an expression, by its first word; `=` is looked for beside.
_is_statement = re.compile(
    r'[ \t\f@]|(?:import|from|def|class|for|while|if|with|try|del|return|raise|assert|global|nonlocal|pass|break|continue|async|yield)\b').match
_spans_lines = re.compile(r'[\'"()\[\]{}\\]').search


class Executor(object):
    """Keeps what lasts from cell to cell: the namespace, the __future__ flags, the last value."""

    def __init__(self, gate, main, sources, awaiting):
        self._gate = gate
        self._main = main
        self._namespace = main.__dict__
        self._sources = sources
        self._awaiting = awaiting
        self._flags = _AWAIT
        self._future = 0
        self._last = None
        self._context = None
        self._trace = None
        sys.displayhook = self.displayhook

    def run(self, number, code, echo):
        # type: (int, str, str) -> dict
        """The fields of the reply that the interpreter knows."""
        sys.modules['__main__'] = self._main
        try:
            result = self._gate.run(self._perform, '<cell %d>' % number, code, echo)
            failure = None
        except BaseException as error:       # whatever it is, it is the cell's
            result = None
            failure = error
        if _getpid() != self._gate.pid:
            self._leave(failure)
        if _getlimit() < _DEPTH:
            _setlimit(_DEPTH)
        try:
            return self._outcome(result, failure)
        finally:
            failure = None                   # its traceback holds this frame

    def in_context(self, function, *args):
        """Calls it in the context that cells share, once there is one."""
        if self._context is not None:
            self._context.run(function, *args)

    def _outcome(self, result, failure):
        if failure is None:
            return {'status': 'ok', 'result': result, 'error': None, 'exit_code': 0}
        try:
            told = self._gate.run(self._tell, failure)
        except BaseException:                # interrupted while it was written down
            told = {'name': tracebacks.type_name(type(failure)), 'message': '', 'traceback': ''}
        status, kind, code = 'error', 'exception', 1
        if isinstance(failure, SystemExit):
            status, kind, code = 'exit', 'exit', told.pop('code', 1)
        elif isinstance(failure, KeyboardInterrupt):
            status, kind, code = 'interrupted', 'signal', None
        error = {'kind': kind, 'hint': self._hint(failure, told)}
        error.update(told)
        return {'status': status, 'result': None, 'error': error, 'exit_code': code}

    def _tell(self, failure):
        self._sources.restore()
        told = tracebacks.describe(failure)
        if isinstance(failure, SystemExit):
            told['code'] = _exit_code(failure)
        return told

    def _hint(self, failure, told):
        text = told['message']
        if isinstance(failure, SyntaxError) and not _AWAIT and "'await' outside" in text:
            return 'await outside of a function needs Python 3.8 or later'
        if isinstance(failure, RuntimeError) and 'no running event loop' in text:
            return 'a cell runs in the event loop only if it awaits something at its top level'
        try:
            return osdep.limit_hint(failure)
        except Exception:                    # an exception that misbehaves, or still no memory
            return None

    def _leave(self, failure):
        """A process that the cell forked came to the end of the cell: it must not answer in the cell's name."""
        code = 0
        try:
            if isinstance(failure, SystemExit):
                code = _exit_code(failure)
            elif failure is not None:
                code = 1
                sys.stderr.write(tracebacks.describe(failure)['traceback'])
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            _exit(code & 0xff)

    # -- the code --

    def _perform(self, filename, source, echo):
        with self._gate.handlers:
            try:
                if self._trace is not None:
                    _settrace(self._trace)
                return self._run_source(filename, source, echo)
            finally:
                # The cell's debugger or coverage has no business in what follows.
                self._trace = _gettrace()
                if self._trace is not None:
                    _settrace(None)

    def _run_source(self, filename, source, echo):
        if source[:1] == '\ufeff':
            source = source[1:]
        self._sources.add(filename, source)
        steps, shows = self._prepare(source, filename, echo)
        if not steps:
            return None
        value = self._evaluate(steps)
        if value is None or not shows:
            return None
        result = display.result(value)
        self._remember(value)
        return result

    def _prepare(self, source, filename, echo):
        """The code objects of a cell, and whether the last one's value is its result."""
        if not self._future and '__future__' in source:
            self._future = _future_flags()
        start = last_line(source)
        if echo == 'last' and _is_assignment(source, start):
            return (self._code(source, filename, 'exec'),), False        # the tree would cost as much again
        if echo == 'last' and not start and _may_be_expression(source):
            try:
                return (self._code(source, filename, 'eval'),), True
            except Exception:
                pass             # it is none; what is wrong with it, if anything, is told below
        tree = _compile(source, filename, 'exec', self._flags | _ONLY_AST, True)
        body = tree.body
        if not body:
            return (), False
        if echo == 'all':
            return (self._code(_ast.Interactive(body), filename, 'single'),), False
        last = body[-1]
        if not isinstance(last, _ast.Expr) or self._ends_with_semicolon(source, filename, start, last):
            return (self._code(tree, filename, 'exec'),), False
        expression = _ast.Expression(last.value)
        if len(body) == 1:
            return (self._code(expression, filename, 'eval'),), True
        del body[-1]
        return (self._code(tree, filename, 'exec'), self._code(expression, filename, 'eval')), True

    def _ends_with_semicolon(self, source, filename, start, last):
        """IPython's habit: `expression;` has no value to show."""
        if ';' not in source:
            return False
        if source.find(';', start) < 0 and source.find('\\', start) < 0 and source[start:start + _GLANCE].partition('#')[0].strip():
            return False                                         # what ends in the last line is the expression
        return _semicolon_follows(self._sources.lines(filename), last)

    def _code(self, tree, filename, mode):
        code = _compile(tree, filename, mode, self._flags, True)
        self._flags |= code.co_flags & self._future      # a __future__ import lasts, as at the prompt
        return code

    def _evaluate(self, steps):
        for code in steps:
            if code.co_flags & _COROUTINE:
                # All of the cell in one task, so that what it creates before the await belongs to the loop.
                if self._context is None:
                    self._context = _persistent_context()
                return self._awaiting.run(self._drive(steps), self._context)
        if self._context is not None:
            return self._context.run(self._evaluate_plain, steps)
        return self._evaluate_plain(steps)

    def _evaluate_plain(self, steps):
        value = None
        self._restore_builtins()
        for code in steps:
            value = _eval(code, self._namespace)
        return value

    def _restore_builtins(self):
        # Where a cell has removed them, eval() would fill in those of its caller: our private ones.
        self._namespace.setdefault('__builtins__', builtins)

    async def _drive(self, steps):
        value = None
        self._restore_builtins()
        for code in steps:
            value = _eval(code, self._namespace)
            if code.co_flags & _COROUTINE:
                value = await value
        return value

    # -- values --

    def displayhook(self, value):
        """Print a value as the interactive prompt does, and keep it as `_`."""
        if value is None:
            return
        text = repr(value)
        sys.stdout.write(text)
        sys.stdout.write('\n')
        self._remember(value)

    def _remember(self, value):
        # Not where gettext.install() has put its function. Anything else there is a value, as at the prompt.
        there = getattr(builtins, '_', None)
        if there is self._last or not (isinstance(there, _FUNCTIONS) and there.__name__ == 'gettext'):
            builtins._ = self._last = value


def _future_flags():
    """The compiler flags of all __future__ features."""
    import __future__
    flags = 0
    for name in __future__.all_feature_names:
        if name not in ('nested_scopes', 'generators'):          # their flags mean something else by now
            flags |= getattr(__future__, name).compiler_flag
    return flags


def _persistent_context():
    """From the first await on, all cells share it, so that context variables stay set; a task can have one since 3.11."""
    if sys.version_info < (3, 11):
        return None
    import contextvars  # novm
    return contextvars.copy_context()


def _exit_code(failure):
    """As the interpreter exits: a text goes to stderr and means 1."""
    code = failure.code
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code)
    try:
        print(code, file=sys.stderr)
    except Exception:
        pass
    return 1


def _is_assignment(source, start):
    """Whether the last statement is for sure no expression; on one of several lines without what could begin before it."""
    return _assigns(source, start) is not None and source.find(';', start) < 0 and (not start or _spans_lines(source, start) is None)


def _may_be_expression(source):
    """Whether one line is worth the try. Not with a backslash: what is strange about it would be told twice."""
    return source and '\\' not in source and ';' not in source and '=' not in source.partition('(')[0] and _is_statement(source) is None


def _semicolon_follows(lines, last):
    end = getattr(last, 'end_lineno', None)              # 3.8
    if end is None:
        return _last_token(lines) == ';'
    rest = [lines[end - 1].encode('utf-8', 'surrogatepass')[last.end_col_offset:].decode('utf-8', 'replace')]
    rest += lines[end:]
    return any(';' in line.partition('#')[0] for line in rest)


def _last_token(lines):
    found = ''
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER, tokenize.DEDENT)
    try:
        for token in tokenize.generate_tokens(iter(lines).__next__):
            if token.type not in skipped and token.string.strip():
                found = token.string
    except (tokenize.TokenError, IndentationError):
        pass
    return found
