"""Calls of tools from a cell: values, errors, threads and tasks, what is imported from where; over pipes and over files."""

import sys
import time
import unittest

from tests.supervisor_kit import until
from tests.tools_kit import ANYTHING, IMPORT, SEARCH, FileHost, PipeHost, WithHost, bad, good, offer

NEWER = sys.version_info >= (3, 8)  # where a cell can await


class Calls(WithHost):
    def test_a_call_gives_the_value(self):
        cell = self.host.start(IMPORT + "echo({'a': [1, None, '\u20ac']})")
        self.assertEqual(cell.call(), {"call": 1, "number": cell.number, "token": cell.token, "name": "echo", "arguments": {"value": {"a": [1, None, "\u20ac"]}}})
        cell.answer({"call": 1}, good({"b": [1.5, True]}))
        reply = cell.reply()
        self.assertEqual(reply["result"], {"text/plain": "{'b': [1.5, True]}"})
        self.assertEqual(reply["tools"], {"calls": 1, "errors": []})

    def test_what_was_printed_before_a_call_stands_before_it(self):
        cell = self.host.start(IMPORT + "print('before')\necho(1)\nprint('after')")
        self.host.wait_printed(cell, b"before")
        cell.serve(1)
        self.assertEqual(cell.reply()["stdout"], "before\nafter\n")

    def test_an_error_is_raised_and_told(self):
        code = IMPORT + "try:\n    echo(1)\nexcept ToolError as error:\n    told = error\nprint(told, told.tool, told.kind, told.message, told.__cause__)\necho(2)"
        cell = self.host.start(code)
        cell.serve(2, lambda arguments: bad("no %d" % arguments["value"]))
        reply = cell.reply()
        self.assertEqual(reply["stdout"], "echo: no 1 echo tool no 1 None\n")
        self.assertEqual((reply["status"], reply["error"]["name"], reply["error"]["message"]), ("error", "farcell_tools.ToolError", "echo: no 2"))
        self.assertEqual(reply["error"]["traceback"].count("File "), 1, reply["error"]["traceback"])
        self.assertEqual(reply["tools"], {"calls": 2, "errors": [{"call": 1, "name": "echo", "kind": "tool", "message": "no 1"}, {"call": 2, "name": "echo", "kind": "tool", "message": "no 2"}]})

    def test_the_reply_tells_of_twenty_errors_and_clips_them(self):
        cell = self.host.start(IMPORT + "for each in range(30):\n    try:\n        echo(each)\n    except ToolError:\n        pass")
        cell.serve(30, lambda arguments: bad("x" * 9000))
        told = cell.reply()["tools"]
        self.assertEqual((told["calls"], len(told["errors"]), len(told["errors"][0]["message"])), (30, 20, 500))

    def test_ten_threads_get_their_own_answers(self):
        cell = self.host.start(IMPORT + "import threading\ngot = {}\nthreads = [threading.Thread(target=lambda n=n: got.update({n: echo(n)})) for n in range(10)]\n"
                               "for each in threads: each.start()\nfor each in threads: each.join()\ngot == {n: n * 2 for n in range(10)}")
        calls = [cell.call() for _ in range(10)]
        for call in reversed(calls):
            cell.answer(call, good(call["arguments"]["value"] * 2))
        self.assertEqual(cell.value(), "True")

    def test_more_calls_than_can_be_under_way_wait_for_their_turn(self):
        cell = self.host.start(IMPORT + "import threading\ngot = set()\nthreads = [threading.Thread(target=lambda n=n: got.add(echo(n))) for n in range(150)]\n"
                               "for each in threads: each.start()\nfor each in threads: each.join()\nlen(got)")
        held = [cell.call() for _ in range(64)]
        for call in held:
            cell.answer(call, good(call["arguments"]["value"]))
        cell.serve(86)
        self.assertEqual(cell.value(), "150")

    @unittest.skipUnless(NEWER, "await at the top of a cell needs 3.8")
    def test_tasks(self):
        cell = self.host.start(IMPORT + "import asyncio\nsum(await asyncio.gather(*[echo.aio(n) for n in range(20)]))")
        calls = [cell.call() for _ in range(20)]
        for call in reversed(calls):
            cell.answer(call, good(call["arguments"]["value"]))
        self.assertEqual(cell.value(), "190")

    def test_a_loop_of_the_cell(self):
        cell = self.host.start(IMPORT + "import asyncio\nasync def main():\n    return await asyncio.gather(*[echo.aio(n) for n in range(100)])\n"
                               "loop = asyncio.new_event_loop()\nasyncio.set_event_loop(loop)\nsum(loop.run_until_complete(main()))")
        cell.serve(100)
        self.assertEqual(cell.value(), "4950")

    def test_a_task_that_is_cancelled_gives_its_call_up(self):
        cell = self.host.start(IMPORT + "import asyncio\nasync def main():\n    task = asyncio.ensure_future(echo.aio(1))\n    await asyncio.sleep(0)\n    await echo.aio('now')\n    task.cancel()\n"
                               "    try:\n        await task\n    except asyncio.CancelledError:\n        return await echo.aio(2)\n"
                               "loop = asyncio.new_event_loop()\nasyncio.set_event_loop(loop)\nloop.run_until_complete(main())")
        calls = {call["arguments"]["value"]: call for call in (cell.call(), cell.call())}
        cell.answer(calls["now"], good(None))
        self.assertEqual(cell.given_up(), calls[1]["call"])
        cell.answer(calls[1], good("late"))
        cell.serve(1)
        reply = cell.reply()
        self.assertEqual(reply["result"], {"text/plain": "2"})
        told = {"call": calls[1]["call"], "name": "echo", "kind": "cancelled", "message": "the caller gave the call up"}
        self.assertEqual(reply["tools"], {"calls": 3, "errors": [told]})

    def test_ten_megabytes_each_way(self):
        cell = self.host.start(IMPORT + "got = echo('x' * 10000000)\nlen(got), got[:2], got[-2:]")
        self.assertEqual(len(cell.call()["arguments"]["value"]), 10000000)
        cell.answer({"call": 1}, good("\u20ac" + "y" * 9999998 + "z"))
        self.assertEqual(cell.value(), repr((10000000, "\u20acy", "yz")))

    def test_a_tool_that_is_slower_than_any_timeout_of_sockets(self):
        cell = self.host.start(IMPORT + "import socket, time\nsocket.setdefaulttimeout(0.01)\nbegan = time.monotonic()\necho(1), echo(2)")
        call = cell.call()
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 0.1)
        cell.answer(call, good(7))
        cell.serve(1)
        self.assertEqual(cell.value(), "(7, 2)")

    def test_a_forked_child_of_the_cell_may_call(self):
        cell = self.host.start(IMPORT + "import os\nread, write = os.pipe()\nif os.fork() == 0:\n    os.write(write, repr(echo('from the child')).encode())\n    os._exit(0)\n"
                               "os.close(write)\nos.wait()\nos.read(read, 100)")
        cell.serve(1)
        self.assertEqual(cell.value(), '''b"'from the child'"''')

    def test_answers_that_cannot_be_read(self):
        cell = self.host.start(IMPORT + "for n in range(4):\n    try:\n        print(echo(n))\n    except ToolError as error:\n        print(error.kind, error.message)")
        answers = [{"ok": True}, {"ok": False, "error": "x"}, {}, {"ok": 1, "value": 1}]
        for answer in answers:
            cell.answer(cell.call(), answer)
        self.assertEqual(cell.reply()["stdout"], "tool its answer is none that can be read\n" * 4)

    def test_what_does_not_fit_the_signature_does_not_travel_and_the_next_call_works(self):
        cell = self.host.start(IMPORT + "for bad in (lambda: echo(), lambda: search(1), lambda: echo(float('nan')), lambda: echo('\\ud800'), lambda: echo(print)):\n"
                               "    try:\n        bad()\n    except (TypeError, ValueError) as error:\n        print(type(error).__name__)\necho(5)")
        cell.serve(1)
        reply = cell.reply()
        self.assertEqual((reply["stdout"].split(), reply["result"]), (["TypeError", "TypeError", "ValueError", "ValueError", "TypeError"], {"text/plain": "5"}))
        self.assertEqual(reply["tools"]["calls"], 1)

    def test_an_answer_twice_and_answers_to_nobody(self):
        cell = self.host.start(IMPORT + "[echo(n) for n in range(3)]")
        for _ in range(3):
            call = cell.call()
            self.host.answer(cell, 77, good("nobody's"))
            cell.answer(call, good(call["call"]))
            cell.answer(call, good("again"))
        self.assertEqual(cell.value(), "[1, 2, 3]")


class Modules(WithHost):
    def test_the_same_list_gives_the_same_module(self):
        first = self.host.start("import farcell_tools\nkept = farcell_tools\nfrom farcell_tools import echo\necho(1)")
        first.serve(1)
        first.reply()
        second = self.host.start("import farcell_tools\nprint(kept is farcell_tools)\necho(2)")
        second.serve(1)
        reply = second.reply()
        self.assertEqual((reply["stdout"], reply["result"]), ("True\n", {"text/plain": "2"}))
        self.assertEqual(reply["kernel"]["state"], "kept")

    def test_another_list_gives_another_one_and_old_functions_say_what_is_wrong(self):
        self.assertEqual(self.host.start("import farcell_tools as old\nfrom farcell_tools import echo, search, ToolError").reply()["status"], "ok")
        changed = dict(SEARCH, schema={"type": "object", "properties": {"query": {}}})
        more = dict(ANYTHING, name="more")
        cell = self.host.start("import farcell_tools\nprint(old is farcell_tools, farcell_tools.__all__)\nfrom farcell_tools import more\n"
                               "for each in (lambda: echo(1), lambda: search('x'), lambda: more(2)):\n"
                               "    try:\n        print(each())\n    except ToolError as error:\n        print(error.kind, error)", offer(changed, more))
        cell.serve(1)
        self.assertEqual(cell.reply()["stdout"].splitlines(), [
            "False ['search', 'more', 'ToolError']", "unknown echo: this cell has no tool of that name (any more)",
            "unknown search: the tool takes other arguments now: import it anew", "2"])

    def test_a_cell_without_tools(self):
        reply = self.host.run("import farcell_tools")
        self.assertEqual((reply["error"]["name"], reply["error"]["message"]), ("ModuleNotFoundError", "this cell has no tools, so there is no module 'farcell_tools'"))
        self.assertEqual(self.host.start("from farcell_tools import *").reply()["status"], "ok")
        reply = self.host.run("from farcell_tools import echo")
        self.assertEqual(reply["error"]["name"], "ModuleNotFoundError")
        reply = self.host.run("try:\n    echo(1)\nexcept ToolError as error:\n    print(error.kind, error)")
        self.assertEqual((reply["stdout"], reply["tools"]), ("refused echo: this cell has no tools\n", {"calls": 0, "errors": []}))

    def test_a_name_that_a_real_module_has_is_refused_and_the_cell_does_not_run(self):
        for name in ("json", "antigravity", "mine"):
            self.host.run("import sys, types\nsys.modules['mine'] = types.ModuleType('mine')")
            reply = self.host.start("print('ran')", offer(**{"import": name})).reply()
            self.assertEqual((reply["status"], reply["stdout"], reply["error"]["kind"]), ("error", "", "spawn"))
            self.assertEqual(reply["error"]["message"], "cannot have the tools: tools cannot be imported from %r: there is a module of that name" % name)
        self.assertEqual(self.host.run("import json\njson.dumps(1)")["result"], {"text/plain": "'1'"})

    def test_another_name(self):
        cell = self.host.start("from host import echo\nimport host\necho(1), host.ToolError.__module__", offer(**{"import": "host"}))
        cell.serve(1)
        self.assertEqual(cell.value(), "(1, 'host')")
        self.assertEqual(self.host.run("import host")["error"]["message"], "this cell has no tools, so there is no module 'host'")

    def test_a_tool_that_is_not_there(self):
        cell = self.host.start("import farcell_tools\ntry:\n    farcell_tools.nothing\nexcept AttributeError as error:\n    print(error)\nfrom farcell_tools import nothing")
        reply = cell.reply()
        self.assertEqual((reply["stdout"], reply["error"]["name"]), ("there is no tool 'nothing'; this cell has: echo, search, ToolError\n", "ImportError"))

    def test_errors_and_functions_pickle(self):
        cell = self.host.start(IMPORT + "import pickle\nagain = pickle.loads(pickle.dumps(ToolError('echo', 'tool', 'x')))\n"
                               "print(type(again) is ToolError, again.tool, again.kind, again.message, pickle.loads(pickle.dumps(echo)) is echo)\n"
                               "from concurrent.futures import ProcessPoolExecutor\nimport multiprocessing\n"
                               "with ProcessPoolExecutor(1, **({'mp_context': multiprocessing.get_context('fork')} if __import__('sys').version_info >= (3, 7) else {})) as pool:\n"
                               "    print(pool.submit(echo, 3).result())\n    try:\n        pool.submit(echo, 4).result()\n    except ToolError as error:\n        print(error)")
        cell.serve(2, lambda arguments: good(3) if arguments["value"] == 3 else bad("four"))
        self.assertEqual(cell.reply()["stdout"], "True echo tool x True\n3\necho: four\n")

    def test_bad_fields_are_refused_by_name(self):
        for fields, words in (({"token": "xy"}, "token"), ({"import": "a.b"}, "tools.import"), ({"import": "class"}, "tools.import"), ({"patience_ms": -1}, "patience_ms"),
                              ({"list": [{"name": "a b"}]}, "tools.list"), ({"list": [dict(ANYTHING, name="ToolError")]}, "tools.list"), ({"list": {}}, "tools.list"),
                              ({"list": [ANYTHING, ANYTHING]}, "the same name")):
            reply = self.host.start("1", dict(offer(), **fields)).reply()
            self.assertEqual(reply["status"], "refused", fields)
            self.assertIn(words, reply["error"]["message"])
        self.assertEqual(self.host.run("1")["status"], "ok")


class CallsOverPipes(Calls, unittest.TestCase):
    make = PipeHost


class CallsOverFiles(Calls, unittest.TestCase):
    make = FileHost

    def test_no_answer_is_left_behind(self):
        cell = self.host.start(IMPORT + "[echo(n) for n in range(5)]")
        cell.serve(5)
        cell.reply()
        self.assertEqual(self.host.left(), [])


class ModulesOverPipes(Modules, unittest.TestCase):
    make = PipeHost


class ModulesOverFiles(Modules, unittest.TestCase):
    make = FileHost
