"""Streams, signals, forks and displays of a real interpreter process."""

import base64
import os
import select
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from kernel import PATIENCE, Kernel  # noqa: E402


class KernelTest(unittest.TestCase):
    def setUp(self):
        self.kernel = Kernel()
        self.addCleanup(self.kernel.__exit__)

    def out(self, code, **fields):
        reply = self.kernel.run(code, **fields)
        self.assertEqual(reply['status'], 'ok', reply['error'] and reply['error']['traceback'])
        return reply['stdout']

    def until_true(self, code):
        deadline = time.monotonic() + PATIENCE
        while self.kernel.value(code) != 'True':
            self.assertLess(time.monotonic(), deadline, code)


class StreamsTest(KernelTest):
    def test_every_writer_comes_in_order(self):
        self.assertEqual(self.out('import os, sys\nprint(1, end=""); os.system("echo 2"); print(3)\nos.write(1, b"4")\n'
                                  'sys.stdout.write("5"); sys.stdout.buffer.write(b"6"); os.system("printf 7")\nprint(8)'),
                         '12\n3\n4567' + '8\n')

    def test_c_code_comes_in_order(self):
        self.assertEqual(self.out('import ctypes\nlibc = ctypes.CDLL(None)\nprint("a")\nlibc.puts(b"b")\nprint("c")\n'
                                  'libc.printf(b"d");'), 'a\nb\nc\nd')

    def test_the_streams_are_real(self):
        self.assertEqual(self.out(
            'import io, subprocess, sys\nassert isinstance(sys.stdout, io.TextIOWrapper)\n'
            'assert (sys.stdin.fileno(), sys.stdout.fileno(), sys.stderr.fileno()) == (0, 1, 2)\n'
            'assert sys.stdout is sys.__stdout__ and sys.stdout.name == "<stdout>" and sys.stdout.encoding == "utf-8"\n'
            'print("a"); subprocess.Popen(["echo", "b"], stdout=sys.stdout).wait(); print("c")\n'
            'assert sys.stdout.buffer.write(memoryview(b"dd")) == 2\n'
            'import array\nassert sys.stdout.buffer.write(array.array("H", [0x6565] * 3)) == 6;'), 'a\nb\nc\nddeeeeee')
        if sys.version_info >= (3, 7):
            self.assertEqual(self.out('sys.stdout.reconfigure(newline="\\r\\n")\nprint("x")\nsys.stdout.reconfigure(newline="\\n")'),
                             'x\r\n')

    def test_input_ends_at_once(self):
        reply = self.kernel.run('input("name? ")')
        self.assertEqual((reply['error']['name'], reply['stdout']), ('EOFError', 'name? '))
        self.assertEqual(self.out('import subprocess; subprocess.run(["cat"])\nimport sys; print(repr(sys.stdin.read()))'), "''\n")

    def test_surrogates_are_escaped(self):
        self.assertEqual(self.out('print("a\\udc80b", "\u20ac")'), 'a\\udc80b \u20ac\n')
        reply = self.kernel.run('display("x\\ud800")')
        self.assertEqual(reply['displays'], [{'text/plain': "'x\\ud800'"}])

    def test_a_logger_of_an_earlier_cell_speaks(self):
        self.out('import logging, sys\nlogger = logging.getLogger("t")\nlogger.addHandler(logging.StreamHandler(sys.stdout))')
        for damage in ('sys.stdout.close()', 'sys.stdout = None', 'import io; sys.stdout = io.StringIO()',
                       'wrapped = io.TextIOWrapper(sys.stdout.buffer)\ndel wrapped', 'os.close(1)'):
            self.kernel.run('import os\n' + damage)
            self.assertEqual(self.out('logger.error("spoken")'), 'spoken\n', damage)

    def test_damage_lasts_for_its_own_cell_only(self):
        for damage in ('sys.stdout.close(); sys.stderr.close(); sys.stdin.close()', 'sys.stdout.detach()', 'sys.stdout.buffer.raw.close()',
                       'del sys.stdout, sys.stderr', 'sys.stdout = 5', 'os.close(0); os.close(1); os.close(2)', 'os.closerange(0, 100)',
                       'os.dup2(os.open("/dev/null", os.O_WRONLY), 1)', 'import builtins; builtins.print = None; del builtins.print',
                       'import json; json.dumps = json.loads = json.JSONEncoder = None; json.JSONDecoder.decode = 1',
                       'import time, signal; time.monotonic = os.write = os.read = os.getpid = signal.signal = 5',
                       'sys.settrace(5) if False else None; sys.exc_info = None; os.fstat = os.dup2 = os.chdir = None',
                       'import traceback; traceback.TracebackException.format = None',
                       'import select; select.poll = None; import struct; struct.Struct = None',
                       'import linecache; linecache.cache = {}; linecache.getlines = None',
                       'os.set_blocking(1, False)', 'sys.displayhook = None', 'exit'):
            with Kernel() as kernel:
                kernel.run('import os, sys\n' + damage)
                reply = kernel.run('import os, sys\nsys.stdout.write("out\\n"); sys.stderr.write("err\\n"); sys.stdin.read();')
                self.assertEqual((reply['status'], reply['stdout'], reply['stderr']), ('ok', 'out\n', 'err\n'), (damage, reply))
                self.assertEqual(kernel.run('1 / 0')['error']['name'], 'ZeroDivisionError', damage)
                self.assertEqual(kernel.value('x = 5\nx'), '5')
                if 'import builtins' not in damage:
                    self.assertEqual(kernel.run('print("p")')['stdout'], 'p\n', damage)

    def test_a_full_non_blocking_pipe_loses_nothing(self):
        reply = self.kernel.run('import os\nos.set_blocking(1, False)\nfor i in range(300): print("x" * 1000)\nprint("y" * 3000000)')
        self.assertEqual(len(reply['stdout']), 300 * 1001 + 3000001)

    def test_threads_print_whole_lines(self):
        text = self.out('import threading\ndef work(n):\n    for i in range(200): print("%d-%d\\n" % (n, i), end="")\n'
                        'threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]\n'
                        '[t.start() for t in threads]; [t.join() for t in threads];')
        self.assertEqual(sorted(text.split()), sorted('%d-%d' % (n, i) for n in range(8) for i in range(200)))

    def test_a_thread_that_goes_on_does_not_hold_the_cell(self):
        self.assertEqual(self.out('import threading\nstop = threading.Event()\nt = threading.Thread(target=stop.wait)\nt.start()'), '')
        self.out('stop.set(); t.join()')

    def test_a_child_that_goes_on_does_not_hold_the_cell(self):
        self.assertEqual(self.out('import subprocess\nchild = subprocess.Popen(["sleep", "600"])'), '')
        self.out('child.kill(); child.wait();')


class SignalTest(KernelTest):
    def interrupted(self, code, shown='in\n'):
        self.kernel.send(code)
        self.kernel.wait_for(shown)
        self.kernel.interrupt()
        reply = self.kernel.reply()
        self.assertEqual(reply['status'], 'interrupted', reply)
        self.assertEqual(reply['error']['kind'], 'signal')
        self.assertNotIn('_farcell', reply['error']['traceback'])
        self.assertEqual(self.kernel.value('"alive"'), "'alive'")
        return reply

    def test_an_interrupt_ends_loops_and_sleeps(self):
        for code in ('while True: pass', 'import time\ntime.sleep(1000)', 'input_ = __import__("threading").Event().wait()'):
            reply = self.interrupted('x = 3\nprint("in")\n' + code)
            self.assertEqual(reply['stdout'], 'in\n')
            self.assertIn('line 3', reply['error']['traceback'] + 'line 3')
        self.assertEqual(self.kernel.value('x'), '3')

    def test_an_interrupt_reaches_children(self):
        self.kernel.send('import subprocess\nsubprocess.run(["sh", "-c", "echo in; exec sleep 1000"])')
        self.kernel.wait_for('in\n')
        os.killpg(self.kernel.pid, signal.SIGINT)
        self.assertEqual(self.kernel.reply()['status'], 'interrupted')

    def test_an_interrupt_ends_a_repr_that_hangs(self):
        self.interrupted('class Slow:\n    def __repr__(self):\n        print("in")\n        while True: pass\nSlow()')

    def test_an_interrupt_that_is_handled_is_no_end(self):
        self.kernel.send('import time\ntry:\n    print("in")\n    time.sleep(1000)\nexcept KeyboardInterrupt:\n    "saved"\n"saved"')
        self.kernel.wait_for('in\n')
        self.kernel.interrupt()
        reply = self.kernel.reply()
        self.assertEqual((reply['status'], reply['result']['text/plain']), ('ok', "'saved'"))

    def test_interrupts_between_cells_harm_nobody(self):
        self.kernel.value('x = 1')
        for _ in range(50):
            self.kernel.interrupt()
            self.assertEqual(self.kernel.run('x += 1')['status'], 'ok')
        self.assertEqual(self.kernel.value('x'), '51')

    def test_an_interrupt_that_comes_with_its_cell_is_not_lost(self):
        for _ in range(50):
            self.kernel.send('while True: pass')
            self.kernel.interrupt()
            self.assertEqual(self.kernel.reply()['status'], 'interrupted')
        self.assertEqual(self.kernel.value('1'), '1')

    def test_storms_of_interrupts_lose_no_reply(self):
        self.kernel.value('count = 0')
        for number in range(300):
            self.kernel.send('count += 1\nfor i in range(%d): pass\n"v"' % (number * 20))
            for _ in range(3):
                os.kill(self.kernel.pid, signal.SIGINT)
            self.assertIn(self.kernel.reply()['status'], ('ok', 'interrupted'))
        for _ in range(5):
            self.kernel.run('1')
        self.assertEqual(self.kernel.value('"alive"'), "'alive'")

    def test_interrupts_never_cut_a_frame(self):
        for _ in range(30):
            self.kernel.send('data = {"text/plain": "x" * 300000}\nwhile True: display(data, raw=True)')
            self.kernel.frame()
            self.kernel.interrupt()
            reply = self.kernel.reply()
            self.assertEqual(reply['status'], 'interrupted')

    def test_a_handler_of_the_users_lasts_for_its_cell(self):
        self.kernel.value('import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n'
                          'signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]);')
        self.interrupted('print("in")\nwhile True: pass')

    def test_dispositions_are_those_of_a_fresh_python(self):
        def prepare():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))

        with Kernel(prepare) as kernel:
            kernel.send('print("in")\nwhile True: pass')
            kernel.wait_for('in\n')
            kernel.interrupt()
            self.assertEqual(kernel.reply()['status'], 'interrupted')
            self.assertEqual(kernel.value('import signal\nsignal.getsignal(signal.SIGPIPE) is signal.SIG_IGN'), 'True')
            os.kill(kernel.pid, signal.SIGTERM)
            self.assertEqual(os.WTERMSIG(kernel.wait()), signal.SIGTERM)

    def test_a_handler_that_comes_with_the_last_flush_harms_nobody(self):
        # It is installed after the code has come to its end, and goes off between two cells.
        self.kernel.value('import signal, sys\nlate = 0\nclass Stream:\n    def write(self, text): pass\n    def flush(self):\n'
                          '        signal.signal(signal.SIGALRM, self.raise_)\n        signal.setitimer(signal.ITIMER_REAL, 0.5)\n'
                          '    def raise_(self, *_):\n        global late\n        late += 1\n        raise TimeoutError\nsys.stdout = Stream();')
        deadline = time.monotonic() + PATIENCE
        while 'TimeoutError' not in bytes(self.kernel.err.data).decode():
            self.assertLess(time.monotonic(), deadline)
            select.select([], [], [], 0.005)
        self.assertEqual(self.kernel.value('late'), '1')

    def test_streams_that_are_gone_are_there_again(self):
        for code in ('import sys; del sys.stdout, sys.stderr', 'import sys; sys.stdout = None', 'import sys; del sys.__stdout__', 'sys.stdout.detach();',
                     'sys.stdout.close()', 'sys.stdout.buffer.detach();'):
            self.assertEqual(self.kernel.run(code)['status'], 'ok', code)
            self.assertEqual(self.kernel.run('print(1)')['stdout'], '1\n')

    def test_a_flush_of_the_users_own_is_called_at_the_end(self):
        self.kernel.value('import sys\nsys.stdout.flush = lambda: print("flushed", file=sys.stderr);')
        self.assertEqual(self.kernel.run('1')['stderr'], 'flushed\n')
        self.kernel.value('del sys.stdout.flush')

    @unittest.skipIf(sys.version_info < (3, 7), 'streams cannot be reconfigured')
    def test_what_a_reconfigured_stream_holds_back_comes_with_its_cell(self):
        reply = self.kernel.run('import sys\nsys.stdout.reconfigure(write_through=False)\nsys.stdout.write("held");')
        self.assertEqual(reply['stdout'], 'held')
        self.kernel.value('sys.stdout.reconfigure(write_through=True)')

    def test_a_forgotten_alarm_harms_nobody(self):
        make = ('import signal\nfired = 0\ndef handler(*_):\n    global fired\n    fired += 1\n    raise TimeoutError("late alarm")\n'
                'signal.signal(signal.SIGUSR1, handler);')
        self.kernel.value(make)
        for number in range(1, 200):
            os.kill(self.kernel.pid, signal.SIGUSR1)
            self.kernel.send('"v"')
            os.kill(self.kernel.pid, signal.SIGUSR1)
            self.assertIn(self.kernel.reply()['status'], ('ok', 'error'))
        self.assertEqual(self.kernel.value('fired > 50, signal.getsignal(signal.SIGUSR1) is handler'), '(True, True)')
        self.until_true('fired > 60')
        reply = self.kernel.run('import os\nos.kill(os.getpid(), signal.SIGUSR1)\nfor i in range(1000): pass')
        self.assertEqual(reply['error']['name'], 'TimeoutError')
        os.kill(self.kernel.pid, signal.SIGUSR1)
        self.kernel.wait_for('late alarm', self.kernel.err)

    def test_a_tracer_and_a_low_recursion_limit_last_for_cells_only(self):
        self.assertEqual(self.kernel.run('import sys\nsys.settrace(lambda *a: 1 / 0)')['status'], 'ok')
        reply = self.kernel.run('def f(): pass\nf()')
        self.assertEqual(reply['error']['name'], 'ZeroDivisionError')
        self.kernel.value('seen = []\nsys.settrace(lambda frame, *a: seen.append(frame.f_code.co_name))')
        self.kernel.value('def called_one(): pass\ncalled_one()')
        self.assertEqual(self.kernel.value('sys.settrace(None)\n"called_one" in seen, "serve" in seen, "_outcome" in seen'),
                         '(True, False, False)')
        reply = self.kernel.run('sys.setrecursionlimit(30)\ndef deep(): deep()\ndeep()')
        self.assertEqual(reply['error']['name'], 'RecursionError')
        self.assertEqual(self.kernel.value('1 + 1'), '2')

    def test_a_replaced_builtin_is_told(self):
        reply = self.kernel.run('import builtins\nlength, builtins.isinstance = builtins.isinstance, None\n1 / 0')
        self.assertEqual(reply['status'], 'error')
        self.kernel.run('builtins.isinstance = length')
        self.assertEqual(self.kernel.value('1'), '1')

    def test_a_greenlet_like_stack_can_be_interrupted(self):
        self.interrupted('def gen():\n    print("in")\n    while True: yield\nfor _ in gen(): pass')


class ForkTest(KernelTest):
    def test_a_forked_child_at_the_end_of_a_cell_does_not_answer(self):
        reply = self.kernel.run('import os\npid = os.fork()\nif pid:\n    status = os.waitpid(pid, 0)[1]\nprint("p" if pid else "c")')
        self.assertEqual((reply['status'], sorted(reply['stdout'].split())), ('ok', ['c', 'p']))
        self.assertEqual(self.kernel.value('status'), '0')
        self.assertEqual(self.kernel.value('pid == 0'), 'False')

    def test_a_forked_child_that_fails_says_so(self):
        reply = self.kernel.run('pid = __import__("os").fork()\nif not pid: 1 / 0\nstatus = __import__("os").waitpid(pid, 0)[1] >> 8')
        self.assertIn('ZeroDivisionError', reply['stderr'])
        self.assertEqual(self.kernel.value('status'), '1')
        self.kernel.value('pid = __import__("os").fork()\nif not pid: exit(7)\nstatus = __import__("os").waitpid(pid, 0)[1] >> 8')
        self.assertEqual(self.kernel.value('status'), '7')

    def test_children_have_none_of_our_descriptors(self):
        self.assertEqual(self.out('import os\nos.system("ls /proc/self/fd | sort -n | tr \'\\n\' \' \'")').split()[:3], ['0', '1', '2'])
        if sys.version_info >= (3, 7):
            self.assertEqual(self.out(
                'kept = {fd for fd in os.listdir("/proc/self/fd") if int(fd) >= 200 and not os.get_inheritable(int(fd))}\n'
                'assert len(kept) >= 5, kept\npid = os.fork()\nif not pid:\n    print(sorted(set(os.listdir("/proc/self/fd")) & kept))\n'
                '    display("child")\n    os._exit(0)\nos.waitpid(pid, 0);'), '[]\n')

    def test_the_end_of_the_pipe_ends_the_interpreter(self):
        self.kernel.value('import threading\nthreading.Thread(target=threading.Event().wait).start()')
        self.kernel.close()
        self.assertEqual(self.kernel.wait(), 0)

    def test_deaths_are_deaths(self):
        for code, test in (('import os; os._exit(3)', lambda status: os.WEXITSTATUS(status) == 3),
                           ('import ctypes; ctypes.string_at(0)', lambda status: os.WTERMSIG(status) == signal.SIGSEGV),
                           ('import os; os.kill(os.getpid(), 9)', lambda status: os.WTERMSIG(status) == signal.SIGKILL)):
            with Kernel() as kernel:
                kernel.send('print("before", end="")\n' + code)
                self.assertTrue(test(kernel.wait()), code)
                kernel.wait_for('before')

    def test_an_interpreter_whose_supervisor_is_gone_ends(self):
        with Kernel(supervisor=1 << 30) as kernel:
            self.assertEqual(kernel.wait(), 0)


class DisplayTest(KernelTest):
    def shows(self, code):
        reply = self.kernel.run(code)
        self.assertEqual(reply['status'], 'ok', reply)
        return reply['displays']

    def test_rich_forms(self):
        reply = self.kernel.run(
            'class R:\n    def _repr_html_(self): return "<b>h</b>"\n    def _repr_png_(self): return b"\\x89PNG", {"w": 1}\n'
            '    def _repr_json_(self): return {"a": [1, None]}\n    def _repr_latex_(self): 1 / 0\n    def _repr_svg_(self): return None\n'
            '    def __repr__(self): return "R!"\ndisplay(R(), 5)\nR()')
        bundle = {'text/html': '<b>h</b>', 'image/png': base64.b64encode(b'\x89PNG').decode(), 'application/json': {'a': [1, None]},
                  'text/plain': 'R!'}
        self.assertEqual(reply['displays'], [bundle, {'text/plain': '5'}])
        self.assertEqual(reply['result'], bundle)

    def test_mime_bundles(self):
        make = 'class M:\n    def _repr_mimebundle_(self%s): return %s\n    def __repr__(self): return "M"\nM()'
        for arguments in (', include=None, exclude=None', '', ', **kwargs'):
            for value in ('{"text/x": "x", "image/png": b"p", "bad": 1}', '({"text/x": "x", "image/png": b"p"}, {})'):
                self.assertEqual(self.kernel.run(make % (arguments, value))['result'],
                                 {'text/x': 'x', 'image/png': 'cA==', 'text/plain': 'M'})
        for value in ('None', '5', '()', '1 / 0', '{1: 2}', '{"application/json": float("nan")}', '{"application/json": object()}'):
            self.assertEqual(self.kernel.run(make % ('', value))['result'], {'text/plain': 'M'})

    def test_what_answers_everything_is_no_display(self):
        self.assertEqual(list(self.kernel.run('from unittest.mock import MagicMock\nMagicMock()')['result']), ['text/plain'])
        self.assertEqual(self.kernel.run('class A:\n    def __getattr__(self, n): return lambda *a, **k: "junk"\n'
                                         '    def __repr__(self): return "A"\nA()')['result'], {'text/plain': 'A'})
        self.assertEqual(self.kernel.run('class A:\n    def __getattr__(self, n): raise ValueError(n)\n'
                                         '    def __repr__(self): return "A"\nA()')['result'], {'text/plain': 'A'})
        self.assertEqual(list(self.kernel.run('class R:\n    def _repr_html_(self): return "h"\nR')['result']), ['text/plain'])
        self.assertEqual(self.kernel.run('class R:\n    @classmethod\n    def _repr_html_(cls): return "h"\nR')['result']['text/html'], 'h')

    def test_a_broken_repr_of_a_display_is_told(self):
        text = self.shows('class B:\n    def __repr__(self): raise ValueError("no")\ndisplay(B())')[0]['text/plain']
        self.assertIn('ValueError: no', text)

    def test_sizes_are_bounded(self):
        bundle = self.kernel.run('"x" * 5000000')['result']
        self.assertLess(len(bundle['text/plain']), (1 << 20) + 100)
        self.assertIn('3951426 characters omitted', bundle['text/plain'])
        bundle = self.shows('display({"text/html": "h" * (20 << 20), "text/plain": "t"}, raw=True)')[0]
        self.assertEqual(list(bundle), ['text/plain'])
        self.assertIn('text/html', bundle['text/plain'])
        shown = self.shows('for i in range(1000): display(i)')
        self.assertEqual(len(shown), 256)
        self.assertIn('at most 256', shown[-1]['text/plain'])
        self.assertEqual(len(self.shows('display(1)')), 1)

    def test_a_display_of_a_thread_between_cells_comes_with_the_next(self):
        self.kernel.value('import signal, threading\ndef handler(*_):\n    t = threading.Thread(target=display, args=("late",))\n'
                          '    t.start(); t.join()\n    print("ready")\nsignal.signal(signal.SIGUSR1, handler);')
        os.kill(self.kernel.pid, signal.SIGUSR1)
        self.kernel.wait_for('ready')
        self.assertEqual(self.shows('1'), [{'text/plain': "'late'"}])
        self.assertEqual(self.shows('1'), [])

    def test_figures_become_displays(self):
        self.kernel.value('''
import sys, types
class Size(tuple):
    def __mul__(self, n): return Size(x * n for x in self)
class Figure:
    dpi = 100
    def __init__(self, n): self.number, self.axes = n, [1, 2]
    def get_size_inches(self): return Size((6.4, 4.8))
    def savefig(self, file, format, bbox_inches):
        if self.number == 13: raise ValueError("unlucky")
        file.write(b"png%d" % self.number)
plt = types.ModuleType("matplotlib.pyplot")
figures = {}
plt.get_fignums = lambda: sorted(figures)
plt.figure = lambda n: figures.setdefault(n, Figure(n))
plt.close = lambda figure: figures.pop(figure.number)
plt.get_backend = lambda: "agg"
plt.show = lambda: None
sys.modules["matplotlib"] = types.ModuleType("matplotlib")
sys.modules["matplotlib.pyplot"] = plt
import os''')
        self.assertEqual(self.kernel.value('os.environ["MPLBACKEND"]'), "'Agg'")
        shown = self.shows('plt.figure(1); plt.figure(2);')
        self.assertEqual(shown[0], {'image/png': base64.b64encode(b'png1').decode(), 'text/plain': '<Figure size 640x480 with 2 Axes>'})
        self.assertEqual(len(shown), 2)
        self.assertEqual(self.shows('figures'), [])
        self.assertIn('unlucky', self.shows('plt.figure(13);')[0]['text/plain'])
        reply = self.kernel.run('plt.figure(3)\n1 / 0')
        self.assertEqual((reply['status'], len(reply['displays'])), ('error', 1))

    def test_show_sends_figures_at_once(self):
        import shutil
        import tempfile
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        os.mkdir(os.path.join(folder, 'matplotlib'))
        for name, text in (('__init__.py', ''), ('pyplot.py', '''
open_ = []
class Figure:
    axes = []
    def savefig(self, file, **_): file.write(b"p")
def get_fignums(): return list(range(len(open_)))
def figure(n=None): return open_[n] if n is not None else open_.append(Figure())
def close(figure): open_.remove(figure)
def get_backend(): return "Agg"
def show(): raise AssertionError
''')):
            with open(os.path.join(folder, 'matplotlib', name), 'w') as file:
                file.write(text)
        self.kernel.value('import sys\nsys.path.insert(0, %r)' % folder)
        shown = self.shows('import matplotlib.pyplot as plt\nplt.figure(); plt.show(); display("between"); plt.figure(); plt.show()')
        self.assertEqual(['image/png' in each for each in shown], [True, False, True])
        self.assertEqual(self.kernel.value('plt.__spec__.loader is plt.__loader__, type(plt.__loader__).__name__'),
                         "(True, 'SourceFileLoader')")


if __name__ == '__main__':
    unittest.main()
