"""Deadlines, interrupts, resets, stops and idling."""

import json
import os
import signal
import time
import unittest

from tests.supervisor_kit import FileKernel, PipeKernel, alive, until

STUBBORN = "import signal, time\nfor s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)\nprint('ready')\n"


class Kernel(unittest.TestCase):
    def setUp(self):
        self.kernel = FileKernel()
        self.addCleanup(self.kernel.close)


class Deadlines(Kernel):
    def test_a_deadline_keeps_the_state(self):
        self.kernel.run("x = 41")
        reply = self.kernel.run("print('before')\nimport time\ntime.sleep(60)", timeout_ms=400)
        self.assertEqual((reply["status"], reply["stdout"], reply["kernel"]["state"], reply["exit_code"]), ("timeout", "before\n", "kept", None))
        error = reply["error"]
        self.assertEqual((error["kind"], error["name"], error["message"]), ("deadline", "Timeout", "the cell ran longer than 0.4 s"))
        self.assertIn("time.sleep(60)", error["traceback"])
        self.assertLess(reply["duration_ms"], 5000)
        self.assertEqual(self.kernel.run("x + 1")["result"], {"text/plain": "42"})

    def test_a_busy_loop_ends_too(self):
        reply = self.kernel.run("while True: pass", timeout_ms=300)
        self.assertEqual(reply["status"], "timeout")

    def test_a_cell_that_catches_the_interrupt_and_ends_is_a_timeout(self):
        reply = self.kernel.run("import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: y = 5\n'done'", timeout_ms=300)
        self.assertEqual((reply["status"], reply["kernel"]["state"]), ("timeout", "fresh"))
        self.assertEqual(self.kernel.run("y")["result"], {"text/plain": "5"})

    def test_who_ignores_sigint_is_terminated(self):
        reply = self.kernel.run("import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: time.sleep(1)", timeout_ms=300)
        self.assertEqual((reply["status"], reply["signal"], reply["kernel"]["state"]), ("timeout", "SIGTERM", "reset"))
        self.assertEqual(self.kernel.run("1 + 1")["status"], "ok")

    def test_who_ignores_everything_is_killed_with_its_children(self):
        number = self.kernel.send(STUBBORN + "import subprocess\np = subprocess.Popen(['sleep', '600'], start_new_session=True)\nprint(p.pid)\n"
                                  "while True: pass", timeout_ms=1500)
        self.kernel.wait_printed(number, b"\n")
        reply = self.kernel.reply(number)
        self.assertEqual((reply["status"], reply["signal"], reply["kernel"]["state"]), ("timeout", "SIGKILL", "reset"))
        self.assertLess(reply["duration_ms"], 8000)
        child = int(reply["stdout"].split()[1])
        until(lambda: not alive(child), 10)

    def test_a_stopped_interpreter_is_ended(self):
        reply = self.kernel.run("import os, signal\nprint(1)\nos.kill(os.getpid(), signal.SIGSTOP)", timeout_ms=300)
        self.assertEqual((reply["status"], reply["signal"], reply["stdout"]), ("timeout", "SIGKILL", "1\n"))

    def test_the_deadline_counts_from_the_start_of_the_cell(self):
        first = self.kernel.send("import time; time.sleep(1)")
        second = self.kernel.send("'second'", timeout_ms=500)
        self.assertEqual(self.kernel.reply(first)["status"], "ok")
        reply = self.kernel.reply(second)
        self.assertEqual(reply["status"], "ok")
        self.assertGreater(reply["queued_ms"], 500)

    def test_no_deadline(self):
        self.assertEqual(self.kernel.run("1", timeout_ms=None)["status"], "ok")


# What `wait` does, in C and with no line of Python between them: it lets the SIGINT in that has been sent meanwhile, and sleeps.
JUST_BEFORE_A_WAIT = """
import ctypes, functools, operator, signal, time
libc = ctypes.CDLL(None)
nothing = ctypes.create_string_buffer(1024)
libc.sigemptyset(nothing)
let_in = functools.partial(libc.pthread_sigmask, int(signal.SIG_SETMASK), nothing, None)
wait = functools.partial(list, map(operator.methodcaller('__call__'), [let_in, functools.partial(time.sleep, 60)]))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print('go', flush=True)
while signal.SIGINT not in signal.sigpending(): pass
"""


class Interrupts(Kernel):
    def test_one_that_comes_just_before_a_wait_ends_that_wait(self):
        kernel = FileKernel(grace_ms=60000)
        self.addCleanup(kernel.close)
        kernel.run("x = 1")
        number = kernel.send(JUST_BEFORE_A_WAIT + "wait()")
        kernel.wait_printed(number, b"go")
        kernel.control("interrupt", number=number)
        reply = kernel.reply(number)
        self.assertEqual((reply["status"], reply["kernel"]["state"]), ("interrupted", "kept"))
        self.assertLess(reply["duration_ms"], 30000)
        # One that goes on after it is left alone: what ends its waits does no more than that.
        number = kernel.send(JUST_BEFORE_A_WAIT + "try: wait()\nexcept KeyboardInterrupt: time.sleep(0.3); x += 1\nx")
        kernel.wait_printed(number, b"go")
        kernel.control("interrupt", number=number)
        reply = kernel.reply(number)
        self.assertEqual((reply["status"], reply["result"]), ("interrupted", {"text/plain": "2"}), reply)

    def test_an_interrupt_keeps_the_state_and_hits_nobody_else(self):
        self.kernel.run("x = 1")
        number = self.kernel.send("print('go')\nimport time\ntime.sleep(60)")
        self.kernel.wait_printed(number, b"go")
        self.assertEqual(self.kernel.control("interrupt", number=number), {"v": 1, "done": True, "detail": "SIGINT sent"})
        reply = self.kernel.reply(number)
        self.assertEqual((reply["status"], reply["kernel"]["state"], reply["error"]["name"]), ("interrupted", "kept", "KeyboardInterrupt"))
        self.assertEqual(self.kernel.run("x")["result"], {"text/plain": "1"})

    def test_there_is_nothing_to_interrupt(self):
        self.assertEqual(self.kernel.control("interrupt")["done"], False)
        number = self.kernel.send("print('go')\nimport time\ntime.sleep(60)")
        self.kernel.wait_printed(number, b"go")
        answer = self.kernel.control("interrupt", number=number + 1)
        self.assertEqual(answer["done"], False)
        self.assertIn("another cell", answer["detail"])
        self.kernel.control("interrupt", number=number)
        self.assertEqual(self.kernel.reply(number)["status"], "interrupted")

    def test_a_second_interrupt_goes_further(self):
        kernel = FileKernel(grace_ms=60000)
        self.addCleanup(kernel.close)
        number = kernel.send(STUBBORN + "while True: pass")
        kernel.wait_printed(number, b"ready")
        self.assertEqual([kernel.control("interrupt")["detail"] for _ in range(3)], ["SIGINT sent", "SIGTERM sent", "SIGKILL sent"])
        reply = kernel.reply(number)
        self.assertEqual((reply["status"], reply["signal"], reply["kernel"]["state"]), ("interrupted", "SIGKILL", "reset"))

    def test_a_thousand_interrupts_never_hit_the_next_cell(self):
        for round_ in range(40):
            number = self.kernel.send("import time\nfor _ in range(3): time.sleep(0.001)")
            self.kernel.wait_running(number) if round_ % 2 else None
            self.kernel.control("interrupt")
            self.assertIn(self.kernel.reply(number)["status"], ("ok", "interrupted"))
            self.assertEqual(self.kernel.run("%d" % round_)["result"], {"text/plain": str(round_)})


class Resets(Kernel):
    def test_a_request_can_ask_for_a_new_interpreter(self):
        self.kernel.run("x = 1")
        reply = self.kernel.run("'x' in globals()", reset=True)
        self.assertEqual((reply["result"], reply["kernel"]["state"], reply["kernel"]["generation"]), ({"text/plain": "False"}, "reset", 2))

    def test_a_reset_of_a_new_kernel_costs_nothing(self):
        reply = self.kernel.run("1", reset=True)
        self.assertEqual((reply["kernel"]["state"], reply["kernel"]["generation"]), ("fresh", 1))

    def test_a_reset_while_a_cell_runs(self):
        number = self.kernel.send("print('go')\nimport time\ntime.sleep(60)")
        self.kernel.wait_printed(number, b"go")
        self.assertEqual(self.kernel.control("reset")["detail"], "generation 2")
        reply = self.kernel.reply(number)
        self.assertEqual((reply["status"], reply["kernel"]["state"], reply["stdout"]), ("interrupted", "reset", "go\n"))
        self.assertEqual(self.kernel.run("1")["kernel"]["state"], "fresh")

    def test_a_background_child_lives_until_the_reset(self):
        reply = self.kernel.run("import subprocess\np = subprocess.Popen(['sleep', '600'])\np.pid")
        self.assertLess(reply["duration_ms"], 5000)
        pid = int(reply["result"]["text/plain"])
        self.kernel.run("1")
        self.assertTrue(alive(pid))
        self.kernel.control("reset")
        until(lambda: not alive(pid), 10)

    def test_the_working_directory_and_environment_of_the_spec_come_back(self):
        kernel = FileKernel(env={"FARCELL_TEST": "yes"})
        self.addCleanup(kernel.close)
        code = "import os; (os.getcwd(), os.environ['FARCELL_TEST'], os.environ['FARCELL_KERNEL'])"
        before = kernel.run(code)["result"]
        self.assertIn("yes", before["text/plain"])
        kernel.run("os.chdir('/usr'); os.environ['FARCELL_TEST'] = 'no'")
        self.assertEqual(kernel.run(code, reset=True)["result"], before)


class Stops(Kernel):
    def ended(self):
        self.assertEqual(self.kernel.process.wait(20), 0)
        return json.loads(self.kernel.read("ended.json").decode())["why"]

    def test_a_stop_answers_everybody_first(self):
        running = self.kernel.send("import subprocess\np = subprocess.Popen(['sleep', '600'], start_new_session=True)\nprint(p.pid)\np.wait()")
        waiting = self.kernel.send("2")
        self.kernel.wait_printed(running, b"\n")
        self.assertEqual(self.kernel.control("stop", if_idle=True)["detail"], "busy")
        self.assertEqual(self.kernel.control("stop")["done"], True)
        self.assertEqual(self.ended(), "stopped")
        reply = self.kernel.reply(running)
        self.assertEqual((reply["status"], reply["error"]["message"]), ("died", "the kernel was stopped while the cell ran"))
        self.assertFalse(alive(int(reply["stdout"])))
        self.assertEqual(self.kernel.reply(waiting)["status"], "refused")

    def test_stop_if_idle(self):
        self.kernel.run("1")
        self.assertEqual(self.kernel.control("stop", if_idle=True)["done"], True)
        self.assertEqual(self.ended(), "stopped")

    def test_sigterm_is_a_stop(self):
        number = self.kernel.send("print('go')\nimport time\ntime.sleep(60)")
        self.kernel.wait_printed(number, b"go")
        os.kill(self.kernel.pid, signal.SIGTERM)
        self.assertEqual(self.ended(), "terminated")
        self.assertEqual(self.kernel.reply(number)["status"], "died")

    def test_other_signals_do_nothing(self):
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGQUIT):
            os.kill(self.kernel.pid, number)
        self.assertEqual(self.kernel.run("1")["status"], "ok")

    def test_a_killed_supervisor_takes_the_interpreter_along(self):
        self.kernel.run("1")
        interpreter = self.kernel.record["interpreter_pid"]
        self.kernel.process.kill()
        self.kernel.process.wait()
        until(lambda: not alive(interpreter), 10)


class Idling(unittest.TestCase):
    def test_an_idle_kernel_leaves_by_itself(self):
        kernel = FileKernel(idle_ms=300)
        self.addCleanup(kernel.close)
        self.assertEqual(kernel.process.wait(20), 0)
        self.assertEqual(json.loads(kernel.read("ended.json").decode())["why"], "idle")
        self.assertFalse(alive(kernel.answer["kernel"]["interpreter_pid"]))

    def test_a_cell_longer_than_the_idle_time_does_not_end_it(self):
        kernel = FileKernel(idle_ms=1500)
        self.addCleanup(kernel.close)
        self.assertEqual(kernel.run("import time; time.sleep(2)")["status"], "ok")
        answered = time.monotonic()
        self.assertEqual(kernel.run("1")["status"], "ok")
        kernel.process.wait(20)
        self.assertGreater(time.monotonic() - answered, 1.3)

    def test_waiting_costs_nothing(self):
        kernel = FileKernel()
        self.addCleanup(kernel.close)
        kernel.run("1")

        def switches():
            with open("/proc/%d/status" % kernel.pid) as file:
                return [int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches")][0]
        before = switches()
        end = time.monotonic() + 1
        until(lambda: time.monotonic() > end)
        self.assertLessEqual(switches() - before, 1)


class Stdio(unittest.TestCase):
    def setUp(self):
        self.kernel = PipeKernel()
        self.addCleanup(self.kernel.close)

    def test_timeouts_and_interrupts_over_pipes(self):
        self.kernel.run("x = 1")
        reply = self.kernel.run("import time; time.sleep(60)", timeout_ms=300)
        self.assertEqual((reply["status"], reply["kernel"]["state"]), ("timeout", "kept"))
        cell = self.kernel.send("print('go'); time.sleep(60)")
        self.kernel.next(b"O")
        self.assertEqual(self.kernel.control("interrupt")["done"], True)
        self.assertEqual(self.kernel.reply(cell)["status"], "interrupted")
        self.assertEqual(self.kernel.run("x")["result"], {"text/plain": "1"})
        self.assertEqual(self.kernel.control("reset")["done"], True)
        self.assertEqual(self.kernel.run("'x' in globals()")["result"], {"text/plain": "False"})

    def test_stop_over_pipes(self):
        cell = self.kernel.send("print('go'); import time; time.sleep(60)")
        waiting = self.kernel.send("2")
        self.kernel.next(b"O")
        self.assertEqual(self.kernel.control("stop"), {"done": True, "detail": "stopped", "ref": 1})
        self.assertEqual(self.kernel.reply(cell)["status"], "died")
        self.assertEqual(self.kernel.reply(waiting)["status"], "refused")
        self.assertEqual(self.kernel.process.wait(20), 0)


if __name__ == "__main__":
    unittest.main()
