"""Whose a call is: what an earlier cell has left behind may not call tools, and does not disturb the cell that runs."""

import sys
import unittest

from tests.tools_kit import IMPORT, FileHost, PipeHost, WithHost

# Waits for the word of a later cell, then calls, and keeps what came of it.
LEFT = IMPORT + """
import threading
go, done, told = threading.Event(), threading.Event(), []
def late():
    go.wait(60)
    try:
        told.append(echo('late'))
    except ToolError as error:
        told.append(error.kind)
    done.set()
"""
WAKE = "\ngo.set()\ndone.wait(60)\nfrom farcell_tools import echo\n(told, echo('mine'))"
REFUSED = "(['refused'], 'mine')"


class Owners(WithHost):
    def left_behind(self, start, wake=WAKE, expected=REFUSED, left=LEFT):
        """One cell leaves something, the next one has it call, and calls itself."""
        first = self.host.start(left + start)
        self.assertEqual(first.reply()["status"], "ok", first)
        second = self.host.start(wake)
        self.assertEqual([call["arguments"] for call in second.serve(1)], [{"value": "mine"}])
        reply = second.reply()
        self.assertEqual((reply["result"], reply["error"]), ({"text/plain": expected}, None))
        self.assertEqual(reply["tools"], {"calls": 1, "errors": []})
        return second

    def test_a_thread_of_an_earlier_cell_is_refused(self):
        self.left_behind("threading.Thread(target=late).start()")

    def test_a_thread_without_the_module_threading(self):
        self.left_behind("import _thread\n_ = _thread.start_new_thread(late, ())")

    def test_a_thread_that_a_thread_of_an_earlier_cell_has_started(self):
        self.left_behind("starts = lambda: (go.wait(60), threading.Thread(target=late).start())\nthreading.Thread(target=starts).start()")

    def test_a_timer(self):
        self.left_behind("threading.Timer(0.01, late).start()")

    def test_a_thread_that_is_older_than_all_cells_with_tools(self):
        self.host.run("import threading\ngo, done, told = threading.Event(), threading.Event(), []\ndef late():\n    go.wait(60)\n    try:\n        told.append(echo('late'))\n"
                      "    except Exception as error:\n        told.append(error.kind)\n    done.set()\nthreading.Thread(target=late).start()")
        second = self.host.start(IMPORT + WAKE)
        second.serve(1)
        self.assertEqual(second.value(), REFUSED)

    def test_work_belongs_to_the_cell_that_submitted_it(self):
        first = self.host.start(LEFT + "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(2)\npool.submit(late)\npool.submit(echo, 1).result()")
        first.serve(1)
        self.assertEqual(first.value(), "1")
        # The workers are those of the first cell, and the work is this one's.
        second = self.host.start("go.set()\ndone.wait(60)\n(told, pool.submit(echo, 'mine').result(), list(pool.map(echo, [1, 2])))")
        second.serve(3)
        self.assertEqual(second.value(), "(['refused'], 'mine', [1, 2])")

    def test_a_forked_child_of_an_earlier_cell_is_refused(self):
        left = IMPORT + ("import os\ngo_read, go_write = os.pipe()\nread, write = os.pipe()\nif os.fork() == 0:\n    os.read(go_read, 1)\n    try:\n        told = echo('late')\n"
                         "    except ToolError as error:\n        told = error.kind\n    os.write(write, told.encode())\n    os._exit(0)\n")
        self.left_behind("", "import os\nos.write(go_write, b'x')\ntold = [os.read(read, 100).decode()]\nos.wait()\nfrom farcell_tools import echo\n(told, echo('mine'))", REFUSED, left)

    def test_threads_of_a_child_are_the_childs(self):
        cell = self.host.start(IMPORT + "import os, threading\nif os.fork() == 0:\n    thread = threading.Thread(target=echo, args=('child',))\n    thread.start()\n    thread.join()\n    os._exit(0)\n"
                               "_ = os.wait()")
        self.assertEqual(cell.serve(1)[0]["arguments"], {"value": "child"})
        self.assertEqual(cell.reply()["status"], "ok")

    def test_a_task_of_an_earlier_cell_is_refused(self):
        left = IMPORT + ("import asyncio\nloop = asyncio.new_event_loop()\nasyncio.set_event_loop(loop)\ntold = []\nasync def late():\n    await go.wait()\n    try:\n"
                         "        told.append(await echo.aio('late'))\n    except ToolError as error:\n        told.append(error.kind)\n    done.set()\n"
                         "async def begin():\n    global go, done\n    go, done = asyncio.Event(), asyncio.Event()\n    return loop.create_task(late())\ntask = loop.run_until_complete(begin())")
        self.left_behind("", "async def main():\n    go.set()\n    await done.wait()\n    return told, await echo.aio('mine')\nloop.run_until_complete(main())", REFUSED, left)

    @unittest.skipUnless(sys.version_info >= (3, 8), "await at the top of a cell needs 3.8")
    def test_a_task_that_goes_on_between_the_cells_is_refused(self):
        left = IMPORT + ("import asyncio\ngo, done, told = asyncio.Event(), asyncio.Event(), []\nasync def late():\n    await go.wait()\n    try:\n        told.append(await echo.aio('late'))\n"
                         "    except ToolError as error:\n        told.append(error.kind)\n    done.set()\ntask = asyncio.ensure_future(late())\nawait asyncio.sleep(0)\n")
        self.left_behind("", "go.set()\nawait done.wait()\n(told, await echo.aio('mine'))", REFUSED, left)

    @unittest.skipUnless(sys.version_info >= (3, 9), "asyncio.to_thread is new in 3.9")
    def test_threads_of_a_loop(self):
        cell = self.host.start(IMPORT + "import asyncio\nawait asyncio.gather(asyncio.to_thread(echo, 1), asyncio.get_running_loop().run_in_executor(None, echo, 2))")
        cell.serve(2)
        self.assertEqual(cell.value(), "[1, 2]")
        cell = self.host.start("await asyncio.gather(asyncio.to_thread(echo, 3), asyncio.get_running_loop().run_in_executor(None, echo, 4))")
        cell.serve(2)
        self.assertEqual(cell.value(), "[3, 4]")

    def test_a_loop_in_a_thread(self):
        cell = self.host.start(IMPORT + "import asyncio, threading\ngot = []\ndef work():\n    loop = asyncio.new_event_loop()\n    got.append(loop.run_until_complete(echo.aio(1)))\n    loop.close()\n"
                               "thread = threading.Thread(target=work)\nthread.start()\nthread.join()\ngot")
        cell.serve(1)
        self.assertEqual(cell.value(), "[1]")

    def test_threads_work_as_they_did(self):
        code = ("import _thread, threading, inspect\nout = []\nlock = _thread.allocate_lock()\nlock.acquire()\n"
                "_thread.start_new_thread(lambda *a, **k: (out.append((a, k)), lock.release()), (1,), {'b': 2})\nlock.acquire()\nprint(out)\n"
                "for bad in ((1, ()), (print, 3), (print, (), 3)):\n    try:\n        _thread.start_new_thread(*bad)\n    except TypeError:\n        print('TypeError')\n"
                "print(_thread.start_new_thread.__name__)\nfrom concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(1) as pool:\n    print(pool.submit(pow, 2, 3).result())\n"
                "    try:\n        pool.submit()\n    except TypeError:\n        print('TypeError')\n"
                "class Mine(threading.Thread):\n    def run(self):\n        out.append(self.name)\nthread = Mine(name='mine')\nthread.start()\nthread.join()\nout[-1]")
        plain = self.host.run(code)
        told = self.host.start(code).reply()
        self.assertEqual((told["stdout"], told["result"], told["stderr"]), (plain["stdout"], plain["result"], plain["stderr"]))
        self.assertEqual(told["result"], {"text/plain": "'mine'"})

    def test_a_traceback_of_a_thread_shows_nothing_of_ours(self):
        code = "import threading\nthread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()"
        plain, told = self.host.run(code)["stderr"], self.host.start(code).reply()["stderr"]
        self.assertIn("ZeroDivisionError", told)
        self.assertEqual(told.count("File "), plain.count("File "))
        self.assertNotIn("_farcell", told)

    def test_a_context_that_somebody_made_from_nothing(self):
        if sys.version_info < (3, 7):
            code = IMPORT + "echo(1)"
        else:
            code = IMPORT + "import contextvars\ncontextvars.Context().run(echo, 1)"
        cell = self.host.start(code)
        cell.serve(1)
        self.assertEqual(cell.value(), "1")

    def test_nothing_is_patched_before_there_are_tools(self):
        ask = "import _thread, sys\n(_thread.start_new_thread.__class__.__name__, 'threading' in sys.modules)"
        before = self.host.run(ask)["result"]["text/plain"]
        self.assertTrue(before.startswith("('builtin_function_or_method'"), before)
        after = self.host.start("import sys\n'asyncio' in sys.modules, 'concurrent.futures' in sys.modules").reply()["result"]["text/plain"]
        self.assertEqual(after, "(False, False)")


class OwnersOverPipes(Owners, unittest.TestCase):
    make = PipeHost


class OwnersOverFiles(Owners, unittest.TestCase):
    make = FileHost
