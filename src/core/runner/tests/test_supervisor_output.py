"""Output: order, floods, long lines, what comes late, and what it costs."""

import os
import time
import unittest

from tests.supervisor_kit import FileKernel, PipeKernel, until


def peak_kib(pid):
    with open("/proc/%d/status" % pid) as file:
        return [int(line.split()[1]) for line in file if line.startswith("VmHWM")][0]


class Both(object):
    """The same for files and pipes."""

    def test_prints_and_programs_keep_their_order(self):
        self.assertEqual(self.kernel.run("import os\nprint(1)\nos.system('echo 2')\nprint(3)")["stdout"], "1\n2\n3\n")

    def test_streams_are_separate_and_counted(self):
        reply = self.kernel.run("import sys\nprint('out')\nprint('error', file=sys.stderr)")
        self.assertEqual((reply["stdout"], reply["stderr"]), ("out\n", "error\n"))
        self.assertEqual((reply["output"]["stdout_bytes"], reply["output"]["stderr_bytes"]), (4, 6))

    def test_invalid_bytes_and_surrogates(self):
        reply = self.kernel.run("import sys\nsys.stdout.buffer.write(b'\\xff\\xe2\\x82\\xac|')\nprint('\\ud800')\n'\\udcff'")
        self.assertEqual(reply["stdout"], "\\xff\u20ac|\\ud800\n")
        self.assertEqual(reply["status"], "ok")

    def test_fifty_megabytes_in_one_line(self):
        began = time.monotonic()
        reply = self.kernel.run("print('x' * 50_000_000)")
        seconds = time.monotonic() - began
        output = reply["output"]
        self.assertEqual((reply["status"], output["stdout_bytes"]), ("ok", 50000001))
        self.assertEqual(output["stdout_omitted"], 50000001 - 1048576)
        self.assertIn("\n[\u2026 %d bytes omitted \u2026]\n" % output["stdout_omitted"], reply["stdout"])
        self.assertEqual(self.spilled(reply), {"o": b"x" * 50000000 + b"\n"})
        self.assertLess(peak_kib(self.kernel.pid), 64 * 1024)
        self.assertLess(seconds, 20)

    def test_a_flood_until_the_deadline_is_bounded(self):
        reply = self.kernel.run("while True: print('x')", timeout_ms=2000)
        self.assertEqual(reply["status"], "timeout")
        self.assertLess(reply["duration_ms"], 4500)
        self.assertGreater(reply["output"]["stdout_bytes"], 100000)
        self.assertLess(peak_kib(self.kernel.pid), 64 * 1024)
        self.assertEqual(self.kernel.run("1 + 1")["result"], {"text/plain": "2"})

    def test_a_flood_of_a_program_is_bounded_by_the_spill(self):
        reply = self.kernel.run("import subprocess\nsubprocess.run('yes', timeout=None)", timeout_ms=1500)
        self.assertEqual(reply["status"], "timeout")
        self.assertGreater(reply["output"]["stdout_bytes"], 70 << 20)
        self.assertLessEqual(self.spill_size(reply), 64 << 20)
        self.assertLess(peak_kib(self.kernel.pid), 64 * 1024)

    def test_late_output_goes_out_with_the_next_cell(self):
        code = "import threading, time, os\ngo = threading.Event()\ndef late():\n    go.wait()\n    print('late')\nthreading.Thread(target=late).start()"
        self.kernel.run(code)
        path = os.path.join("/tmp", "farcell-late-%d" % os.getpid())
        self.kernel.run("threading.Timer(0.05, go.set).start()")
        self.kernel.run("import subprocess\np = subprocess.Popen('sleep 0.2; echo child; touch %s', shell=True)" % path)
        until(lambda: os.path.exists(path))
        os.unlink(path)
        found = "".join(self.kernel.run("p.wait()")["stdout"] for _ in range(2))
        self.assertIn("child\n", found)

    def test_much_late_output_is_bounded(self):
        path = os.path.join("/tmp", "farcell-late-%d" % os.getpid())
        self.kernel.run("import subprocess\np = subprocess.Popen('sleep 0.1; head -c 1000000 /dev/zero | tr \"\\\\0\" x; touch %s', shell=True)" % path)
        until(lambda: os.path.exists(path))
        os.unlink(path)
        reply = self.kernel.run("p.wait()")
        self.assertEqual(reply["output"]["stdout_bytes"], 1000000)
        # What was still in the pipe when the cell began is the cell's own.
        self.assertGreater(reply["output"]["stdout_omitted"], 500000)
        self.assertIn("bytes omitted", reply["stdout"])

    def test_a_background_flood_does_not_delay_a_reply(self):
        reply = self.kernel.run("import subprocess\np = subprocess.Popen(['yes'])")
        self.assertEqual(reply["status"], "ok")
        for _ in range(3):
            self.assertEqual(self.kernel.run("1 + 1")["result"], {"text/plain": "2"})
        self.assertLess(peak_kib(self.kernel.pid), 64 * 1024)
        self.kernel.run("p.kill()")

    def test_an_old_spill_goes_when_two_later_ones_are_there(self):
        replies = [self.kernel.run("print('%d' * 5000)" % number, max_output=100) for number in range(4)]
        found = [self.spilled(reply).get("o", b"")[:1] for reply in replies]
        self.assertEqual(found, [b"", b"", b"2", b"3"])

    def test_tiny_limits(self):
        for limit in (0, 1, 2):
            reply = self.kernel.run("print('abcdef')", max_output=limit)
            self.assertEqual((reply["output"]["stdout_bytes"], reply["output"]["stdout_omitted"]), (7, 7 - limit))

    def test_displays_are_kept(self):
        reply = self.kernel.run("print('a')\ndisplay({'text/plain': 'shown \\ud83d'}, raw=True)\nprint('b')")
        self.assertEqual(reply["stdout"], "a\nb\n")
        self.assertEqual(len(reply["displays"]), 1, reply)

    def test_an_interpreter_that_closes_its_streams(self):
        self.assertEqual(self.kernel.run("import os\nos.close(1); os.close(2)")["status"], "ok")
        self.assertIn(self.kernel.run("print('hello')")["status"], ("ok", "error"))
        self.assertEqual(self.kernel.run("1 + 1")["result"], {"text/plain": "2"})


class Files(Both, unittest.TestCase):
    def setUp(self):
        self.kernel = FileKernel()
        self.addCleanup(self.kernel.close)

    def spilled(self, reply):
        self.assertEqual(reply["output"]["spill"], self.kernel.cell_path("out", reply["cell"]["number"]))
        return self.kernel.records(reply["cell"]["number"])

    def spill_size(self, reply):
        return os.stat(reply["output"]["spill"]).st_size

    def test_output_can_be_read_while_the_cell_runs(self):
        number = self.kernel.send("print('early')\nimport time\ntime.sleep(60)")
        self.kernel.wait_printed(number, b"early\n")
        self.kernel.control("interrupt")
        self.kernel.reply(number)

    def test_a_trickle_that_has_ended_costs_nothing(self):
        self.kernel.run("import time\nfor _ in range(50):\n    print('x')\n    time.sleep(0.001)")

        def switches():
            with open("/proc/%d/status" % self.kernel.pid) as file:
                return [int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches")][0]
        number = self.kernel.send("print('x'); print('y'); time.sleep(60)")
        self.kernel.wait_printed(number, b"y")
        end = time.monotonic() + 0.2
        until(lambda: time.monotonic() > end)
        before, end = switches(), time.monotonic() + 0.5
        until(lambda: time.monotonic() > end)
        self.assertLessEqual(switches() - before, 2)
        self.kernel.control("interrupt")
        self.kernel.reply(number)

    def test_a_flood_makes_no_tiny_records(self):
        number = self.kernel.send("for _ in range(200000): print('x')")
        self.kernel.reply(number)
        with open(self.kernel.cell_path("out", number), "rb") as file:
            data = file.read()
        payload = len(self.kernel.records(number)["o"])
        self.assertEqual(payload, 400000)
        self.assertLess(len(data) - payload, 400000 * 5 // 20)

    def test_the_spill_bound_of_the_spec_holds(self):
        kernel = FileKernel(limits={"spill_bytes": 10000})
        self.addCleanup(kernel.close)
        reply = kernel.run("print('x' * 100000)", max_output=1000)
        self.assertEqual(os.stat(reply["output"]["spill"]).st_size, 10000)
        none = FileKernel(limits={"spill_bytes": 0})
        self.addCleanup(none.close)
        self.assertIsNone(none.run("print('x' * 100000)", max_output=1000)["output"]["spill"])


class Stdio(Both, unittest.TestCase):
    def setUp(self):
        self.kernel = PipeKernel()
        self.addCleanup(self.kernel.close)

    def _spill(self, reply):
        data = b""
        self.assertIsNotNone(reply["output"]["spill"])
        while True:
            piece = self.kernel.get("out", reply["cell"]["number"], len(data), 1 << 20)
            if not piece:
                return data
            data += piece

    def spilled(self, reply):
        from tests.supervisor_kit import split_records
        return split_records(self._spill(reply))

    def spill_size(self, reply):
        return len(self._spill(reply))

    def test_output_comes_as_it_is_printed(self):
        cell = self.kernel.send("print('early')\nimport time\ntime.sleep(60)")
        self.assertEqual(self.kernel.next(b"O")[:5], b"\0\0\0\1o")
        self.kernel.control("interrupt")
        self.kernel.reply(cell)

    def test_a_host_that_does_not_read_holds_the_flood_but_not_the_memory(self):
        cell = self.kernel.send("import subprocess\nsubprocess.run('yes')", timeout_ms=1500)
        end = time.monotonic() + 2.5
        until(lambda: time.monotonic() > end)
        self.assertLess(peak_kib(self.kernel.pid), 64 * 1024)
        self.assertEqual(self.kernel.reply(cell)["status"], "timeout")
        self.assertEqual(self.kernel.run("1 + 1")["result"], {"text/plain": "2"})


if __name__ == "__main__":
    unittest.main()
