"""A kernel on two pipes: frames, queueing, and an end with its host."""

import json
import os
import signal
import subprocess
import sys
import time
import unittest

from tests.supervisor_kit import PROGRAM, RUNNER, PipeKernel, alive, request, spec, until
from _farcell import frames


class Kernel(unittest.TestCase):
    def setUp(self):
        self.kernel = PipeKernel()
        self.addCleanup(self.kernel.close)


class Frames(Kernel):
    def test_the_first_answer_is_that_of_spawn(self):
        answer = self.kernel.answer
        self.assertEqual((answer["ok"], answer["reused"], answer["previous"]), (True, False, None))
        self.assertEqual((answer["kernel"]["id"], answer["kernel"]["pid"], answer["kernel"]["dir"]), (self.kernel.spec["id"], self.kernel.pid, None))

    def test_start_and_reply(self):
        cell = self.kernel.send("import time; time.sleep(0.05)")  # of one that is over within a millisecond nothing but the reply is told
        started = json.loads(self.kernel.next(b"S").decode())
        self.assertEqual((started["number"], started["id"]), (1, cell))
        self.assertEqual(self.kernel.reply(cell)["cell"], {"id": cell, "number": 1})

    def test_a_cell_that_has_to_wait_is_told_how_long_the_queue_is(self):
        first = self.kernel.send("import time; time.sleep(0.5); x = []")
        others = [self.kernel.send("x.append(%d); x" % number) for number in (1, 2)]
        ahead = [json.loads(self.kernel.next(b"A").decode()) for _ in others]
        self.assertEqual([(each["number"], each["id"], each["ahead"]) for each in ahead], [(2, others[0], 1), (3, others[1], 2)])
        self.assertEqual(self.kernel.reply(first)["status"], "ok")
        self.assertEqual(self.kernel.reply(others[1])["result"], {"text/plain": "[1, 2]"})

    def test_partial_writes(self):
        data = frames.pack(b"Q", json.dumps(request("1 + 1")).encode())
        for index in range(len(data)):
            os.write(self.kernel.in_fd, data[index:index + 1])
        reply = json.loads(self.kernel.next(b"R").decode())
        self.assertEqual(reply["result"], {"text/plain": "2"})

    def test_many_at_once(self):
        data = b"".join(frames.pack(b"Q", json.dumps(request("%d" % number)).encode()) for number in range(300))
        frames.write_all(self.kernel.in_fd, data)
        replies = [json.loads(self.kernel.next(b"R").decode()) for _ in range(300)]
        self.assertEqual([reply["result"]["text/plain"] for reply in replies], [str(number) for number in range(300)])

    def test_large_code_and_large_result(self):
        reply = self.kernel.run("s = '" + "x" * 5000000 + "'\nlen(s)")
        self.assertEqual(reply["result"], {"text/plain": "5000000"})

    def test_a_host_that_gathers_output_is_told_it_once(self):
        gathering = PipeKernel(gather=True)
        self.addCleanup(gathering.close)
        code = "import sys; sys.stdout.write('\u20ac\\n' * 50000); sys.stderr.write('e' * 5000); 7"
        for kernel in (self.kernel, gathering):
            reply = kernel.run(code)
            printed = kernel.printed()
            self.assertEqual((printed["o"], printed["e"]), ("\u20ac\n".encode() * 50000, b"e" * 5000))
            self.assertEqual((reply["output"]["stdout_bytes"], reply["output"]["stderr_bytes"], reply["result"]), (200000, 5000, {"text/plain": "7"}))
            told = ("", "", True) if kernel is gathering else ("\u20ac\n" * 50000, "e" * 5000, None)
            self.assertEqual((reply["stdout"], reply["stderr"], reply.get("gathered")), told)
        for fields in ({"code": "print('x' * 9000)", "max_output": 8000}, {"code": "print('x' * 100)", "max_output": 8000}):
            self.assertTrue(gathering.run(**fields)["stdout"].startswith("x"))

    def test_a_long_request_means_the_same_as_a_short_one(self):
        fill = "# %s\n" % ("x" * (80 << 10))
        code = fill + "import os\nos.getcwd(), os.environ.get('LONG'), ascii('\u20ac\\n\\\\')"
        usual = request(code, cwd="/usr", env={"LONG": "a\udcff"})
        for form, fields in (("%s", {}), ("\n %s \n", {}), ("%s", {"more": [1]})):
            value = dict(usual, id=request("")["id"], **fields)
            frames.write_all(self.kernel.in_fd, frames.pack(b"Q", (form % json.dumps(value)).encode()))
            self.assertEqual(self.kernel.reply(value["id"])["result"], {"text/plain": repr(("/usr", "a\udcff", ascii("\u20ac\n\\")))}, (form, fields))
        least = {"v": 1, "id": request("")["id"], "code": fill + "1 + 1", "env": None}
        self.kernel.push(b"Q", least)
        self.assertEqual(self.kernel.reply(least["id"])["result"], {"text/plain": "2"})
        broken = self.kernel.run(fill + "1 + '\ud800'")
        self.assertEqual((broken["status"], broken["error"]["name"]), ("error", "UnicodeEncodeError"))
        refused = request(fill, timeout_ms="soon")
        self.kernel.push(b"Q", refused)
        self.assertEqual(self.kernel.reply(refused["id"])["status"], "refused")

    def test_garbage_is_refused_and_the_next_one_works(self):
        for payload in (b"", b"{", b"[]", b"\xff", b'{"v":1,"id":"zz"}'):
            frames.write_all(self.kernel.in_fd, frames.pack(b"Q", payload))
            reply = json.loads(self.kernel.next(b"R").decode())
            self.assertEqual((reply["status"], reply["error"]["kind"]), ("refused", "protocol"))
        for kind in (b"C", b"G", b"Z"):
            for payload in (b"", b"[]", b"{}", b'{"ref":"x","do":[]}', b'{"ref":-1}', b"\xff"):
                frames.write_all(self.kernel.in_fd, frames.pack(kind, payload))
        self.assertEqual(self.kernel.run("1 + 1")["result"], {"text/plain": "2"})

    def test_garbage_is_refused_without_waiting_for_its_turn(self):
        running = self.kernel.send("import time; time.sleep(60)")
        self.kernel.next(b"S")
        frames.write_all(self.kernel.in_fd, frames.pack(b"Q", b"{"))
        self.assertEqual(json.loads(self.kernel.next(b"R").decode())["status"], "refused")
        self.kernel.control("interrupt")
        self.kernel.reply(running)

    def test_numbers_beyond_all_bounds(self):
        for fields in ({"timeout_ms": 10 ** 400}, {"timeout_ms": 1e300}, {"max_output": 1.5}):
            self.assertEqual(self.kernel.run("1", **fields)["status"], "refused")
        self.assertEqual(self.kernel.run("1", timeout_ms=10 ** 12, max_output=10 ** 400)["status"], "ok")

    def test_an_id_runs_once(self):
        one = request("n = globals().get('n', 0) + 1")
        for _ in range(2):
            self.kernel.push(b"Q", one)
        statuses = [json.loads(self.kernel.next(b"R").decode())["status"] for _ in range(2)]
        self.assertEqual(statuses, ["ok", "refused"])
        self.assertEqual(self.kernel.run("n")["result"], {"text/plain": "1"})

    def test_withdraw_and_probe(self):
        running = self.kernel.send("import time; time.sleep(60)")
        self.kernel.next(b"S")
        waiting = self.kernel.send("x = 1")
        facts = self.kernel.control("probe")
        self.assertEqual((facts["alive"], facts["running"]["id"], facts["waiting"]), (True, running, 1))
        self.assertEqual(self.kernel.control("withdraw", id=waiting)["withdrawn"], True)
        self.assertEqual(self.kernel.control("withdraw", id=waiting)["withdrawn"], False)
        self.assertEqual(self.kernel.control("withdraw", id=running)["withdrawn"], False)
        self.assertEqual(self.kernel.control("interrupt")["done"], True)
        self.kernel.reply(running)
        self.assertEqual(self.kernel.run("'x' in globals()")["result"], {"text/plain": "False"})
        self.assertEqual(self.kernel.control("dance")["done"], False)

    def test_the_log_can_be_read(self):
        self.assertIn(b"generation 1", self.kernel.get("log"))

    def test_output_of_a_running_cell_can_be_read(self):
        cell = self.kernel.send("print('go'); import time; time.sleep(60)")
        number = json.loads(self.kernel.next(b"S").decode())["number"]
        self.kernel.next(b"O")
        self.assertTrue(self.kernel.get("out", number).startswith(b"o"))
        self.kernel.control("interrupt")
        self.kernel.reply(cell)


class Ends(unittest.TestCase):
    def kernel(self, **fields):
        kernel = PipeKernel(**fields)
        self.addCleanup(kernel.close)
        return kernel

    CHILDREN = ("import subprocess, os, time\n"
                "a = subprocess.Popen(['sleep', '600']); b = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
                "r, w = os.pipe()\n"
                "c = os.fork()\n"
                "if not c:\n"
                "    os.setsid()\n"
                "    if os.fork(): os._exit(0)\n"
                "    os.write(w, b'%d' % os.getpid()); time.sleep(600)\n"
                "os.waitpid(c, 0)\n"
                "print(a.pid, b.pid, int(os.read(r, 20)))\n")

    def test_the_end_of_stdin_ends_everything_within_a_second(self):
        for rest in ("", "time.sleep(600)", "import signal\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\nwhile True: pass"):
            kernel = self.kernel()
            kernel.send(self.CHILDREN + rest)
            printed = b""
            while not printed.endswith(b"\n"):
                printed += kernel.next(b"O")[9:]
            pids = [int(word) for word in printed.split()]
            self.assertEqual(len(pids), 3)
            pids += [kernel.answer["kernel"]["interpreter_pid"]]
            kernel.process.stdin.close()
            began = time.monotonic()
            kernel.process.wait(10)
            for pid in pids:
                until(lambda: not alive(pid), 5)
            self.assertLess(time.monotonic() - began, 1.5)

    def test_a_host_that_dies_while_others_hold_its_pipes(self):
        held = os.pipe(), os.pipe()
        host = ("import os, subprocess, sys, json\n"
                "header = {'nonce': 'n' * 32, 'spec': json.loads(sys.argv[4])}\n"
                "p = subprocess.Popen([sys.executable, '-c', sys.argv[1], sys.argv[2], json.dumps(header)], stdin=int(sys.argv[3]), stdout=1)\n"
                "p.wait()")
        kernel_spec = spec()
        process = subprocess.Popen([sys.executable, "-c", host, PROGRAM, RUNNER, str(held[0][0]), json.dumps(kernel_spec)],
                                   stdout=held[1][1], pass_fds=[held[0][0]])
        line = b""
        while line.count(b"\n") < 2:
            line += os.read(held[1][0], 65536)
        record = json.loads(line.split(b"\n")[1].decode())["kernel"]
        frames.write_all(held[0][1], frames.pack(b"Q", json.dumps(request("1")).encode()))
        self.assertTrue(os.read(held[1][0], 65536))
        process.kill()
        process.wait()
        for pid in (record["pid"], record["interpreter_pid"]):
            until(lambda: not alive(pid), 10)
        for pair in held:
            os.close(pair[0])
            os.close(pair[1])

    def test_a_host_that_stops_reading_and_leaves(self):
        kernel = self.kernel()
        kernel.send("import subprocess\nsubprocess.run('yes')")
        kernel.next(b"O")
        kernel.process.stdout.close()
        kernel.process.wait(10)
        until(lambda: not alive(kernel.answer["kernel"]["interpreter_pid"]), 5)

    def test_an_idle_host_that_closes_its_end_is_noticed(self):
        kernel = self.kernel()
        kernel.process.stdout.close()
        kernel.process.wait(10)

    def test_a_broken_frame_ends_it(self):
        kernel = self.kernel()
        os.write(kernel.in_fd, b"\xff" * 100)
        kernel.process.wait(10)

    def test_it_stops_when_idle_for_long(self):
        kernel = self.kernel(idle_ms=300)
        self.assertEqual(kernel.process.wait(20), 0)

    def test_it_leaves_no_files(self):
        before = set(os.listdir("/tmp"))
        kernel = self.kernel()
        kernel.run("print('x' * 5000000)", max_output=10)
        self.assertEqual([name for name in set(os.listdir("/tmp")) - before if name.startswith("farcell-") and "test" not in name], [])

    def test_signals_to_the_hosts_group_do_not_reach_it(self):
        kernel = self.kernel()
        self.assertNotEqual(os.getsid(kernel.pid), os.getsid(0))
        os.kill(kernel.pid, signal.SIGINT)
        self.assertEqual(kernel.run("1")["status"], "ok")

    def test_a_thousand_cells_cost_no_descriptors(self):
        kernel = self.kernel()
        kernel.run("1")
        before = len(os.listdir("/proc/%d/fd" % kernel.pid))
        for number in range(300):
            kernel.run("print(%d)" % number)
        kernel.control("reset")
        kernel.run("1")
        self.assertEqual(len(os.listdir("/proc/%d/fd" % kernel.pid)), before)


if __name__ == "__main__":
    unittest.main()
