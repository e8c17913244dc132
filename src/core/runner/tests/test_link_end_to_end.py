"""Everything through `/bin/sh -c`, as the engine does it: the real script, the real loader, a real bundle, real kernels, real deaths."""

import json
import os
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests import link_harness as harness
from tests.link_harness import FarTest, gone, text_of, until


class Cells(FarTest):
    def test_state_is_kept_from_one_command_to_the_next(self):
        spawned = self.far.spawn()
        kernel = spawned["kernel"]
        self.assertEqual((spawned["reused"], spawned["previous"]), (False, None))
        for name in ("v", "id", "key", "dir", "base", "pid", "start_time", "boot_id", "generation", "interpreter_pid", "language", "python", "version",
                     "owner_hash", "session", "created", "runner", "idle_ms", "wake"):
            self.assertIn(name, kernel)
        self.assertEqual(kernel["base"], self.far.base)
        self.value(kernel["dir"], "x = 41")
        self.assertEqual(self.value(kernel["dir"], "x + 1"), "42")
        again = self.far.spawn()
        self.assertEqual((again["reused"], again["kernel"]["id"]), (True, kernel["id"]))
        self.assertNotEqual(self.far.spawn("bb")["kernel"]["id"], kernel["id"])

    def test_everything_is_private(self):
        kernel = self.kernel()
        self.value(kernel["dir"], "print('secret')")
        for folder, names, plain in os.walk(self.far.base):
            for name in names + plain:
                info = os.lstat(os.path.join(folder, name))
                if name == "__pycache__" or name.endswith(".pyc"):
                    continue
                self.assertEqual(info.st_mode & 0o077, 0, os.path.join(folder, name))

    def test_nothing_of_the_users_is_in_argv_or_in_the_log(self):
        kernel = self.kernel(env={"API_TOKEN": "zebra-token"})
        self.value(kernel["dir"], "word = 'zebra-code'; print('zebra-output')")
        self.assertEqual(self.value(kernel["dir"], "import os; os.environ['API_TOKEN']"), "'zebra-token'")
        with open("/proc/%d/cmdline" % kernel["pid"], "rb") as file:
            self.assertNotIn(b"zebra", file.read())
        with open(os.path.join(kernel["dir"], "runner.log"), "rb") as file:
            self.assertNotIn(b"zebra", file.read())

    def test_output_streams_while_the_cell_runs(self):
        directory = self.kernel()["dir"]
        gate = os.path.join(self.far.root, "gate")
        os.mkfifo(gate)
        reply = self.far.send("run", dir=directory, cell=self.far.cell("print('one', flush=True); f = open(%r); f.read(); print('two'); 7" % gate),
                              wait={"hold_ms": 20000, "stream": True, "lull_ms": 10}, ack=[])
        answer = reply.json
        self.assertEqual((answer["fate"], text_of(reply.out)), ("running", "one\n"))
        self.assertGreater(answer["running_ms"], 0)
        open(gate, "w").close()
        out, offset = b"", answer["offset"]
        while True:
            reply = self.far.send("wait", dir=directory, number=answer["number"], id=answer["id"], wait={"hold_ms": 20000, "offset": offset, "stream": True}, ack=[])
            out, offset = out + reply.out, reply.json["offset"]
            if reply.json["fate"] == "settled":
                break
        self.assertEqual(text_of(out), "two\n")
        self.assertEqual((reply.json["reply"]["stdout"], reply.json["reply"]["result"]["text/plain"]), ("one\ntwo\n", "7"))

    def test_a_flood_streams_completely_in_bounded_answers(self):
        directory = self.kernel()["dir"]
        answer = self.far.run(directory, "for i in range(12): print(str(i % 10) * 1000000)", wait={"hold_ms": 0}, max_output=1000)
        got, offset, number = 0, 0, answer["number"]
        while True:
            reply = self.far.send("wait", dir=directory, number=number, wait={"hold_ms": 20000, "offset": offset, "stream": True}, ack=[])
            self.assertLessEqual(len(reply.out), 4 << 20)
            got, offset = got + len(text_of(reply.out)), reply.json["offset"]
            if reply.json["fate"] == "settled":
                break
        self.assertEqual(got, 12 * 1000001)
        output = reply.json["reply"]["output"]
        self.assertEqual((output["stdout_bytes"], os.path.exists(output["spill"])), (12 * 1000001, True))
        part = self.far.send("read", dir=directory, file="out", number=number, offset=5, max=10)
        self.assertEqual((part.out, part.json["offset"], part.json["size"]), (b"0" * 10, 15, os.path.getsize(output["spill"])))

    def test_a_long_poll_returns_at_once_when_the_cell_settles(self):
        directory = self.kernel()["dir"]
        gate = os.path.join(self.far.root, "gate")
        os.mkfifo(gate)
        number, cell_id = self.begin(directory, "f = open(%r); f.read()" % gate)
        nonce, data = harness.request({"op": "wait", "base": self.far.base, "dir": directory, "number": number, "wait": {"hold_ms": 60000}, "ack": []}, bundle=False)
        waiter = harness.start()
        waiter.stdin.write(data)
        waiter.stdin.close()
        until(lambda: any(name.startswith("w-") for name in os.listdir(os.path.join(directory, "waiters"))), what="the waiter")
        opened = time.monotonic()
        open(gate, "w").close()
        out = waiter.stdout.read()
        self.assertLess(time.monotonic() - opened, 5.0)
        waiter.wait(30)
        reply = harness.Reply(out, waiter.stderr.read(), waiter.returncode, nonce)
        waiter.stdout.close()
        waiter.stderr.close()
        self.assertEqual((reply.json["fate"], reply.json["id"]), ("settled", cell_id))
        self.assertEqual(os.listdir(os.path.join(directory, "waiters")), [])

    def test_a_waiter_whose_host_is_gone_ends(self):
        directory = self.kernel()["dir"]
        number, _cell_id = self.begin(directory, "import time; time.sleep(300)")
        _nonce, data = harness.request({"op": "wait", "base": self.far.base, "dir": directory, "number": number, "wait": {"hold_ms": 60000}, "ack": []}, bundle=False)
        waiter = harness.start()
        waiter.stdin.write(data)
        waiter.stdin.close()
        until(lambda: any(name.startswith("w-") for name in os.listdir(os.path.join(directory, "waiters"))), what="the waiter")
        waiter.stdout.close()
        self.assertEqual(waiter.wait(30), 99)
        waiter.stderr.close()
        self.assertEqual(os.listdir(os.path.join(directory, "waiters")), [])

    def test_ten_megabytes_of_code(self):
        directory = self.kernel()["dir"]
        self.assertEqual(self.value(directory, "s = '" + "x" * 10000000 + "'\nlen(s)"), "10000000")

    def test_acknowledged_replies_are_gone_and_others_stay(self):
        directory = self.kernel()["dir"]
        numbers = [self.far.run(directory, "print(%d)" % i)["number"] for i in range(3)]
        self.assertEqual(self.far.ok("probe", dir=directory)["replies"], numbers)
        last = self.far.ok("wait", dir=directory, wait={"hold_ms": 0})
        self.assertEqual((last["number"], last["reply"]["stdout"]), (numbers[2], "2\n"))
        self.far.ok("ack", dir=directory, numbers=numbers[:1])
        self.assertEqual(self.far.ok("wait", dir=directory, number=numbers[0], wait={"hold_ms": 0})["fate"], "unknown")
        self.assertEqual(self.far.ok("wait", dir=directory, number=numbers[1], wait={"hold_ms": 0}, ack=[numbers[1]])["fate"], "unknown")
        self.assertEqual(self.far.ok("probe", dir=directory)["replies"], numbers[2:])
        cells = os.listdir(os.path.join(directory, "cells"))
        self.assertEqual([name for name in cells if "%06d" % numbers[0] in name], [])
        self.far.ok("ack", dir=directory, numbers=numbers)

    def test_a_request_that_is_sent_again_is_not_run_again(self):
        directory = self.kernel()["dir"]
        self.value(directory, "n = 0")
        cell = self.far.cell("n += 1; n")
        first = self.far.ok("run", dir=directory, cell=cell, wait={"hold_ms": 20000}, ack=[])
        second = self.far.ok("run", dir=directory, cell=cell, wait={"hold_ms": 20000}, ack=[], again=True)
        self.assertEqual(first["reply"], second["reply"])
        self.assertEqual(self.value(directory, "n"), "1")
        self.assertEqual(self.far.ok("wait", dir=directory, id=cell["id"], wait={"hold_ms": 0})["reply"], first["reply"])

    def test_a_waiting_cell_waits_its_turn_and_can_be_withdrawn(self):
        directory = self.kernel()["dir"]
        self.begin(directory, "import time; time.sleep(300)")
        first = self.far.run(directory, "print('never')", wait={"hold_ms": 0})
        second = self.far.run(directory, "print('later')", wait={"hold_ms": 0})
        self.assertEqual((first["fate"], first["ahead"], second["fate"], second["ahead"]), ("waiting", 1, "waiting", 2))
        self.assertEqual(self.far.ok("probe", dir=directory)["waiting"], 2)
        self.assertTrue(self.far.ok("withdraw", dir=directory, id=first["id"])["withdrawn"])
        self.assertFalse(self.far.ok("withdraw", dir=directory, id=first["id"])["withdrawn"])
        self.assertEqual(self.far.ok("wait", dir=directory, id=first["id"], wait={"hold_ms": 0})["fate"], "unknown")
        self.assertTrue(self.far.ok("control", dir=directory, do="interrupt")["done"])
        done = self.far.ok("wait", dir=directory, id=second["id"], wait={"hold_ms": 25000})
        self.assertEqual((done["fate"], done["reply"]["stdout"]), ("settled", "later\n"))

    def test_of_many_cells_sent_at_once_each_runs_once(self):
        directory = self.kernel()["dir"]
        self.value(directory, "seen = []")
        started = []
        for number in range(8):
            nonce, data = harness.request({"op": "run", "base": self.far.base, "dir": directory, "cell": self.far.cell("seen.append(%d); %d" % (number, number)),
                                           "wait": {"hold_ms": 50000}, "ack": []}, bundle=False)
            process = harness.start()
            process.stdin.write(data)
            process.stdin.flush()
            started.append((nonce, process))
        got = []
        for nonce, process in started:
            out, err = process.communicate(timeout=120)
            got.append(harness.Reply(out, err, process.returncode, nonce).json["reply"]["result"]["text/plain"])
        self.assertEqual(got, [str(number) for number in range(8)])
        self.assertEqual(self.value(directory, "sorted(seen)"), str(list(range(8))))


class Controls(FarTest):
    def test_an_interrupt_ends_the_cell_and_keeps_the_state(self):
        directory = self.kernel()["dir"]
        number, _id = self.begin(directory, "y = 5; print('before', flush=True)\nimport time\ntime.sleep(300)")
        self.assertFalse(self.far.ok("control", dir=directory, do="interrupt", number=number + 7)["done"])
        self.assertTrue(self.far.ok("control", dir=directory, do="interrupt", number=number)["done"])
        done = self.far.ok("wait", dir=directory, number=number, wait={"hold_ms": 25000})
        self.assertEqual((done["reply"]["status"], done["reply"]["stdout"]), ("interrupted", "before\n"))
        self.assertEqual(self.value(directory, "y"), "5")
        self.assertFalse(self.far.ok("control", dir=directory, do="interrupt")["done"])
        self.assertEqual([name for name in os.listdir(os.path.join(directory, "cells")) if name.startswith("ctl")], [])

    def test_reset_costs_the_variables_and_stop_the_kernel(self):
        kernel = self.kernel()
        directory = kernel["dir"]
        self.value(directory, "y = 5")
        self.assertTrue(self.far.ok("control", dir=directory, do="reset", hold_ms=25000)["done"])
        self.assertEqual(self.value(directory, "'y' in globals()"), "False")
        number, _id = self.begin(directory, "import time; time.sleep(300)")
        self.assertFalse(self.far.ok("control", dir=directory, do="stop", if_idle=True)["done"])
        self.assertTrue(self.far.ok("control", dir=directory, do="stop", hold_ms=25000)["done"])
        until(lambda: gone(kernel["pid"]), what="the supervisor's end")
        probe = self.far.ok("probe", dir=directory)
        self.assertEqual((probe["alive"], probe["running"], probe["replies"]), (False, None, [number - 2, number - 1, number]))
        self.assertTrue(self.far.ok("control", dir=directory, do="stop")["done"])
        for do in ("interrupt", "reset"):
            self.assertEqual(self.far.send("control", dir=directory, do=do).code, "kernel-dead")
        self.assertEqual(self.far.send("run", dir=directory, cell=self.far.cell("1"), wait={}, ack=[]).code, "kernel-dead")
        again = self.far.spawn()
        self.assertEqual((again["reused"], again["previous"]["id"], again["previous"]["dir"]), (False, kernel["id"], directory))
        self.assertEqual(again["previous"]["why"], "stopped")


    def test_a_stopped_kernel_is_gone_when_stop_has_answered(self):
        for number in range(5):
            directory = self.kernel("a%d" % number)["dir"]
            self.assertTrue(self.far.ok("control", dir=directory, do="stop", hold_ms=25000)["done"])
            self.far.ok("remove", dir=directory)

    def test_without_fifos_it_is_polled(self):
        directory = self.kernel()["dir"]
        os.rmdir(os.path.join(directory, "waiters"))
        os.unlink(os.path.join(directory, "wake"))
        os.symlink("/dev/null", os.path.join(directory, "waiters"))
        number = self.far.run(directory, "1 + 1", wait={"hold_ms": 0})["number"]
        # The supervisor looks by itself only rarely; a control of an own waiter finds it as well. Here its FIFO is poked by hand.
        self.poke(directory)
        self.assertEqual(self.far.ok("wait", dir=directory, number=number, wait={"hold_ms": 25000})["reply"]["result"]["text/plain"], "2")

    def poke(self, directory):
        """Through the descriptor that the supervisor holds, because its name is gone."""
        with open(os.path.join(directory, "kernel.json")) as file:
            pid = json.load(file)["pid"]
        for fd in os.listdir("/proc/%d/fd" % pid):
            path = "/proc/%d/fd/%s" % (pid, fd)
            if os.readlink(path).startswith(os.path.join(directory, "wake")):
                with open(path, "wb", 0) as fifo:
                    fifo.write(b"x")


class Deaths(FarTest):
    def test_a_killed_supervisor_is_told_within_a_second_with_the_output_so_far(self):
        kernel = self.kernel()
        directory = kernel["dir"]
        cell = self.far.cell("import sys, time\nprint('so far', flush=True)\nprint('\\u20ac', file=sys.stderr, flush=True)\ntime.sleep(300)")
        nonce, data = harness.request({"op": "run", "base": self.far.base, "dir": directory, "cell": cell, "wait": {"hold_ms": 60000}, "ack": []}, bundle=False)
        waiter = harness.start()
        waiter.stdin.write(data)
        waiter.stdin.close()
        out_file = os.path.join(directory, "cells", "cell_out_000001")
        until(lambda: os.path.exists(out_file) and os.path.getsize(out_file) >= 5 + 7 + 5 + 4, what="the output")
        killed = time.monotonic()
        os.kill(kernel["pid"], signal.SIGKILL)
        out = waiter.stdout.read()
        took = time.monotonic() - killed
        waiter.wait(30)
        answer = harness.Reply(out, waiter.stderr.read(), 0, nonce).json
        waiter.stdout.close()
        waiter.stderr.close()
        self.assertEqual(answer["fate"], "dead")
        reply = answer["reply"]
        self.assertEqual((reply["status"], reply["stdout"], reply["stderr"], reply["kernel"]["state"]), ("died", "so far\n", "\u20ac\n", "lost"))
        self.assertEqual((reply["cell"], reply["output"]["stdout_bytes"]), ({"id": cell["id"], "number": 1}, 7))
        self.assertGreater(reply["duration_ms"], 0)
        self.assertLess(took, 2.0)
        until(lambda: gone(kernel["interpreter_pid"]), what="the interpreter's end")
        # It is there for whoever asks later, and until it is acknowledged.
        later = self.far.ok("wait", dir=directory, id=cell["id"], wait={"hold_ms": 0})
        self.assertEqual((later["fate"], later["reply"]), ("settled", reply))
        self.far.ok("ack", dir=directory, numbers=[1])
        self.assertEqual(self.far.ok("wait", dir=directory, id=cell["id"], wait={"hold_ms": 0})["fate"], "unknown")
        again = self.far.spawn()
        self.assertEqual((again["reused"], again["previous"]["why"]), (False, "died"))

    def test_cells_that_waited_when_the_kernel_died_never_run(self):
        kernel = self.kernel()
        directory = kernel["dir"]
        self.begin(directory, "import time; time.sleep(300)")
        waiting = self.far.run(directory, "1", wait={"hold_ms": 0})
        os.kill(kernel["pid"], signal.SIGKILL)
        until(lambda: gone(kernel["pid"]), what="the supervisor's end")
        answer = self.far.ok("wait", dir=directory, id=waiting["id"], wait={"hold_ms": 20000})
        self.assertEqual((answer["fate"], answer["reply"]["status"], answer["reply"]["duration_ms"]), ("dead", "died", 0.0))
        self.assertEqual([name for name in os.listdir(os.path.join(directory, "cells")) if name.startswith("cell_req")], [])

    def test_a_stopped_supervisor_is_not_dead(self):
        kernel = self.kernel()
        os.kill(kernel["pid"], signal.SIGSTOP)
        try:
            answer = self.far.run(kernel["dir"], "1", wait={"hold_ms": 300})
            self.assertEqual(answer["fate"], "waiting")
            self.assertTrue(self.far.ok("probe", dir=kernel["dir"])["alive"])
            self.assertFalse(self.far.ok("control", dir=kernel["dir"], do="interrupt", hold_ms=200)["done"])
        finally:
            os.kill(kernel["pid"], signal.SIGCONT)
        self.assertEqual(self.far.ok("wait", dir=kernel["dir"], number=answer["number"], wait={"hold_ms": 25000})["fate"], "settled")

    def test_a_removed_directory_is_told(self):
        kernel = self.kernel()
        self.far.ok("control", dir=kernel["dir"], do="stop", hold_ms=25000)
        until(lambda: gone(kernel["pid"]), what="the supervisor's end")
        self.far.ok("remove", dir=kernel["dir"])
        self.assertFalse(os.path.exists(kernel["dir"]))
        for op in ("probe", "wait", "remove", "ack", "withdraw", "control", "read"):
            self.assertEqual(self.far.send(op, dir=kernel["dir"]).code, "no-kernel", op)
        self.assertEqual(self.far.spawn()["previous"], None)


if __name__ == "__main__":
    unittest.main()
