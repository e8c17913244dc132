"""What a cell may be, and what is told of its end."""

import os
import sys
import unittest
import warnings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from kernel import Kernel  # noqa: E402
from _farcell import execute, sources  # noqa: E402

AWAITS = sys.version_info >= (3, 8)


class ExecuteTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.kernel = Kernel()

    @classmethod
    def tearDownClass(cls):
        cls.kernel.__exit__()

    def run_cell(self, code, **fields):
        return self.kernel.run(code, **fields)

    def error(self, code, status='error', **fields):
        reply = self.run_cell(code, **fields)
        self.assertEqual(reply['status'], status, reply)
        self.assertNotIn('_farcell', reply['error']['traceback'])
        self.assertNotIn('asyncio', reply['error']['traceback'])
        return reply

    def value(self, code, **fields):
        return self.kernel.value(code, **fields)

    # -- the short way of one line --

    LINES = (
        'x', '1 + 1', ' 1', '\t1', '1 ', '1 # one', '(1)', '(1,', 'f(a=1)', 'f(x).y = 3', 'x.y = 3', 'x[0] = 1', 'x == 1', 'a, b', '*a, b', '*a', 'x: int', 'x: int = 1',
        'yield', 'await f()', 'lambda: 0', 'not x', 'if x: y', 'for a in b: c', 'import os', 'importlib', 'del x', 'delta', 'pass', 'passed', 'return 1', '(y := 1)',
        'print(1); print(2)', 'x;', '"a;b"', '"text"', 'f"{x!r}"', '[a for a in b]', '{1: 2}', '{*a}', '...', '1if x else 2', '1 is 1', '0x1for x in y', '"\\d"', 'x\x0c', '',
        '#', ' ', '\x00', 'x\x00', '1 +', ')', "'", 'f(', 'x\n', 'x\r\n', '\nx', 'match', 'match(x)', 'type(x)', 'type X = int', 'print x', 'x = yield', '@f', 'async def f(): pass',
        'None', 'True = 1', 'x if y', 'a.b.c(d)[e]', '\ufeffx', 'x = 1', 'x += 1', '\u00e9', 'assert x', 'raise', 'global x', 'nonlocal x', 'break', 'with a: b')

    def test_it_leads_to_the_same_code_and_the_same_complaints(self):
        for line in self.LINES:
            self.assertEqual(self.prepared(line, execute._may_be_expression), self.prepared(line, lambda *_: False), line)

    def prepared(self, line, may_be_expression):
        """What becomes of a line, and what is said about it."""
        before, execute._may_be_expression = execute._may_be_expression, may_be_expression
        try:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter('always')
                executor = execute.Executor.__new__(execute.Executor)
                executor._flags, executor._future = execute._AWAIT, 0
                source = line[1:] if line[:1] == '\ufeff' else line
                executor._sources = sources.Sources()
                executor._sources.add('<cell 1>', source)
                try:
                    steps, shows = executor._prepare(source, '<cell 1>', 'last')
                except Exception as error:
                    outcome = type(error), str(error), getattr(error, 'args', None), error.__context__
                else:
                    outcome = [(code.co_code, code.co_consts, code.co_names, code.co_flags, code.co_name) for code in steps if not self.has_code(code)], shows
            return outcome, [str(each.message) for each in told]
        finally:
            execute._may_be_expression = before

    @staticmethod
    def has_code(code):
        """Whether there are code objects in it, which compare by more than what they do."""
        return any(hasattr(each, 'co_code') for each in code.co_consts)

    # -- values --

    def test_the_last_expression_is_the_result(self):
        self.assertEqual(self.value('a = 40\na + 2'), '42')
        self.assertIsNone(self.value('a = 1'))
        self.assertIsNone(self.value('None'))
        self.assertIsNone(self.value(''))
        self.assertIsNone(self.value('# nothing\n\n'))
        self.assertEqual(self.value('\ufeff1'), '1')

    def test_a_trailing_semicolon_hides_the_value(self):
        for code in ('5;', '5 ;', '5; # five', '(5);', '(\n5\n) ;  # x', '"\u20ac;" ; # y', 'a = 1; a;'):
            self.assertIsNone(self.value(code), code)
        for code in ('"5;"', '5 # five;', 'a = 1; a', '"\u20ac" #;', '(5)\n#;'):
            self.assertIsNotNone(self.value(code), code)

    def test_echo_all_prints_every_value(self):
        reply = self.run_cell('1\nNone\nx = 2\n"a"\nfor i in range(2):\n    i\nx;', echo='all')
        self.assertEqual((reply['stdout'], reply['result']), ("1\n'a'\n0\n1\n2\n", None))
        self.assertEqual(self.value('_'), '2')

    def test_underscore_is_the_last_value_unless_gettext_has_it(self):
        self.value('6 * 7')
        self.assertEqual(self.value('_ + 1'), '43')
        self.value('None')
        self.assertEqual(self.value('_'), '43')
        self.value('_ = "mine"')
        self.value('99')
        self.assertEqual(self.value('_'), "'mine'")
        self.value('del _')
        self.value('import gettext\ngettext.install("none")')
        self.value('98')
        self.assertEqual(self.value('_("a")'), "'a'")
        # Anything else that stands there is a value like any other, as doctest and sympy leave it.
        for code in ('import builtins; del builtins._', 'builtins._ = None', 'builtins._ = str.upper'):
            self.value(code)
            self.value('97')
            self.assertEqual(self.value('_ - 1'), '96', code)

    def test_a_cell_that_removes_its_builtins_gets_them_back(self):
        self.value('import builtins\ndel globals()["__builtins__"]')
        self.value('5')
        self.assertEqual(self.value('_'), '5')
        self.assertEqual(self.value('import builtins\n__builtins__ is builtins or __builtins__ is vars(builtins)'), 'True')

    def test_an_exception_in_repr_is_the_cells(self):
        reply = self.error('class Bad:\n    def __repr__(self):\n        return 1 / 0\nBad()')
        self.assertEqual(reply['error']['name'], 'ZeroDivisionError')
        self.assertIn('return 1 / 0', reply['error']['traceback'])

    # -- errors --

    def test_a_traceback_shows_the_cells_lines(self):
        reply = self.error('def f():\n    raise KeyError("k")\n\nf()')
        number = reply['number']
        error = reply['error']
        self.assertEqual((error['kind'], error['name'], error['message']), ('exception', 'KeyError', "'k'"))
        self.assertTrue(error['traceback'].startswith(
            'Traceback (most recent call last):\n  File "<cell %d>", line 4, in <module>\n    f()\n' % number))
        self.assertIn('line 2, in f\n    raise KeyError("k")\n', error['traceback'])
        self.assertEqual(reply['exit_code'], 1)
        self.assertEqual(reply['stderr'], '')

    def test_lines_of_earlier_cells_survive_a_cleared_cache(self):
        self.value('def old():\n    raise ValueError("from before")')
        self.value('import linecache\nlinecache.checkcache()\nlinecache.clearcache()')
        self.assertIn('raise ValueError("from before")', self.error('old()')['error']['traceback'])

    def test_lines_count_as_the_parser_counts(self):
        code = 'a = "\u2028"\nb = "\x0c"\r\nc = 1\rraise ValueError("here")'
        self.assertIn('line 4, in <module>\n    raise ValueError("here")', self.error(code)['error']['traceback'])

    def test_carets_stand_under_a_last_line_without_newline(self):
        if sys.version_info >= (3, 11):
            lines = self.error('undefined_name.foo')['error']['traceback'].splitlines()
            self.assertEqual(lines[3], '    ^^^^^^^^^^^^^^')

    def test_a_syntax_error_has_line_and_caret_and_no_heading(self):
        reply = self.error('x = 1\ny = = 2\n')
        text = reply['error']['traceback']
        self.assertEqual(reply['error']['name'], 'SyntaxError')
        self.assertTrue(text.startswith('  File "<cell %d>", line 2\n    y = = 2\n' % reply['number']), text)
        self.assertIn('^', text)

    def test_a_syntax_error_of_code_that_the_cell_compiles_keeps_its_heading(self):
        text = self.error('compile("a b", "inner", "exec")')['error']['traceback']
        self.assertTrue(text.startswith('Traceback (most recent call last):\n  File "<cell '), text)
        self.assertIn('File "inner", line 1', text)

    def test_chained_exceptions(self):
        text = self.error('try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise RuntimeError("b") from e')['error']['traceback']
        self.assertIn('direct cause of the following', text)
        self.assertEqual(text.count('Traceback (most recent call last)'), 2)

    def test_exception_groups(self):
        if sys.version_info < (3, 11):
            return
        text = self.error('raise ExceptionGroup("both", [ValueError("a"), TypeError("b")])')['error']['traceback']
        self.assertIn('ValueError: a', text)
        self.assertIn('TypeError: b', text)

    def test_names_are_those_of_tracebacks(self):
        self.assertEqual(self.error('class Own(Exception): pass\nraise Own("x")')['error']['name'], 'Own')
        self.assertEqual(self.error('import json\njson.loads("{")')['error']['name'], 'json.decoder.JSONDecodeError')

    def test_recursion_and_depth_are_reported(self):
        reply = self.error('def r(): r()\nr()')
        self.assertEqual(reply['error']['name'], 'RecursionError')
        self.assertLess(len(reply['error']['traceback']), 10000)
        self.assertIn(self.error('(' * 5000 + ')' * 5000)['error']['name'], ('SyntaxError', 'MemoryError', 'RecursionError'))
        self.assertIn(self.run_cell('x = ' + '+'.join(['1'] * 20000))['status'], ('ok', 'error'))
        self.assertEqual(self.value('1'), '1')

    def test_null_bytes_are_reported(self):
        self.assertIn(self.error('a = 1\0')['error']['name'], ('ValueError', 'SyntaxError'))

    def test_any_base_exception_is_reported(self):
        self.assertEqual(self.error('raise GeneratorExit("g")')['error']['name'], 'GeneratorExit')
        self.assertEqual(self.error('class B(BaseException): pass\nraise B()')['error']['name'], 'B')
        self.assertEqual(self.error('raise MemoryError()')['error']['name'], 'MemoryError')

    def test_an_exception_that_misbehaves_is_reported(self):
        reply = self.error('class Evil(Exception):\n    def __str__(self): raise KeyError(1)\nraise Evil()')
        self.assertIn('Evil', reply['error']['name'])
        self.assertIn('failed', reply['error']['message'])
        reply = self.error('class Evil(Exception):\n    def __str__(self): raise SystemExit(1)\nraise Evil()')
        self.assertEqual(reply['error']['name'], 'Evil')
        self.error('class Evil(Exception):\n    __module__ = 5\nraise Evil()')

    def test_huge_messages_are_cut(self):
        error = self.error('raise ValueError("x" * 50000000)')['error']
        self.assertLess(len(error['message']) + len(error['traceback']), 3 << 20)
        self.assertIn('omitted', error['message'])

    def test_surrogates_in_errors_and_values_are_escaped(self):
        error = self.error('raise ValueError("a\\udc80b")')['error']
        self.assertEqual(error['message'], 'a\\udc80b')
        self.assertEqual(self.value('class S:\n    def __repr__(self): return "\\ud800!"\nS()'), '\\ud800!')

    # -- exits --

    def test_exits_tell_code_and_message(self):
        for code, exit_code, message, stderr in (
                ('import sys; sys.exit()', 0, '', ''),
                ('import sys; sys.exit(3)', 3, '3', ''),
                ('import sys; sys.exit(True)', 1, 'True', ''),
                ('import sys; sys.exit(-1)', -1, '-1', ''),
                ('import sys; sys.exit(1000)', 1000, '1000', ''),
                ('import sys; sys.exit("bye")', 1, 'bye', 'bye\n'),
                ('class Leave(SystemExit): pass\nraise Leave(4)', 4, '4', ''),
                ('exit()', 0, 'None', '')):
            reply = self.error(code, status='exit')
            error = reply['error']
            self.assertEqual((reply['exit_code'], error['kind'], reply['stderr']), (exit_code, 'exit', stderr), code)
            self.assertEqual(error['message'], message, code)
        self.assertEqual(self.error('class Leave(SystemExit): pass\nraise Leave(4)', status='exit')['error']['name'], 'Leave')
        self.assertEqual(self.value('1'), '1')

    def test_a_raised_keyboard_interrupt_is_an_interrupt(self):
        reply = self.error('raise KeyboardInterrupt("me")', status='interrupted')
        self.assertEqual((reply['error']['kind'], reply['error']['name']), ('signal', 'KeyboardInterrupt'))
        self.assertIn('raise KeyboardInterrupt("me")', reply['error']['traceback'])
        self.assertIsNone(reply['exit_code'])

    # -- the namespace --

    def test_main_is_real(self):
        with Kernel() as kernel:
            self.assertEqual(kernel.value('__name__, __doc__, __spec__, "__file__" in globals()'), "('__main__', None, None, False)")
        self.value('class Point:\n    def __init__(self, x): self.x = x\ndef double(n): return 2 * n')
        self.assertEqual(self.value('import pickle\npickle.loads(pickle.dumps(Point(3))).x'), '3')
        self.assertEqual(self.value('import sys\nsys.modules["__main__"].Point is Point, sys.argv, sys.path[0]'), "(True, [''], '')")
        self.assertEqual(self.value('[each for each in sys.path if each.endswith("core/runner")]'), '[]')
        self.value('sys.modules["__main__"] = None')
        self.assertEqual(self.value('sys.modules["__main__"].double(2)'), '4')

    def test_processes_run_functions_of_cells(self):
        self.value('def square(n): return n * n')
        self.assertEqual(self.value(
            'from concurrent.futures import ProcessPoolExecutor\n'
            'with ProcessPoolExecutor(2) as pool:\n    got = list(pool.map(square, range(5)))\ngot'), '[0, 1, 4, 9, 16]')
        self.assertEqual(self.value(
            'import multiprocessing\nwith multiprocessing.Pool(2) as pool:\n    got = pool.map(square, [7])\ngot'), '[49]')

    def test_future_flags_last(self):
        if sys.version_info < (3, 7) or sys.version_info >= (3, 14):
            return
        with Kernel() as kernel:
            kernel.value('from __future__ import annotations\n1')
            self.assertEqual(kernel.value('def f(a: nowhere): pass\nf.__annotations__'), "{'a': 'nowhere'}")

    def test_inspect_finds_functions_and_classes(self):
        self.value('class Twice:\n    first = 1\n\nclass Outer:\n    """doc"""\n    class Inner:\n        pass\n    def m(self):\n        return 1\n'
                   'def func():\n    return "f"')
        self.value('class Twice:\n    second = 2\n\n')
        self.assertEqual(self.value('import inspect\ninspect.getsource(func)'), repr('def func():\n    return "f"\n'))
        self.assertEqual(self.value('inspect.getsource(Twice)'), repr('class Twice:\n    second = 2\n'))
        self.assertEqual(self.value('inspect.getsource(Outer.m)'), repr('    def m(self):\n        return 1\n'))
        self.assertIn('"""doc"""', self.value('inspect.getsource(Outer)'))
        if sys.version_info >= (3, 9):
            self.assertEqual(self.value('inspect.getsource(Outer.Inner)'), repr('    class Inner:\n        pass\n'))
        self.assertIn('type_not_there', self.error('inspect.getsource(type("type_not_there", (), {}))')['error']['message']
                      + ' type_not_there')

    def test_code_of_megabytes(self):
        line = 'text = "%s"\n' % ('x' * 1000)
        self.assertEqual(self.value(line * 3000 + 'len(text)'), '1000')

    def test_lines_of_a_long_cell_are_made_when_somebody_looks_and_are_those_of_a_short_one(self):
        import linecache
        from unittest import mock
        fill = 'x' * sources.LONG
        endings = ['', '\n', '\r', '\r\n', '\n\n', '\r\r\n', '\na = 1', '\ra = 1\r', '\r\na\x0c\u2028b\n', '\n#;\n']
        for ending in endings:
            kept = sources.Sources()
            name = '<cell long %r>' % ending
            with mock.patch.object(sources, '_split', side_effect=AssertionError):
                kept.add(name, fill + ending)
                start = sources.last_line(fill + ending)
            lines = sources._split(fill + ending)
            self.assertEqual(((fill + ending)[start:].rstrip('\r\n'), start == 0), (lines[-1][:-1], len(lines) == 1), ending)
            self.assertEqual((linecache.getlines(name), ''.join(linecache.getlines(name)), kept.lines(name)), (lines, ''.join(lines), lines))
            self.assertIs(type(linecache.getlines(name)), list)
            linecache.checkcache(name)
            self.assertEqual(linecache.getline(name, len(lines)), lines[-1])
            del linecache.cache[name]

    def test_a_long_cell_is_told_of_as_a_short_one_is(self):
        fill = '# %s\n' % ('x' * 70000)
        error = self.error(fill + 'def f():\n    1 / 0\nf()')['error']
        self.assertIn('    1 / 0', error['traceback'])
        self.assertIn(', line 3, in f', error['traceback'])
        self.assertIn('import inspect', self.value(fill + 'import inspect\ndef g(): return 1\ninspect.getsource(inspect.currentframe())'))
        self.assertEqual(self.value(fill + '1 + 1'), '2')
        self.assertEqual(self.value(fill + '1; 1 + 2'), '3')
        for silent in ('1 + 1;', '1 + 1; # no', '1 + 1;\n# yes; no', '1 + 1;\\\n\n'):
            self.assertIsNone(self.value(fill + silent), silent)

    def test_sources_are_bounded(self):
        from _farcell.sources import Sources
        import linecache
        kept = Sources(limit=10000)
        for number in range(100):
            kept.add('<cell test %d>' % number, 'x' * 1000)
        self.assertIn('<cell test 99>', kept)
        self.assertNotIn('<cell test 50>', kept)
        self.assertNotIn('<cell test 50>', linecache.cache)
        kept.add('<cell test huge>', 'x' * 20000)
        self.assertIn('<cell test huge>', kept)
        self.assertEqual(len([name for name in linecache.cache if name.startswith('<cell test')]), 1)
        del linecache.cache['<cell test huge>']

    # -- place --

    def test_environment_and_directory_stay(self):
        here = os.path.realpath(os.sep)
        self.assertEqual(self.value('import os\nos.getcwd(), os.environ["FARCELL_T"]', cwd=here, env={'FARCELL_T': 'a'}),
                         repr((here, 'a')))
        self.assertEqual(self.value('os.getcwd(), os.environ["FARCELL_T"]'), repr((here, 'a')))

    def test_a_missing_directory_is_told(self):
        reply = self.run_cell('ran = True', cwd='/nowhere/at all')
        self.assertEqual((reply['status'], reply['error']['kind'], reply['error']['name']),
                         ('error', 'spawn', 'FileNotFoundError'))
        self.assertIn('/nowhere/at all', reply['error']['message'])
        self.assertEqual(self.value('"ran" in globals()'), 'False')
        self.assertEqual(self.run_cell('1', env={'A=B': 'c'})['error']['kind'], 'spawn')


class AwaitTest(unittest.TestCase):
    def setUp(self):
        self.kernel = Kernel()
        self.addCleanup(self.kernel.__exit__)

    def test_old_pythons_say_so(self):
        if not AWAITS:
            reply = self.kernel.run('await x')
            self.assertEqual((reply['status'], reply['error']['name']), ('error', 'SyntaxError'))

    @unittest.skipUnless(AWAITS, 'needs top-level await')
    def test_values_and_statements(self):
        value = self.kernel.value
        value('import asyncio\nasync def f(n):\n    await asyncio.sleep(0)\n    return n')
        self.assertEqual(value('await f(3)'), '3')
        self.assertEqual(value('x = await f(4)\nx + await f(1)'), '5')
        self.assertEqual(value('t = asyncio.create_task(f(6))\nawait t'), '6')
        self.assertIsNone(value('await f(3);'))
        self.assertEqual(value('asyncio.get_event_loop() is asyncio.get_running_loop() and await f(1)'), '1')
        reply = self.kernel.run('await f("a")\nfor i in range(2):\n    await f(i)', echo='all')
        self.assertEqual(reply['stdout'], "'a'\n0\n1\n")

    @unittest.skipUnless(AWAITS, 'needs top-level await')
    def test_a_traceback_of_an_awaiting_cell_is_as_clean(self):
        reply = self.kernel.run('import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    1 / 0\nawait f()')
        text = reply['error']['traceback']
        self.assertNotIn('_farcell', text)
        self.assertEqual(text.count('File "<cell 1>"'), 2)
        self.assertEqual(text.count('File'), 2)
        reply = self.kernel.run('import sys\nawait asyncio.sleep(0)\nsys.exit(5)')
        self.assertEqual((reply['status'], reply['exit_code']), ('exit', 5))
        self.assertEqual(self.kernel.value('await asyncio.sleep(0, "alive")'), "'alive'")

    @unittest.skipUnless(AWAITS, 'needs top-level await')
    def test_tasks_live_on_between_cells(self):
        value = self.kernel.value
        value('import asyncio, os\nr, w = os.pipe()\nevent = asyncio.Event()\n'
              'async def later():\n    for _ in range(20): await asyncio.sleep(0.001)\n    os.write(w, b"done")\n    return 8\n'
              'task = asyncio.ensure_future(later())\nawait asyncio.sleep(0)')
        # Not an awaiting cell: the task can only have gone on while the kernel was idle.
        self.kernel.wait_for('')
        self.assertEqual(self._poll('task.done()'), 'True')
        self.assertEqual(value('os.read(r, 4), await task'), "(b'done', 8)")

    def _poll(self, code):
        import time
        deadline = time.monotonic() + 60
        while self.kernel.value(code) != 'True' and time.monotonic() < deadline:
            pass
        return self.kernel.value(code)

    @unittest.skipUnless(AWAITS, 'needs top-level await')
    def test_a_server_answers_between_cells(self):
        self.kernel.value(
            'import asyncio\nasync def serve(r, w):\n    w.write(b"hello")\n    await w.drain()\n    w.close()\n'
            'server = await asyncio.start_server(serve, "127.0.0.1", 0)\nport = server.sockets[0].getsockname()[1]')
        import socket
        port = int(self.kernel.value('port'))
        with socket.create_connection(('127.0.0.1', port), 30) as link:
            link.settimeout(30)
            self.assertEqual(link.recv(5), b'hello')
        self.kernel.value('server.close()')

    @unittest.skipUnless(AWAITS, 'needs top-level await')
    def test_a_task_that_exits_between_cells_harms_nobody(self):
        self.kernel.value('import asyncio\nasync def bad():\n    await asyncio.sleep(0.001)\n    raise SystemExit(3)\n'
                          'task = asyncio.ensure_future(bad())\nawait asyncio.sleep(0)')
        self.assertEqual(self._poll('task.done()'), 'True')
        self.assertEqual(self.kernel.value('await asyncio.sleep(0, 1)'), '1')

    @unittest.skipUnless(AWAITS, 'needs top-level await')
    def test_an_interrupt_cancels_what_is_awaited(self):
        self.kernel.send('import asyncio\nasync def f():\n    try:\n        print("in", flush=True)\n        await asyncio.sleep(1000)\n'
                         '    finally:\n        await asyncio.sleep(0)\n        print("cleaned")\nawait f()')
        self.kernel.wait_for('in\n')
        self.kernel.interrupt()
        reply = self.kernel.reply()
        self.assertEqual((reply['status'], reply['error']['name']), ('interrupted', 'KeyboardInterrupt'))
        self.assertEqual(reply['stdout'], 'in\ncleaned\n')
        self.assertIn('await f()', reply['error']['traceback'])
        self.assertIn('KeyboardInterrupt', reply['error']['traceback'])
        self.assertEqual(self.kernel.value('await asyncio.sleep(0, 1)'), '1')

    @unittest.skipUnless(AWAITS, 'needs top-level await')
    def test_an_interrupt_ends_a_loop_in_an_awaiting_cell(self):
        self.kernel.send('import asyncio\nawait asyncio.sleep(0)\nprint("in")\nwhile True: pass')
        self.kernel.wait_for('in\n')
        self.kernel.interrupt()
        self.assertEqual(self.kernel.reply()['status'], 'interrupted')
        self.assertEqual(self.kernel.value('1'), '1')

    @unittest.skipUnless(AWAITS, 'needs top-level await')
    def test_an_interrupt_ends_another_task_that_blocks_the_loop(self):
        self.kernel.send('import asyncio\nasync def block():\n    print("in")\n    while True: pass\n'
                         't = asyncio.ensure_future(block())\nawait asyncio.sleep(1000)')
        self.kernel.wait_for('in\n')
        self.kernel.interrupt()
        self.assertEqual(self.kernel.reply()['status'], 'interrupted')
        self.assertEqual(self.kernel.value('1'), '1')

    @unittest.skipUnless(AWAITS, 'needs top-level await')
    def test_a_loop_that_was_closed_is_replaced(self):
        self.kernel.run('import asyncio\nawait asyncio.sleep(0)\nloop = asyncio.get_running_loop()')
        self.kernel.value('loop.close()')
        self.assertEqual(self.kernel.value('await asyncio.sleep(0, 2)'), '2')

    @unittest.skipUnless(sys.version_info >= (3, 11), 'needs tasks with a context')
    def test_context_variables_last(self):
        self.kernel.value('import asyncio, contextvars\nv = contextvars.ContextVar("v")\nawait asyncio.sleep(0)\nv.set(5);')
        self.assertEqual(self.kernel.value('v.get()'), '5')
        self.kernel.value('v.set(6);')
        self.assertEqual(self.kernel.value('await asyncio.sleep(0)\nv.get()'), '6')

    @unittest.skipUnless(AWAITS, 'needs top-level await')
    def test_asyncio_run_still_works(self):
        self.kernel.value('import asyncio\nasync def f(): return 3\nasyncio.run(f())')
        self.assertEqual(self.kernel.value('await f()'), '3')
        self.assertEqual(self.kernel.value('asyncio.run(f())'), '3')
        reply = self.kernel.run('asyncio.create_task(f())')
        self.assertIn('awaits', reply['error']['hint'])


if __name__ == '__main__':
    unittest.main()
