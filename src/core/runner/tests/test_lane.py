"""The lane: what the interpreter answers by itself, and everything that it must leave to the supervisor."""

import json
import os
import random
import select
import signal
import sys
import time
import unittest

from tests.supervisor_kit import PATIENCE, PipeKernel, alive, request, until
from _farcell import frames

DIRECT, VIA = "direct", "via"


class LaneKernel(PipeKernel):
    """A host that uses the lane for every cell that it runs."""

    def __init__(self, **fields):
        PipeKernel.__init__(self, **fields)
        told = self.answer["lane"]
        self.into = os.open("/proc/%d/fd/%d" % (told["pid"], told["request"]), os.O_WRONLY | os.O_CLOEXEC)
        self.out = os.open("/proc/%d/fd/%d" % (told["pid"], told["reply"]), os.O_RDONLY | os.O_CLOEXEC)
        assert [os.fstat(fd).st_ino for fd in (self.into, self.out)] == told["inodes"]
        self.lane_reader = frames.Reader()
        self.answered = []
        self.seq = 0

    def put(self, code, **fields):
        """A cell into the lane; (id, seq)."""
        self.seq += 1
        value = request(code, seq=self.seq, **fields)
        os.write(self.into, frames.pack(b"Q", json.dumps(value).encode()))
        return value["id"], self.seq

    def hand_over(self, cell):
        self.push(b"L", {"id": cell[0], "seq": cell[1]})

    def started(self, cell):
        self.next(b"S", lambda payload: json.loads(payload.decode())["id"] == cell[0])

    def outcome(self, cell, patience=0.002):
        """(reply, which way it came), as a host waits for it."""
        poll = select.poll()
        poll.register(self.out, select.POLLIN)
        poll.register(self.out_fd, select.POLLIN)
        end = time.monotonic() + PATIENCE
        wait = PATIENCE if patience is None else patience
        while time.monotonic() < end:
            ready = poll.poll(wait * 1000)
            if not ready and patience is not None:
                self.hand_over(cell)
                wait = PATIENCE
            for fd, _ in ready:
                data = os.read(fd, 1 << 20)
                assert data, "the supervisor is gone"
                if fd == self.out:
                    self.answered.extend(self.lane_reader.feed(data))
                else:
                    self.arrived.extend(self.reader.feed(data))
            for way, heap in ((DIRECT, self.answered), (VIA, self.arrived)):
                for index, (kind, payload) in enumerate(heap):
                    if kind == b"R" and json.loads(payload.decode())["cell"]["id"] == cell[0]:
                        del heap[index]
                        return json.loads(payload.decode()), way
        raise AssertionError("no reply")

    def lane(self, code, patience=0.002, **fields):
        return self.outcome(self.put(code, **fields), patience)

    def close(self):
        os.close(self.into)
        os.close(self.out)
        PipeKernel.close(self)


@unittest.skipUnless(os.path.exists("/proc/self/fd"), "needs /proc")
class Lane(unittest.TestCase):
    make = LaneKernel

    def setUp(self):
        self.kernel = self.make()
        self.addCleanup(self.kernel.close)
        self.assertEqual(self.kernel.lane("x = 0")[0]["kernel"]["state"], "fresh")

    def quiet(self, code="x += 1"):
        """A quiet cell; again where the machine was so slow that it was handed over."""
        for _ in range(50):
            reply, way = self.kernel.lane(code, 1.0)
            if way == DIRECT:
                return reply
        raise AssertionError("never direct")

    def test_a_quiet_cell_is_answered_directly_as_the_supervisor_would(self):
        direct = self.quiet()
        ordinary = self.kernel.run("x += 1")
        self.assertEqual(sorted(direct), sorted(ordinary))
        for reply in (direct, ordinary):
            del reply["duration_ms"], reply["queued_ms"]
        self.assertEqual(ordinary["cell"].pop("number"), direct["cell"].pop("number") + 1)
        del direct["cell"]["id"], ordinary["cell"]["id"]
        self.assertEqual(direct, ordinary)

    def test_a_quiet_cell_leaves_the_supervisor_asleep(self):
        def switches():
            with open("/proc/%d/status" % self.kernel.pid) as file:
                return [line for line in file if "ctxt_switches" in line]
        self.quiet()
        time.sleep(0.1)
        before = switches()
        for _ in range(20):
            self.quiet()
        self.assertEqual(switches(), before)

    def test_a_value_and_one_that_is_too_large(self):
        self.assertEqual(self.quiet("'%d {} \u20ac'")["result"], {"text/plain": "'%d {} \u20ac'"})
        reply, way = self.kernel.lane("'x' * 10000")
        self.assertEqual((len(reply["result"]["text/plain"]), way), (10002, VIA))

    def test_output_of_all_kinds_comes_with_its_cell(self):
        for code, out, err in (("print('a')", "a\n", ""), ("import os; os.system('echo b')", "b\n", ""),
                               ("import sys; print('c', file=sys.stderr)", "", "c\n"),
                               ("import os, time; os.write(1, b'd'); time.sleep(0.05)", "d", ""),
                               ("import os, time; time.sleep(0.05); os.write(1, b'e')", "e", "")):
            reply, way = self.kernel.lane(code)
            self.assertEqual((reply["stdout"], reply["stderr"], way), (out, err, VIA))
            self.assertEqual(self.quiet()["stdout"], "")

    def test_a_display_comes_with_its_cell(self):
        reply, way = self.kernel.lane("display('hello')")
        self.assertEqual((reply["displays"], way), ([{"text/plain": "'hello'"}], VIA))
        self.assertEqual(self.quiet()["displays"], [])

    def test_an_error_is_told(self):
        reply, _ = self.kernel.lane("1 / 0")
        self.assertEqual((reply["status"], reply["error"]["name"], reply["exit_code"]), ("error", "ZeroDivisionError", 1))

    def test_late_output_goes_out_with_the_next_cell(self):
        for pause in (0.0, 0.3):
            self.kernel.lane("import threading, os; t = threading.Timer(0.1, os.write, (1, b'late')); t.start()")
            if pause:
                time.sleep(pause)
                reply, way = self.kernel.lane("x += 1")
                self.assertEqual((reply["stdout"], way), ("late", VIA))
            else:
                said, end = "", time.monotonic() + PATIENCE
                while not said and time.monotonic() < end:
                    said = self.kernel.lane("x += 1")[0]["stdout"]
                self.assertEqual(said, "late")
            self.assertEqual(self.quiet()["stdout"], "")

    def test_deaths_are_replies(self):
        for code in ("import os; os._exit(3)", "import os, time; time.sleep(0.05); os._exit(3)"):
            reply, _ = self.kernel.lane(code)
            self.assertEqual((reply["status"], reply["exit_code"], reply["kernel"]["state"]), ("died", 3, "reset"))
            reply, _ = self.kernel.lane("'x' in globals()")
            self.assertEqual((reply["result"], reply["kernel"]["state"]), ({"text/plain": "False"}, "fresh"))
        self.assertEqual(self.quiet("1")["kernel"]["generation"], 3)

    def test_a_death_between_two_cells_is_told_by_the_next(self):
        self.quiet()
        os.kill(self.kernel.answer["kernel"]["interpreter_pid"], signal.SIGKILL)
        reply, _ = self.kernel.lane("1")
        if reply["kernel"]["state"] != "lost":
            self.assertEqual(reply["status"], "died")

    def test_a_deadline_holds(self):
        for code in ("import time; time.sleep(60)", "while True: pass"):
            began = time.monotonic()
            reply, way = self.kernel.lane(code, timeout_ms=300)
            self.assertEqual((reply["status"], reply["error"]["name"], way), ("timeout", "Timeout", VIA))
            self.assertTrue(0.3 <= time.monotonic() - began < 5)
        self.assertEqual(self.quiet("x")["result"], {"text/plain": "0"})

    def test_an_interrupt_reaches_its_cell_and_no_other(self):
        cell = self.kernel.put("import time; time.sleep(60)")
        self.kernel.hand_over(cell)
        self.kernel.started(cell)
        self.assertEqual(self.kernel.control("interrupt")["done"], True)
        self.assertEqual(self.kernel.outcome(cell)[0]["status"], "interrupted")
        self.assertEqual(self.kernel.control("interrupt")["done"], False)
        for _ in range(100):
            self.assertEqual(self.kernel.lane("x += 1")[0]["status"], "ok")

    def test_interrupts_at_the_very_end_never_hit_the_next_cell(self):
        for number in range(150):
            cell = self.kernel.put("import time; time.sleep(%f)" % random.uniform(0.001, 0.004))
            self.kernel.hand_over(cell)
            time.sleep(random.uniform(0.001, 0.004))
            self.kernel.push(b"C", {"do": "interrupt", "ref": number})
            self.assertIn(self.kernel.outcome(cell)[0]["status"], ("ok", "interrupted"))
            self.kernel.next(b"D")
            self.assertEqual(self.kernel.lane("x = 1")[0]["status"], "ok")

    def test_an_idle_interpreter_ignores_sigint(self):
        os.kill(self.kernel.answer["kernel"]["interpreter_pid"], signal.SIGINT)
        self.assertEqual(self.kernel.lane("x += 1")[0]["status"], "ok")

    def test_a_stopped_interpreter_does_not_escape_its_deadline(self):
        pid = self.kernel.answer["kernel"]["interpreter_pid"]
        os.kill(pid, signal.SIGSTOP)
        reply, way = self.kernel.lane("x += 1", timeout_ms=300)
        self.assertEqual((reply["status"], reply["kernel"]["state"], way), ("timeout", "reset", VIA))
        until(lambda: not alive(pid))
        self.assertEqual(self.kernel.lane("x = 1")[0]["kernel"]["generation"], 2)
        cell = self.kernel.put("import time\nwhile True: time.sleep(0.001)", timeout_ms=400)
        self.kernel.hand_over(cell)
        self.kernel.started(cell)
        os.kill(self.kernel.control("probe")["kernel"]["interpreter_pid"], signal.SIGSTOP)
        self.assertEqual(self.kernel.outcome(cell)[0]["status"], "timeout")

    def test_a_probe_knows_the_cell_in_the_lane(self):
        cell = self.kernel.put("import time; time.sleep(0.5)")
        self.kernel.hand_over(cell)
        self.kernel.started(cell)
        self.assertEqual(self.kernel.control("probe")["running"]["id"], cell[0])
        waiting = self.kernel.send("x + 1")
        self.assertEqual(json.loads(self.kernel.next(b"A").decode())["ahead"], 1)
        self.assertEqual(self.kernel.outcome(cell, None)[0]["status"], "ok")
        self.assertEqual(self.kernel.reply(waiting)["result"], {"text/plain": "1"})
        self.assertEqual(self.kernel.control("probe")["running"], None)

    def test_a_probe_without_a_hand_over_knows_it_too(self):
        cell = self.kernel.put("import time; time.sleep(0.5)")
        time.sleep(0.2)
        self.assertEqual(self.kernel.control("probe")["running"]["id"], cell[0])
        self.assertEqual(self.kernel.outcome(cell, None)[0]["status"], "ok")

    def test_a_reset_ends_the_cell_in_the_lane(self):
        cell = self.kernel.put("import time; time.sleep(60)")
        self.kernel.hand_over(cell)
        self.kernel.started(cell)
        self.assertEqual(self.kernel.control("reset")["done"], True)
        self.assertEqual(self.kernel.outcome(cell)[0]["status"], "interrupted")
        self.assertEqual(self.kernel.lane("'x' in globals()")[0]["result"], {"text/plain": "False"})

    def test_a_cell_runs_once(self):
        value = request("x += 1", seq=7)
        for _ in range(2):
            os.write(self.kernel.into, frames.pack(b"Q", json.dumps(value).encode()))
            time.sleep(0.1)
        self.assertEqual(self.kernel.run("x")["result"], {"text/plain": "1"})

    def test_a_cell_that_nobody_knows_has_died(self):
        self.kernel.hand_over(("ab" * 16, self.kernel.seq + 1))
        self.assertEqual(json.loads(self.kernel.next(b"R").decode())["status"], "died")
        self.kernel.seq += 1
        self.assertEqual(self.quiet()["status"], "ok")

    def test_numbers_go_on_whichever_way_a_cell_takes(self):
        last = self.quiet()["cell"]["number"]
        for step in range(1, 100):
            run = random.choice((lambda: self.kernel.run("1"), lambda: self.kernel.lane("1")[0], lambda: self.kernel.lane("print(1)")[0]))
            self.assertEqual(run()["cell"]["number"], last + step)

    @unittest.skipIf(sys.version_info < (3, 8), "a cell cannot await")
    def test_tasks_between_cells_go_on_and_give_way(self):
        self.kernel.lane("import asyncio\nn = 0\nasync def tick():\n    global n\n    while True:\n        n += 1\n        await asyncio.sleep(0.001)\n"
                         "task = asyncio.ensure_future(tick()); await asyncio.sleep(0)")
        time.sleep(0.2)
        self.assertGreater(int(self.kernel.lane("n")[0]["result"]["text/plain"]), 20)
        self.assertEqual(self.quiet("x")["result"], {"text/plain": "0"})
        self.assertEqual(self.kernel.run("task.cancel()")["status"], "ok")

    def test_a_fork_does_not_answer(self):
        reply, _ = self.kernel.lane("import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n'parent' if pid else 'child'")
        self.assertEqual(reply["result"], {"text/plain": "'parent'"})
        self.assertEqual(self.quiet("x")["result"], {"text/plain": "0"})

    def test_a_cell_that_closes_everything_costs_only_itself(self):
        self.assertEqual(self.kernel.lane("import os; os.closerange(3, 4096)")[0]["status"], "died")
        self.assertEqual(self.kernel.lane("x = 5")[0]["status"], "ok")

    def test_the_idle_clock_knows_cells_in_the_lane(self):
        kernel = self.make(idle_ms=400)
        self.addCleanup(kernel.close)
        kernel.lane("x = 0")
        for number in range(1, 15):
            time.sleep(0.1)
            self.assertEqual(kernel.lane("x += 1; x")[0]["result"], {"text/plain": str(number)})
        self.assertEqual(kernel.process.wait(20), 0)

    def test_two_thousand_quiet_and_printing_cells_in_turns(self):
        direct = 0
        for number in range(1, 2001):
            reply, way = self.kernel.lane("x += 1; x" if number % 2 else "x += 1; print(x)")
            direct += way == DIRECT
            said = reply["result"]["text/plain"] + "\n" if number % 2 else reply["stdout"]
            self.assertEqual((reply["status"], said, reply["cell"]["number"]), ("ok", "%d\n" % number, number + 1), reply)
        self.assertGreater(direct, 500)

    def test_adoption_races_with_the_end(self):
        ways = {DIRECT: 0, VIA: 0}
        for number in range(1, 1001):
            code = "import time; time.sleep(%f); x += 1; x" % random.uniform(0.0015, 0.0025)
            reply, way = self.kernel.lane(code)
            ways[way] += 1
            self.assertEqual((reply["status"], reply["result"], reply["cell"]["number"]), ("ok", {"text/plain": str(number)}, number + 1))
        self.assertEqual([payload for kind, payload in self.kernel.arrived if kind == b"R"], [])
        self.assertTrue(all(ways.values()), ways)


if __name__ == "__main__":
    unittest.main()
