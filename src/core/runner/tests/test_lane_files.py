"""The lane of a kernel in a directory: the rules of any lane, and those that files and other couriers add to them."""

import json
import os
import random
import select
import signal
import sys
import time
import unittest

from tests import test_lane
from tests.lane_kit import DIRECT, OPTIONS, VIA, Courier, FileLaneKernel, command
from tests.supervisor_kit import PATIENCE, RUNNER, FileKernel, alive, request, until
from _farcell import cellfiles, frames, lane_client, lane_files, lane_page as page, osdep, shared_lane

# A supervisor that is told of every second cell, at the moment when the next one may be put.
_WAKEFUL = """
import runpy, sys
sys.path.insert(0, %r)
from _farcell import shared_lane
shared_lane._IDS = 4
runpy.run_path(sys.path[0] + "/farcell_kernel.py", run_name="__main__")
"""

needs_lane = unittest.skipUnless(osdep.LINUX and os.uname().machine in ("x86_64", "i686") and os.path.exists("/proc/self/fd"), "there are no lanes here")


@needs_lane
class Rules(test_lane.Lane):
    """Those of test_lane.py, asked through files. What only pipes have is left out."""

    make = FileLaneKernel
    test_a_cell_that_nobody_knows_has_died = None

    def test_interrupts_at_the_very_end_never_hit_the_next_cell(self):
        for _ in range(100):
            cell = self.kernel.put("import time; time.sleep(%f)" % random.uniform(0.001, 0.004))
            self.kernel.hand_over(cell)
            self.kernel.started(cell)
            self.kernel.control("interrupt")
            self.assertIn(self.kernel.outcome(cell)[0]["status"], ("ok", "interrupted"))
            self.assertEqual(self.kernel.lane("x = 1")[0]["status"], "ok")

    def test_a_supervisor_that_wakes_at_each_end_adopts_what_comes_next(self):
        path = os.path.join(self.kernel.base, "wakeful.py")
        with open(path, "w") as file:
            file.write(_WAKEFUL % RUNNER)
        kernel = FileLaneKernel(program=lambda directory: [sys.executable, path, directory])
        self.addCleanup(kernel.close)
        kernel.lane("x = 0")
        for number in range(1, 2001):
            reply = kernel.lane("x += 1; x" if number % 2 else "x += 1; print(x)")[0]
            said = reply["result"]["text/plain"] + "\n" if number % 2 else reply["stdout"]
            self.assertEqual((reply["status"], said, reply["cell"]["number"]), ("ok", "%d\n" % number, number + 1), reply)

    def test_what_was_answered_is_not_taken_for_the_next_one(self):
        directory = self.kernel.base
        lane = shared_lane.make(directory)
        lane.words[page.NUMBER], lane.words[page.STATE] = 8, page.VIA
        self.assertEqual(lane.adopt(7, lambda: True), page.SENT)
        self.assertEqual(lane.adopt(8, lambda: True), page.VIA)

    def test_a_probe_knows_the_cell_in_the_lane(self):
        cell = self.kernel.put("import time; time.sleep(0.5)")
        self.kernel.hand_over(cell)
        self.kernel.started(cell)
        self.assertEqual(command(self.kernel.dir, "probe")["running"]["id"], cell[0])
        value = request("x + 1")
        number = self.kernel.courier.ship(value)
        self.assertEqual(command(self.kernel.dir, "probe")["waiting"], 1)
        self.assertEqual(self.kernel.outcome(cell)[0]["status"], "ok")
        self.assertEqual(self.kernel.courier.settle(number, value["id"])["result"], {"text/plain": "1"})
        self.assertEqual(command(self.kernel.dir, "probe")["running"], None)

    def test_a_probe_without_a_hand_over_knows_it_too(self):
        cell = self.kernel.put("import time; time.sleep(0.5)")
        self.kernel.wake()
        until(lambda: command(self.kernel.dir, "probe")["running"], what="a cell that runs")
        self.assertEqual(command(self.kernel.dir, "probe")["running"]["id"], cell[0])
        self.assertEqual(self.kernel.outcome(cell, None)[0]["status"], "ok")

    def test_a_cell_runs_once(self):
        value = request("x += 1")
        for lane, again in ((True, True), (True, False), (False, True)):
            value = request("x += 1")
            for way in (lane, again):
                if way:
                    self.kernel.courier.put(value)
                    said = self.kernel.courier.outcome(self.kernel.courier.lane.number, value["id"])[0]["status"]
                else:
                    said = self.kernel.courier.settle(self.kernel.courier.ship(value), value["id"])["status"]
            self.assertEqual(said, "refused")
        self.assertEqual(self.kernel.run("x")["result"], {"text/plain": "3"})

    def test_adoption_races_with_the_end(self):
        ways = {DIRECT: 0, VIA: 0}
        for number in range(1, 501):
            reply, way = self.kernel.lane("import time; time.sleep(%f); x += 1; x" % random.uniform(0.001, 0.0025))
            ways[way] += 1
            self.assertEqual((reply["status"], reply["result"], reply["cell"]["number"]), ("ok", {"text/plain": str(number)}, number + 1))
        self.assertTrue(all(ways.values()), ways)


@needs_lane
class Files(unittest.TestCase):
    """Where its cells are, and when."""

    def setUp(self):
        self.kernel = FileLaneKernel()
        self.addCleanup(self.kernel.close)
        self.courier = self.kernel.courier
        self.lane = self.courier.lane
        self.kernel.lane("x = 0")

    def quiet(self, code="x += 1"):
        """(reply, id) of a quiet cell, put in without any acknowledgement; again where the machine was so slow that it was handed over."""
        for _ in range(50):
            value = request(code)
            self.courier.put(value)
            reply, way = self.courier.outcome(self.lane.number, value["id"], 1.0)
            if way == DIRECT:
                return reply, value["id"]
        raise AssertionError("never direct")

    def words(self):
        fd = os.open(self.kernel.path("lane"), os.O_RDWR)
        self.addCleanup(os.close, fd)
        return lane_files.Page(fd)

    def value(self, code="x"):
        return int(self.kernel.run(code)["result"]["text/plain"])

    def test_the_record_tells_where_it_is(self):
        self.assertEqual(sorted(self.kernel.record["lane"]), ["inodes", "pid", "reply", "request"])
        info = os.lstat(self.kernel.path("lane"))
        self.assertEqual((info.st_mode & 0o777, info.st_size), (0o600, page.SIZE))

    def test_a_quiet_cell_has_no_files_until_somebody_asks(self):
        reply, cell_id = self.quiet()
        number = reply["cell"]["number"]
        self.assertEqual(self.kernel.files_of(number), [])
        for fields in ({"id": cell_id}, {"number": number}, {}):
            answer = command(self.kernel.dir, "wait", wait=OPTIONS, **fields)
            self.assertEqual((answer["fate"], answer["number"], answer["id"], answer["reply"]), ("settled", number, cell_id, reply))
        self.assertEqual(self.kernel.files_of(number), ["res"])
        command(self.kernel.dir, "ack", numbers=[number])
        self.assertEqual(self.kernel.files_of(number), [])
        self.assertEqual(command(self.kernel.dir, "wait", wait=OPTIONS, id=cell_id)["fate"], "unknown")

    def test_a_reply_is_looked_for_where_the_one_before_was_quick(self):
        self.lane._eager = True
        gate = self.kernel.path("gate")
        value = request("import os, time\nwhile not os.path.exists(%r): time.sleep(0.001)" % gate)
        self.courier.put(value)
        self.assertFalse(self.lane.comes_soon())
        self.assertFalse(self.lane._eager, "it takes long")
        until(lambda: time.monotonic() > self.lane._put_at + lane_client._BRISK)
        open(gate, "w").close()
        self.assertEqual(self.courier.outcome(self.lane.number, value["id"], 1.0)[0]["status"], "ok")
        self.assertFalse(self.lane.comes_soon(), "the one before took long")
        value = request("x += 1")
        self.courier.put(value)
        select.select([self.lane.reply_fd], [], [])
        self.lane._eager = True
        self.assertTrue(self.lane.comes_soon())
        self.assertEqual(self.courier.outcome(self.lane.number, value["id"], 1.0)[0]["status"], "ok")

    def test_a_probe_and_a_list_tell_of_a_reply_in_the_page(self):
        number = self.quiet()[0]["cell"]["number"]
        self.assertIn(number, command(self.kernel.dir, "probe")["replies"])

    def test_a_reply_that_is_acknowledged_never_becomes_a_file(self):
        for how in ("offer", "command"):
            reply, cell_id = self.quiet()
            number = reply["cell"]["number"]
            if how == "offer":
                self.courier.put(request("x"), [number])
                self.courier.outcome(self.lane.number, None, 1.0)
            else:
                command(self.kernel.dir, "ack", numbers=[number])
                self.quiet()
            self.assertEqual(self.kernel.files_of(number), [])
            self.assertNotIn(number, command(self.kernel.dir, "probe")["replies"])
            self.assertEqual(command(self.kernel.dir, "wait", wait=OPTIONS, id=cell_id)["fate"], "unknown")

    def test_one_that_is_not_is_kept_before_the_next_cell(self):
        replies = [self.quiet("x += 1; x") for _ in range(5)]
        for reply, cell_id in replies[:-1]:
            self.assertEqual(self.kernel.files_of(reply["cell"]["number"]), ["res"])
        for reply, cell_id in replies:
            self.assertEqual(command(self.kernel.dir, "wait", wait=OPTIONS, id=cell_id)["reply"], reply)

    def test_a_reply_in_the_page_outlives_everybody(self):
        reply, cell_id = self.quiet()
        os.kill(self.kernel.pid, signal.SIGKILL)
        self.kernel.process.wait(PATIENCE)
        answer = command(self.kernel.dir, "wait", wait=OPTIONS, id=cell_id)
        self.assertEqual((answer["fate"], answer["reply"]), ("settled", reply))

    def test_acknowledgements_of_files_go_with_an_offer(self):
        number = self.kernel.run("print(1)")["cell"]["number"]
        self.assertEqual(self.kernel.files_of(number), ["out", "res"])
        self.courier.put(request("x"), [number])
        self.courier.outcome(self.lane.number, None, 1.0)
        self.assertEqual(self.kernel.files_of(number), [])

    def test_a_long_cell_gets_the_files_of_any(self):
        value = request("import time; print('hello', flush=True); time.sleep(60)")
        self.courier.put(value)
        number = self.lane.number
        handed = self.lane.hand_over()
        until(handed.arrived)
        self.assertEqual(cellfiles.look(self.kernel.dir, number).fate, "running")
        self.assertEqual(cellfiles.find(self.kernel.dir, value["id"]), number)
        self.kernel.wait_printed(number, b"hello\n")
        self.assertEqual(self.kernel.control("interrupt", number=number)["done"], True)
        reply = self.courier.settle(number, value["id"])
        self.assertEqual((reply["status"], reply["stdout"]), ("interrupted", "hello\n"))
        self.assertEqual(self.kernel.files_of(number), ["out", "res"])
        self.assertEqual([name for name in os.listdir(self.kernel.path("cells")) if name.startswith("ctl")], [])

    def test_a_dead_supervisor_leaves_the_cell_to_who_asks(self):
        for handed in (False, True):
            kernel = FileLaneKernel()
            self.addCleanup(kernel.close)
            kernel.lane("x = 0")
            cell = kernel.put("import time; time.sleep(60)")
            until(lambda: kernel.courier.lane._words[page.NUMBER] == cell[1])
            if handed:
                kernel.hand_over(cell)
                kernel.started(cell)
            os.kill(kernel.pid, signal.SIGKILL)
            kernel.process.wait(PATIENCE)
            answer = command(kernel.dir, "wait", wait=OPTIONS, id=cell[0])
            self.assertEqual((answer["fate"], answer["reply"]["status"], answer["number"]), ("dead", "died", cell[1]))
            self.assertNotIn("began", answer["reply"]["error"]["message"])
            command(kernel.dir, "ack", numbers=[cell[1]])
            self.assertEqual(command(kernel.dir, "wait", wait=OPTIONS, id=cell[0])["fate"], "unknown")

    def test_a_cell_that_had_not_begun_when_all_died_has_not_run(self):
        os.kill(self.kernel.record["interpreter_pid"], signal.SIGSTOP)
        cell = self.kernel.put("x = 1")
        os.kill(self.kernel.pid, signal.SIGKILL)
        self.kernel.process.wait(PATIENCE)
        answer = command(self.kernel.dir, "wait", wait=OPTIONS, id=cell[0])
        self.assertEqual((answer["fate"], answer["reply"]["status"]), ("dead", "died"))
        self.assertIn("before this cell began", answer["reply"]["error"]["message"])

    def test_the_courier_hears_of_the_end_of_all(self):
        self.kernel.put("import time; time.sleep(60)")
        os.kill(self.kernel.pid, signal.SIGKILL)
        until(lambda: self.lane.take_reply() is None and self.lane.ended)

    def test_a_cell_that_its_interpreter_took_and_never_began_has_died(self):
        # As it stands between the read and the first word of the cell: that is too short to be hit by a signal.
        value = request("x = 1")
        words = self.lane._words
        self.lane._memory[page.PUT_ID * 8:page.PUT_ID * 8 + 32] = value["id"].encode()
        words[page.PUT] = number = self.lane._shelf.take_number()
        words[page.STATE] = page.TAKING
        os.kill(self.kernel.record["interpreter_pid"], signal.SIGKILL)
        reply = self.courier.settle(number, value["id"])
        self.assertEqual((reply["status"], reply["cell"]["id"]), ("died", value["id"]))
        self.assertEqual(self.quiet("1")[0]["kernel"]["generation"], 2)

    def test_a_stop_refuses_what_has_not_begun(self):
        os.kill(self.kernel.record["interpreter_pid"], signal.SIGSTOP)
        cell = self.kernel.put("x = 1")
        self.kernel.process.send_signal(signal.SIGTERM)
        self.kernel.process.wait(PATIENCE)
        answer = command(self.kernel.dir, "wait", wait=OPTIONS, id=cell[0])
        self.assertEqual((answer["fate"], answer["reply"]["status"], answer["reply"]["error"]["name"]), ("settled", "refused", "KernelStopped"))

    def test_what_is_not_simple_does_not_take_it(self):
        for fields in ({"cwd": "/"}, {"env": {"A": "b"}}, {"reset": True}, {"v": 2}, {"id": "x"}, {"echo": "none"}, {"timeout_ms": -1}, {"max_output": "1"},
                       {"timeout_ms": True}, {"timeout_ms": 10 ** 13}):
            self.assertFalse(self.lane.offer(request("1", **fields)), fields)
        self.assertFalse(self.lane.offer(request("'%s'" % ("x" * 4096))))
        longest = lane_client._ROOM - len(lane_client._compose(request("''")))
        for size, fits in ((longest, True), (longest + 1, False)):
            self.assertEqual(self.lane.offer(request("'%s'" % ("x" * size))), fits)
            if fits:
                self.assertEqual(len(self.courier.outcome(self.lane.number, None, 1.0)[0]["result"]["text/plain"]), size + 2)

    def test_text_of_all_kinds_arrives_as_it_was(self):
        for text in ("'\u20ac\U0001f600'", "'a\ud800b'", "'\0'", "'%d {} \\\\ \"'", "'\u2028'", "x\r\nx", "# \u00e9\n'%s'"):
            by_file = self.kernel.run(text)
            value = request(text)
            self.courier.put(value)
            by_lane = self.courier.outcome(self.lane.number, value["id"], 1.0)[0]
            self.assertEqual((by_lane["status"], by_lane["result"]), (by_file["status"], by_file["result"]), ascii(text))

    def test_a_page_that_was_cut_off_is_no_lane(self):
        kernel = FileKernel()
        self.addCleanup(kernel.close)
        other = kernel.path("other")
        with open(other, "wb") as file:
            file.write(b"\0" * 100)
        os.rename(other, kernel.path("lane"))
        self.assertEqual(lane_client.Lane.open(kernel.dir, kernel.record), None)
        self.assertFalse(lane_files.sync(kernel.dir, "ab" * 16))
        self.assertEqual(kernel.run("1 + 1")["result"], {"text/plain": "2"})

    def test_pipes_of_others_are_no_lane(self):
        record = self.kernel.record
        for lane in (None, {}, "x", dict(record["lane"], inodes=[1, 2]), dict(record["lane"], pid="self"), dict(record["lane"], pid=2 ** 30)):
            self.assertEqual(lane_client.Lane.open(self.kernel.dir, dict(record, lane=lane)), None)

    def test_a_file_system_that_promises_less_has_none(self):
        self.assertEqual(osdep.file_system("/proc"), "proc")
        self.assertEqual(osdep.file_system("/nowhere"), "")
        self.assertEqual(shared_lane.make("/proc"), None)

    def test_a_lost_counter_of_numbers_costs_the_lane_and_no_cell(self):
        number = self.quiet()[0]["cell"]["number"]
        os.unlink(self.kernel.path("cells/next"))
        self.assertEqual(self.kernel.lane("x")[0]["cell"]["number"], number + 1)
        for _ in range(5):
            self.assertEqual(self.kernel.lane("x += 1")[0]["status"], "ok")
        self.assertEqual(self.value(), 6)

    def test_ids_are_known_however_many_came_since(self):
        first, second = request("x += 1"), request("x += 1")
        self.courier.put(first)
        self.courier.outcome(self.lane.number, first["id"], 1.0)
        for _ in range(1200):
            self.kernel.lane("1", 1.0)
        self.assertEqual(self.courier.settle(self.courier.ship(first), first["id"])["status"], "refused")
        self.assertEqual(self.courier.settle(self.courier.ship(second), second["id"])["status"], "ok")
        self.kernel.control("reset")
        self.assertEqual(self.kernel.lane("x = 0")[0]["kernel"]["generation"], 2)
        for value in (first, second):
            self.courier.put(value)
            self.assertEqual(self.courier.outcome(self.lane.number, value["id"])[0]["status"], "refused")
        self.assertEqual(self.value(), 0)

    def test_an_unknown_id_costs_nobody_anything(self):
        self.quiet()
        before = os.listdir(self.kernel.path("cells"))
        self.assertEqual(command(self.kernel.dir, "wait", wait=OPTIONS, id="ab" * 16)["fate"], "unknown")
        self.assertEqual(command(self.kernel.dir, "wait", wait=OPTIONS, number=999)["fate"], "unknown")
        self.assertEqual(os.listdir(self.kernel.path("cells")), before)


@needs_lane
class Couriers(unittest.TestCase):
    """Two of them, and the steps of one taken apart."""

    def setUp(self):
        self.kernel = FileLaneKernel()
        self.addCleanup(self.kernel.close)
        self.first, self.second = self.kernel.courier, Courier(self.kernel)
        self.addCleanup(self.second.close)
        self.kernel.lane("x = 0")

    def announce(self, value):
        """What a courier does before the request is in the pipe; gives what is left to do."""
        lane = self.first.lane
        until(lambda: lane._lock() and (lane._is_at_rest() or lane._unlock()), what="a free lane")
        number = lane._shelf.take_number()
        lane._memory[page.PUT_ID * 8:page.PUT_ID * 8 + 32] = value["id"].encode()
        lane._words[page.PUT] = number
        text = json.dumps(dict(value, number=number)).encode()

        def put():
            os.write(lane._request_fd, frames.pack(b"Q", text))
            lane.number = number
        return put

    def test_one_at_a_time(self):
        value = request("x += 1")
        self.first.put(value)
        until(lambda: self.first.lane._words[page.REPLY] == self.first.lane.number, what="a reply")
        self.assertFalse(self.second.lane.offer(request("x += 1")))
        self.first.outcome(self.first.lane.number, value["id"])
        self.assertTrue(self.second.lane.offer(request("x += 1")))

    def test_a_cell_that_was_announced_and_never_put_is_passed_over(self):
        for asked in (False, True):
            value = request("x += 1")
            self.announce(value)
            self.first.lane._unlock()
            if asked:
                self.assertEqual(command(self.kernel.dir, "wait", id=value["id"], wait=OPTIONS)["fate"], "unknown")
            self.assertEqual(self.second.run("x += 1")[0]["status"], "ok")
            self.assertTrue(self.second.lane.offer(request("x += 1")))
            self.assertEqual(self.second.outcome(self.second.lane.number, None, 1.0)[0]["status"], "ok")
        self.assertEqual(self.kernel.run("x")["result"], {"text/plain": "4"})

    def test_one_that_is_asked_for_before_it_is_put_has_the_lane_all_the_same(self):
        value = request("import time; time.sleep(0.3); print('first')")
        put = self.announce(value)
        self.assertEqual(command(self.kernel.dir, "wait", id=value["id"], wait=OPTIONS)["fate"], "unknown")
        put()
        number = self.first.lane.number
        handed = self.first.lane.hand_over()
        until(handed.arrived)
        self.assertFalse(self.second.lane.offer(request("print('second')")))
        self.assertEqual(self.first.settle(number, value["id"])["stdout"], "first\n")

    def test_one_that_comes_among_cells_of_files_waits_its_turn(self):
        for number in range(30):
            value = request("import time; print('lane'); time.sleep(0.005)")
            put = self.announce(value)
            others = [request("import time; time.sleep(0.01); print(%d)" % each) for each in range(3)]
            shipped = [(self.second.ship(other), other["id"]) for other in others]
            self.kernel.wait_running(shipped[0][0])
            put()
            for each, (other, cell_id) in enumerate(shipped):
                self.assertEqual(self.second.settle(other, cell_id)["stdout"], "%d\n" % each)
            self.assertEqual(self.first.outcome(self.first.lane.number, value["id"])[0]["stdout"], "lane\n")

    def test_one_that_is_about_to_be_answered_is_not_unknown(self):
        for _ in range(10):
            value = request("print('hello')")
            self.first.put(value)
            os.kill(self.kernel.pid, signal.SIGSTOP)
            number = self.first.lane.number
            handed = self.first.lane.hand_over()
            until(lambda: (self.first.lane._words[page.NUMBER], self.first.lane._words[page.STATE]) == (number, page.VIA))
            os.kill(self.kernel.pid, signal.SIGCONT)
            while not handed.arrived():
                pass
            self.assertIn(cellfiles.look(self.kernel.dir, number).fate, ("settled", "running"))
            self.assertEqual(self.first.settle(number, value["id"])["stdout"], "hello\n")


if __name__ == "__main__":
    unittest.main()
