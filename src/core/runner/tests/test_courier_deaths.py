"""What may die around a stream: interpreter, supervisor, helper, host and the courier itself, each by SIGKILL or without a word."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from _farcell import attended, loop
from tests.courier_kit import HEAD, StreamTest
from tests.link_harness import RUNNER, gone, text_of, until
from tests.test_courier import helpers_of

SOON = 4.0  # a death is told within a second; the rest is for a busy machine, and less than the five seconds after which everything is looked at anyway


def bells(directory):
    return sorted(os.listdir(os.path.join(directory, "waiters")))


class Kernels(StreamTest):
    def sleeper(self, stream, directory, **wait):
        """A cell that has printed and sleeps."""
        call = stream.run(directory, "print('so far', flush=True)\nimport time\ntime.sleep(300)", wait=dict({"stream": True, "hold_ms": 50000}, **wait))
        stream.until(lambda: text_of(stream.records.get(call, b"")) == "so far\n", what="its output")
        return call

    def test_a_killed_interpreter(self):
        kernel = self.kernel()
        stream = self.stream()
        call = self.sleeper(stream, kernel["dir"])
        os.kill(kernel["interpreter_pid"], signal.SIGKILL)
        answer = stream.answer(call, SOON)
        self.assertEqual((answer["fate"], answer["reply"]["status"], answer["reply"]["signal"], answer["reply"]["stdout"]), ("settled", "died", "SIGKILL", "so far\n"))
        self.assertEqual(stream.value(kernel["dir"], "1"), "1")

    def test_a_killed_supervisor(self):
        self.killed_supervisor(self.kernel())

    def test_a_killed_supervisor_whose_process_cannot_be_watched(self):
        kernel = self.kernel()
        self.unwatchable(kernel)
        self.killed_supervisor(kernel)

    def test_a_hold_that_ends_after_the_kernel_did(self):
        for hold in (1, 100, 150, 190):
            kernel = self.kernel("%02d" % (hold % 100))
            self.unwatchable(kernel)
            stream = self.stream()
            first = self.sleeper(stream, kernel["dir"])
            wait = stream.call("wait", dir=kernel["dir"], number=1, wait={"stream": True, "hold_ms": hold})
            os.kill(kernel["pid"], signal.SIGKILL)
            self.assertEqual(stream.answer(first, SOON)["reply"]["status"], "died")
            answer = stream.answer(wait, SOON)
            self.assertEqual((answer["reply"] or {"status": answer["fate"]})["status"], "died" if hold > 50 or answer["reply"] else "running")
            self.assertEqual(text_of(stream.records[wait]), "so far\n")

    def unwatchable(self, kernel):
        """As where its process is in a world of its own, or the system has no pidfd."""
        with open(os.path.join(kernel["dir"], "kernel.json"), "w") as file:
            json.dump(dict(kernel, start_time=kernel["start_time"] + 1), file)

    def killed_supervisor(self, kernel):
        other = self.kernel("bb")
        stream = self.stream()
        directory = kernel["dir"]
        plain = stream.run(directory, "import time; time.sleep(300)")
        until(lambda: stream.ok("probe", dir=directory)["running"], what="the cell's start")
        waiting = stream.run(directory, "1")
        watching = stream.call("wait", dir=directory, number=2, wait={"hold_ms": 50000})
        until(lambda: stream.ok("probe", dir=directory)["waiting"] == 1, what="the second request")
        os.kill(kernel["pid"], signal.SIGKILL)
        answer = stream.answer(plain, SOON)
        self.assertEqual((answer["fate"], answer["reply"]["status"], answer["reply"]["kernel"]["state"]), ("dead", "died", "lost"))
        # Taken back by the one that had shipped it: it was not and will not be run.
        self.assertEqual(stream.result(waiting, SOON)["error"]["code"], "kernel-dead")
        self.assertEqual(stream.answer(watching, SOON)["fate"], "unknown")
        until(lambda: gone(kernel["interpreter_pid"]), what="the end of the interpreter")
        again = stream.call("wait", dir=directory, id=answer["id"], wait={"hold_ms": 50000})
        self.assertEqual((stream.answer(again)["fate"], stream.answer(stream.call("wait", dir=directory, number=1, wait={"hold_ms": 5}))["reply"]), ("settled", answer["reply"]))
        self.assertEqual(stream.result(stream.run(directory, "1"))["error"]["code"], "kernel-dead")
        once_more = stream.run(directory, "", cell=dict(self.far.cell(""), id=answer["id"]), again=True)
        self.assertEqual(stream.answer(once_more)["reply"], answer["reply"])
        self.assertEqual((bells(directory), stream.value(other["dir"], "2")), ([], "2"))

    def test_what_a_dead_kernel_had_printed_comes_before_its_answer(self):
        kernel = self.kernel()
        stream = self.stream()
        call = self.sleeper(stream, kernel["dir"])
        late = stream.call("wait", dir=kernel["dir"], number=1, wait={"stream": True, "hold_ms": 50000})
        os.kill(kernel["pid"], signal.SIGKILL)
        for one in (call, late):
            answer = stream.answer(one, SOON)
            self.assertEqual((answer["reply"]["status"], text_of(stream.records[one]), answer["offset"]), ("died", "so far\n", len(stream.records[one])))

    def test_a_cell_that_is_sent_while_the_kernel_dies_is_run_or_refused(self):
        stream = self.stream()
        for turn in range(5):
            kernel = self.kernel("a%d" % turn)
            stream.value(kernel["dir"], "1")
            os.kill(kernel["pid"], signal.SIGKILL)
            answer = stream.result(stream.run(kernel["dir"], "2"), SOON)
            if answer["ok"]:
                # The interpreter, which ends a moment later, was asked by the lane: it has answered, or ended with the cell.
                reply = answer["reply"]
                self.assertIn((reply["status"], reply["result"]), [("ok", {"text/plain": "2"}), ("died", None)])
            else:
                self.assertEqual(answer["error"]["code"], "kernel-dead")
                self.assertEqual([name for name in os.listdir(os.path.join(kernel["dir"], "cells")) if "000002" in name], [])

    def test_a_stopped_supervisor_is_not_dead(self):
        kernel = self.kernel()
        stream = self.stream()
        os.kill(kernel["pid"], signal.SIGSTOP)
        try:
            call = stream.run(kernel["dir"], "1", wait={"hold_ms": 300})
            self.assertEqual(stream.answer(call)["fate"], "waiting")
            self.assertTrue(stream.ok("probe", dir=kernel["dir"])["alive"])
        finally:
            os.kill(kernel["pid"], signal.SIGCONT)
        self.assertEqual(stream.answer(stream.call("wait", dir=kernel["dir"], number=1, wait={"hold_ms": 25000}))["fate"], "settled")

    def test_a_directory_that_is_removed_under_a_wait(self):
        kernel = self.kernel()
        stream = self.stream()
        call = self.sleeper(stream, kernel["dir"])
        shutil.rmtree(kernel["dir"])
        os.kill(kernel["pid"], signal.SIGKILL)
        self.assertEqual(stream.result(call, SOON)["error"]["code"], "kernel-gone")
        until(lambda: gone(kernel["interpreter_pid"]), what="the end of the interpreter")
        for op in ("probe", "wait", "ack", "control", "read", "withdraw"):
            self.assertEqual(stream.result(stream.call(op, dir=kernel["dir"]))["error"]["code"], "no-kernel", op)
        self.assertEqual(stream.result(stream.run(kernel["dir"], "1"))["error"]["code"], "no-kernel")

    def test_a_directory_that_another_could_have_put_there_is_refused(self):
        kernel = self.kernel()
        stream = self.stream()
        stream.value(kernel["dir"], "1")
        os.chmod(kernel["dir"], 0o777)
        self.assertEqual(stream.result(stream.run(kernel["dir"], "1"))["error"]["code"], "unsafe-directory")
        os.chmod(kernel["dir"], 0o700)
        self.assertEqual(stream.value(kernel["dir"], "2"), "2")
        os.rename(kernel["dir"], kernel["dir"] + "x")
        os.symlink(kernel["dir"] + "x", kernel["dir"])
        self.assertEqual(stream.result(stream.run(kernel["dir"], "1"))["error"]["code"], "unsafe-directory")


class Couriers(StreamTest):
    def test_one_killed_in_the_middle_of_a_cell_costs_nothing(self):
        directory = self.kernel()["dir"]
        stream = self.stream()
        stream.value(directory, "runs = 0")
        gate = os.path.join(self.far.root, "gate")
        os.mkfifo(gate)
        cell = self.far.cell("runs += 1; print('begun', flush=True); open(%r).read(); runs" % gate)
        call = stream.run(directory, "", cell=cell, wait={"stream": True})
        stream.until(lambda: call in stream.records, what="its output")
        os.kill(stream.greeted()["pid"], signal.SIGKILL)
        self.assertEqual(stream.process.wait(30), 128 + signal.SIGKILL)
        stale = bells(directory)
        self.assertEqual(len(stale), 1)
        open(gate, "w").close()
        answer = self.far.ok("run", dir=directory, cell=cell, wait={"hold_ms": 25000}, ack=[], again=True)
        self.assertEqual((answer["reply"]["result"]["text/plain"], answer["reply"]["stdout"]), ("1", "begun\n"))
        other = self.stream()
        self.assertEqual(other.answer(other.run(directory, "", cell=cell, again=True))["reply"], answer["reply"])
        # A bell that nobody hears is removed by the supervisor, and disturbs nobody until then.
        os.utime(os.path.join(directory, "waiters", stale[0]), (1, 1))
        self.assertEqual(other.value(directory, "print('it does something'); runs"), "1")
        until(lambda: stale[0] not in bells(directory), what="the end of the stale bell")

    def begin_control(self, stream, kernel):
        """A helper that is busy for long."""
        os.kill(kernel["pid"], signal.SIGSTOP)
        self.addCleanup(os.kill, kernel["pid"], signal.SIGCONT)
        call = stream.call("control", dir=kernel["dir"], do="interrupt", hold_ms=50000)
        cells = os.path.join(kernel["dir"], "cells")
        until(lambda: any(name.startswith("ctl_") for name in os.listdir(cells)), what="the control")
        return call, helpers_of(stream)

    def test_a_helper_that_dies_is_an_error_of_its_call(self):
        kernel = self.kernel()
        stream = self.stream()
        call, (helper,) = self.begin_control(stream, kernel)
        os.kill(helper, signal.SIGKILL)
        self.assertEqual(stream.result(call, SOON)["error"]["code"], "internal")
        self.assertEqual(len(stream.ok("list")["kernels"]), 1)
        (idle,) = helpers_of(stream)
        os.kill(idle, signal.SIGKILL)
        until(lambda: gone(idle), what="its end")
        self.assertEqual(len(stream.ok("list")["kernels"]), 1)
        # The courier hears of the next death only after it has given the next call away.
        (idle,) = helpers_of(stream)
        courier = stream.greeted()["pid"]
        os.kill(courier, signal.SIGSTOP)
        try:
            os.kill(idle, signal.SIGKILL)
            until(lambda: gone(idle), what="its end")
            call = stream.call("list")
        finally:
            os.kill(courier, signal.SIGCONT)
        self.assertEqual(len(stream.answer(call)["kernels"]), 1)

    def test_helpers_hold_nothing_of_the_channel_and_of_the_kernels(self):
        kernel, other = self.kernel(), self.kernel("bb")
        stream = self.stream()
        stream.value(other["dir"], "1")
        _call, (helper,) = self.begin_control(stream, kernel)
        folder = "/proc/%d/fd/" % helper
        held = {name: os.readlink(folder + name) for name in os.listdir(folder)}
        pipes = {os.readlink("/proc/%d/fd/%d" % (stream.greeted()["pid"], fd)) for fd in (0, 1)}
        self.assertEqual(pipes & set(held.values()), set())
        self.assertEqual([path for path in held.values() if other["dir"] in path], [])

    def ended(self, stream, helpers):
        pid = stream.greeted()["pid"]
        until(lambda: gone(pid), what="the end of the courier")
        for helper in helpers:
            until(lambda: gone(helper), what="the end of helper %d" % helper)

    def test_the_end_of_stdin_ends_it_and_its_helpers_and_leaves_no_bell(self):
        kernel, other = self.kernel(), self.kernel("bb")
        stream = self.stream()
        stream.value(other["dir"], "1")
        sleeper = stream.run(other["dir"], "import time; time.sleep(300)")
        self.assertEqual(len(bells(other["dir"])), 1)
        _call, helpers = self.begin_control(stream, kernel)
        self.assertEqual(stream.close(), 0)
        self.ended(stream, helpers)
        self.assertEqual((bells(other["dir"]), sleeper in stream.answers), ([], False))
        self.assertEqual(self.far.ok("probe", dir=other["dir"])["running"]["number"], 2)

    def test_a_reader_that_is_gone_ends_it(self):
        directory = self.kernel()["dir"]
        stream = self.stream()
        stream.value(directory, "1")
        stream.process.stdout.close()
        self.ended(stream, [])
        self.assertEqual(bells(directory), [])

    def test_sigterm_ends_it_in_order(self):
        kernel, directory = self.kernel(), self.kernel("bb")["dir"]
        stream = self.stream()
        stream.value(directory, "1")
        _call, helpers = self.begin_control(stream, kernel)
        os.kill(stream.greeted()["pid"], signal.SIGTERM)
        self.ended(stream, helpers)
        self.assertEqual(bells(directory), [])

    def test_helpers_of_one_that_was_killed_end_in_the_middle_of_their_call(self):
        kernel = self.kernel()
        stream = self.stream()
        call = stream.ok("list")
        self.assertEqual(len(call["kernels"]), 1)
        _call, helpers = self.begin_control(stream, kernel)
        os.kill(stream.greeted()["pid"], signal.SIGKILL)
        self.ended(stream, helpers)

    def test_what_is_no_stream_ends_it(self):
        for noise in (b"\0\0\0\1Cx", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100):
            stream = self.stream()
            stream.greeted()
            stream.write(noise)
            self.assertEqual(stream.process.wait(30), 0)

    def test_a_host_that_is_silent_for_too_long_is_gone(self):
        program = ("import sys; sys.path.insert(0, %r)\nfrom _farcell import courier\ncourier.SILENCE = 1.0\n"
                   "courier.Courier({'runner': '0', 'base': None, 'place': None}, None, {}).serve(b'')" % RUNNER)
        process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stdin.close)
        began = time.monotonic()
        while time.monotonic() - began < 1.5:
            process.stdin.write(HEAD.pack(4, b"P"[0], 0))
            process.stdin.flush()
            self.assertEqual(process.stdout.read(9), HEAD.pack(4, b"p"[0], 0))
        self.assertIsNone(process.poll())
        self.assertEqual(process.wait(30), 0)
        self.assertLess(time.monotonic() - began, 1.5 + 20.0)

    def test_where_a_courier_stands_it_is_told_so_and_the_next_one_is_let_in(self):
        header = {"runner": "0", "base": None, "place": None, "stand": {"mark": "abc", "python": "p"}}
        program = ("import sys; sys.path.insert(0, %r)\nfrom _farcell import courier\ncourier.STANDING_SILENCE = 1.0\n"
                   "courier.Courier(%r, None, {'pid': 1}).serve(b'')" % (RUNNER, header))
        process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stdin.close)

        def say(data, answer):
            process.stdin.write(data)
            process.stdin.flush()
            self.assertEqual(process.stdout.read(len(answer)), answer)
        ping, pong = HEAD.pack(4, b"P"[0], 0), HEAD.pack(4, b"p"[0], 0)
        say(ping, pong)
        say(b"", b"\xfeabc -\n")
        greeting = b'{"courier":{"pid":1},"ok":true}'
        say(ping + b"\xfeabc n 0 0 -\n" + ping, b"\xfeabc n\nn json %d\n%s\n" % (len(greeting), greeting) + pong)
        process.stdin.close()
        self.assertEqual(process.wait(30), 0)


class Follower:
    """What the courier has for a call that waits."""

    rung = 0

    def __init__(self):
        self.call = self
        self.ref = 1

    def guarded(self, function):
        function()

    def news(self):
        self.rung += 1


class Waking(StreamTest):
    def switches(self, pid):
        with open("/proc/%d/status" % pid) as file:
            return sum(int(line.split()[1]) for line in file if "ctxt_switches" in line)

    def test_an_idle_courier_does_nothing_at_all(self):
        directory = self.kernel()["dir"]
        stream = self.stream()
        stream.value(directory, "1", wait={"tell": True})
        pid = stream.greeted()["pid"]

        def asleep():
            before = self.switches(pid)
            stream.pump(0.05)
            return self.switches(pid) == before
        until(asleep, what="its rest")
        before = self.switches(pid)
        stream.pump(1.0)
        self.assertEqual(self.switches(pid), before)

    def test_one_bell_serves_many_cells_and_is_kept_between_them(self):
        directory = self.kernel()["dir"]
        stream = self.stream()
        stream.value(directory, "1")
        kept = bells(directory)
        for _ in range(5):
            stream.value(directory, "1")
        self.assertEqual((len(kept), bells(directory)), (1, kept))

    def attendance(self):
        turns = loop.Loop()
        attendance = attended.Attendance(turns)
        self.addCleanup(attendance.close)
        return turns, attendance

    def test_of_many_kernels_only_the_last_used_keep_a_bell(self):
        directories = [self.kernel("a%d" % number)["dir"] for number in range(3)]
        _turns, attendance = self.attendance()
        with mock.patch.object(attended, "KEPT", 2):
            for directory in directories + directories[1:2]:
                attendance.attend(attendance.checked(directory))
            self.assertEqual([len(bells(directory)) for directory in directories], [0, 1, 1])
            followed = attendance.checked(directories[2])
            followed.follow(Follower())
            for directory in directories[:2]:
                attendance.attend(attendance.checked(directory))
            self.assertEqual([len(bells(directory)) for directory in directories], [0, 1, 1])
        attendance.close()
        self.assertEqual([len(bells(directory)) for directory in directories], [0, 0, 0])

    def test_a_bell_that_a_cleaner_took_is_hung_up_again(self):
        directory = self.kernel()["dir"]
        turns, attendance = self.attendance()
        kernel, follower = attendance.checked(directory), Follower()
        attendance.attend(kernel)
        os.unlink(os.path.join(directory, "waiters", bells(directory)[0]))
        attendance.attend(kernel)
        (bell,) = bells(directory)
        os.unlink(os.path.join(directory, "waiters", bell))
        with mock.patch.object(attended, "LOOK_EVERY", 0.01):
            kernel.follow(follower)
            while not bells(directory):
                turns.turn()
        self.assertGreater(follower.rung, 0)  # what it missed meanwhile is looked for

    def test_without_fifos_it_polls(self):
        directory = self.kernel()["dir"]
        os.rmdir(os.path.join(directory, "waiters"))
        os.symlink("/dev/null", os.path.join(directory, "waiters"))
        stream = self.stream()
        for number in range(3):
            self.assertEqual(stream.answer(stream.run(directory, str(number)), 15.0)["reply"]["result"]["text/plain"], str(number))
        call = stream.run(directory, "print('one', flush=True); import time; time.sleep(0.3); print('two')", wait={"stream": True})
        stream.until(lambda: text_of(stream.records.get(call, b"")) == "one\n", what="the first line")
        self.assertEqual((stream.answer(call)["fate"], text_of(stream.records[call])), ("settled", "one\ntwo\n"))


if __name__ == "__main__":
    unittest.main()
