"""How calls come to an end before they are answered: interrupts, deadlines and their holds, the end of the cell, of the interpreter, of the host's patience."""

import os
import signal
import sys
import time
import unittest

from tests.supervisor_kit import until
from tests.tools_kit import IMPORT, FileHost, PipeHost, WithHost, good, offer

LATER = "import threading\ndef later(n):\n    try:\n        told.append(echo(n))\n    except ToolError as error:\n        told.append((error.kind, error.message))\ntold = []\n"


class Ends(WithHost):
    def interpreter(self):
        return self.host.run("import os\nos.getpid()")["result"]["text/plain"]

    def works(self):
        cell = self.host.start(IMPORT + "echo('works')")
        cell.serve(1)
        self.assertEqual(cell.value(), "'works'")

    def test_an_interrupt_ends_a_cell_that_waits_for_a_tool(self):
        cell = self.host.start(IMPORT + "echo(1)")
        cell.call()
        began = time.monotonic()
        self.assertTrue(self.host.control("interrupt")["done"])
        reply = cell.reply()
        self.assertLess(time.monotonic() - began, 5)
        self.assertEqual((reply["status"], reply["error"]["name"], reply["kernel"]["state"]), ("interrupted", "KeyboardInterrupt", "fresh"))
        self.works()

    def test_a_cell_that_catches_the_interrupt_gives_its_call_up_and_may_call_again(self):
        cell = self.host.start(IMPORT + "try:\n    echo(1)\nexcept KeyboardInterrupt:\n    got = echo(2)\ngot")
        call = cell.call()
        self.host.control("interrupt")
        self.assertEqual(cell.given_up(), 1)
        cell.answer(call, good("late"))
        cell.serve(1)
        self.assertEqual(cell.reply()["result"], {"text/plain": "2"})

    def test_an_interrupt_of_a_cell_that_awaits_a_tool(self):
        cell = self.host.start(IMPORT + "import asyncio\nloop = asyncio.new_event_loop()\nasyncio.set_event_loop(loop)\nloop.run_until_complete(echo.aio(1))")
        cell.call()
        self.host.control("interrupt")
        self.assertEqual(cell.reply()["status"], "interrupted")
        self.works()

    @unittest.skipUnless(sys.version_info >= (3, 8), "await at the top of a cell needs 3.8")
    def test_an_interrupt_of_an_await_at_the_top(self):
        cell = self.host.start(IMPORT + "import asyncio\ntry:\n    await echo.aio(1)\nexcept (asyncio.CancelledError, KeyboardInterrupt):\n    got = await echo.aio(2)\ngot")
        cell.call()
        self.host.control("interrupt")
        self.assertEqual(cell.given_up(), 1)
        cell.serve(1)
        self.assertEqual(cell.reply()["result"], {"text/plain": "2"})
        self.works()

    def test_interrupts_at_any_moment_tear_no_frame(self):
        pid = int(self.interpreter())
        cell = self.host.start(IMPORT + "import time\ncaught = whole = 0\nend = time.monotonic() + 60\nwhile caught < 30 and time.monotonic() < end:\n    try:\n        if len(echo('x' * 300000)) == 300000:\n"
                               "            whole += 1\n    except KeyboardInterrupt:\n        caught += 1\ncaught, whole > 0, echo('last')")
        count = 0
        while True:
            call = cell.call()
            if call["arguments"]["value"] == "last":
                break
            count += 1
            if count % 3:
                os.kill(pid, signal.SIGINT)
            cell.answer(call, good(call["arguments"]["value"]))
        cell.answer(call, good("last"))
        self.assertEqual(cell.value(), "(30, True, 'last')")

    def test_the_deadline_ends_a_cell_that_waits_for_a_tool(self):
        cell = self.host.start(IMPORT + "echo(1)", timeout_ms=200)
        cell.call()
        reply = cell.reply()
        self.assertEqual((reply["status"], reply["kernel"]["state"]), ("timeout", "fresh"))
        self.works()

    def test_calls_that_are_left_at_the_end_of_the_cell_are_refused(self):
        cell = self.host.start(IMPORT + LATER + "threads = [threading.Thread(target=later, args=(n,)) for n in range(3)]\nfor each in threads: each.start()\necho(9)")
        calls = [cell.call() for _ in range(4)]
        last = [call for call in calls if call["arguments"]["value"] == 9][0]
        cell.answer(last, good(None))
        reply = cell.reply()
        self.assertEqual((reply["status"], reply["tools"]["calls"], len(reply["tools"]["errors"])), ("ok", 4, 3))
        self.assertEqual(reply["tools"]["errors"][0]["kind"], "refused")
        for call in calls:
            cell.answer(call, good("late"))
        following = self.host.start(IMPORT + "for each in threads: each.join(60)\nprint(sorted(told))\necho(1)")
        following.serve(1)
        self.assertEqual(following.reply()["stdout"], repr([("refused", "the cell has ended")] * 3) + "\n")

    def test_an_interpreter_that_dies_during_calls(self):
        cell = self.host.start(IMPORT + LATER + "threading.Thread(target=later, args=(1,)).start()\nimport os\necho(2)\nos._exit(3)")
        calls = [cell.call() for _ in range(2)]
        cell.answer([call for call in calls if call["arguments"]["value"] == 2][0], good(0))
        reply = cell.reply()
        self.assertEqual((reply["status"], reply["exit_code"], reply["tools"]["calls"]), ("died", 3, 2))
        # Whichever is seen first: the end of the process, or that of its descriptors.
        self.assertIn([error["kind"] for error in reply["tools"]["errors"]], (["refused"], ["cancelled"]))
        for call in calls:
            cell.answer(call, good("late"))
        self.works()

    def test_an_interpreter_that_is_killed_while_it_calls(self):
        pid = int(self.interpreter())
        cell = self.host.start(IMPORT + "echo('x' * 3000000)")
        cell.call()
        os.kill(pid, signal.SIGKILL)
        self.assertEqual(cell.reply()["status"], "died")
        self.works()

    def test_a_reset_during_a_call(self):
        cell = self.host.start(IMPORT + "echo(1)")
        cell.call()
        self.assertTrue(self.host.control("reset")["done"])
        self.assertEqual(cell.reply()["status"], "interrupted")
        self.works()

    def test_a_stop_during_a_call(self):
        cell = self.host.start(IMPORT + "echo(1)")
        cell.call()
        self.host.control("stop")
        self.assertEqual(cell.reply()["status"], "died")

    def test_a_cell_with_tools_and_a_reset(self):
        self.works()
        cell = self.host.start("from farcell_tools import echo\necho(1)", reset=True)
        cell.serve(1)
        reply = cell.reply()
        self.assertEqual((reply["result"], reply["kernel"]["state"]), ({"text/plain": "1"}, "reset"))

    # -- the clock -------------------------------------------------------------------------------------------------------

    def passed(self, seconds):
        end = time.monotonic() + seconds
        until(lambda: time.monotonic() > end)

    def held(self, timeout_ms=3000, **fields):
        """A cell that waits for a tool, with its clock held."""
        cell = self.host.start(IMPORT + "echo(1)", timeout_ms=timeout_ms)
        call = cell.call()
        answer = self.host.control("hold", number=cell.number, id=cell.id, **dict({"for_ms": 60000}, **fields))
        self.assertEqual((answer["done"], answer["detail"]), (True, "held"))
        return cell, call

    def test_a_clock_that_is_held_stands_still(self):
        cell, call = self.held(3000)
        self.passed(3.2)
        self.assertEqual(self.host.control("resume", number=cell.number, id=cell.id)["detail"], "resumed")
        cell.answer(call, good(1))
        self.assertEqual(cell.value(), "1")

    def test_it_goes_on_after_that_with_what_was_left(self):
        cell, _ = self.held(3000)
        self.passed(1.0)
        began = time.monotonic()
        self.host.control("resume", number=cell.number, id=cell.id)
        self.assertEqual(cell.reply()["status"], "timeout")
        self.assertGreater(time.monotonic() - began, 0.5)
        self.assertLess(time.monotonic() - began, 20)

    def test_each_hold_needs_a_resume(self):
        cell, call = self.held(3000)
        self.host.control("hold", number=cell.number, id=cell.id, for_ms=60000)
        self.assertTrue(self.host.control("resume", number=cell.number, id=cell.id)["done"])
        self.passed(3.2)
        self.assertTrue(self.host.control("resume", number=cell.number, id=cell.id)["done"])
        self.assertEqual(self.host.control("resume", number=cell.number, id=cell.id)["detail"], "nothing is held")
        cell.answer(call, good(1))
        self.assertEqual(cell.value(), "1")

    def test_a_hold_ends_by_itself_and_the_log_tells(self):
        cell, _ = self.held(3000, for_ms=300)
        self.assertEqual(cell.reply()["status"], "timeout")
        self.assertIn("was held for as long as it may be", self.host.log())

    def test_a_cell_whose_clock_is_held_can_be_interrupted(self):
        cell, _ = self.held()
        self.host.control("interrupt")
        self.assertEqual(cell.reply()["status"], "interrupted")
        self.works()

    def test_a_hold_of_a_cell_without_a_deadline(self):
        cell, call = self.held(None)
        self.assertTrue(self.host.control("resume", number=cell.number, id=cell.id)["done"])
        cell.answer(call, good(1))
        self.assertEqual(cell.value(), "1")

    def test_holds_that_cannot_be(self):
        cell = self.host.start(IMPORT + "echo(1)")
        call = cell.call()
        for fields, words in (({"number": cell.number + 1, "id": cell.id, "for_ms": 5}, "another cell runs"), ({"number": cell.number, "id": "0" * 32, "for_ms": 5}, "another cell runs"),
                              ({"number": cell.number, "id": cell.id}, "for_ms"), ({"number": cell.number, "id": cell.id, "for_ms": -1}, "for_ms"), ({"number": cell.number, "id": cell.id, "for_ms": "5"}, "for_ms")):
            answer = self.host.control("hold", **fields)
            self.assertFalse(answer["done"], fields)
            self.assertIn(words, answer["detail"])
        cell.answer(call, good(1))
        self.assertEqual(cell.value(), "1")
        self.assertEqual(self.host.control("hold", number=cell.number, id=cell.id, for_ms=5)["detail"], "no cell runs")


class EndsOverPipes(Ends, unittest.TestCase):
    make = PipeHost

    def test_a_host_that_is_gone_ends_the_kernel(self):
        cell = self.host.start(IMPORT + "echo(1)")
        cell.call()  # close() sees to it that nothing outlives the pipes

    def test_patience_does_not_run_out_while_the_host_is_there(self):
        cell = self.host.start(IMPORT + "echo(1)", offer(patience_ms=50))
        call = cell.call()
        self.passed(0.5)
        cell.answer(call, good(1))
        self.assertEqual(cell.value(), "1")


class EndsOverFiles(Ends, unittest.TestCase):
    make = FileHost

    def test_a_call_that_nobody_waits_for_comes_to_nothing(self):
        cell = self.host.start(IMPORT + "try:\n    echo(1)\nexcept ToolError as error:\n    print(error.kind)", offer(patience_ms=200))
        self.assertEqual(cell.given_up(), 1)
        reply = cell.reply()
        self.assertEqual((reply["status"], reply["stdout"]), ("ok", "no-host\n"))
        self.assertEqual(reply["tools"]["errors"], [{"call": 1, "name": "echo", "kind": "no-host", "message": "nobody who could answer has waited for this cell for 0.2 s"}])

    def test_patience_counts_from_when_somebody_has_last_waited(self):
        path = self.host.kernel.path("waiters/w-%s-o" % os.urandom(8).hex())
        os.mkfifo(path)
        waiter = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        cell = self.host.start(IMPORT + "echo(1)", offer(patience_ms=200))
        cell.call()
        self.passed(1.0)
        self.assertEqual(self.host._record(cell.number, "w", 0), None)
        os.close(waiter)
        self.assertEqual(cell.given_up(), 1)
        self.assertEqual(cell.reply()["error"]["name"], "farcell_tools.ToolError")

    def test_who_waits_for_output_is_woken_at_once_by_a_call(self):
        path = self.host.kernel.path("waiters/w-%s-o" % os.urandom(8).hex())
        os.mkfifo(path)
        waiter = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self.addCleanup(os.close, waiter)
        cell = self.host.start(IMPORT + "times = []\nimport time\nfor n in range(40):\n    began = time.monotonic()\n    print(n)\n    echo(n)\n    times.append(time.monotonic() - began)\nsorted(times)[3] < 0.009")
        cell.serve(40)
        self.assertEqual(cell.value(), "True")

    def test_answers_that_come_too_late_are_swept_up(self):
        cell = self.host.start(IMPORT + "1")
        cell.reply()
        with open(self.host.kernel.path("rpc/res_%06d_1.json" % cell.number), "w") as file:
            file.write(cell.id + "\n{}")
        self.host.kernel.wake()
        self.works()
        self.assertEqual(self.host.left(), [])
