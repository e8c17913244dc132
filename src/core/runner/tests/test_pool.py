"""A pool of ready kernels: each is given out once, cannot be told from one that was started, and none is left when the zygote ends."""

import os
import signal
import sys
import time
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests.link_harness import gone, until
from tests.test_warm import FACTS, LIMITS
from tests.warm_kit import WarmTest

from _farcell import doctor, files, kernels, osdep, pool, warm
from _farcell.fault import Fault


class PoolTest(WarmTest):
    def folders(self):
        """The directories of the kernels that stand ready."""
        found = []
        for name in os.listdir(self.far.base):
            if name.startswith("z-"):
                path = os.path.join(self.far.base, name)
                found += [os.path.join(path, each) for each in os.listdir(path) if each.startswith("r-") and files.is_locked(os.path.join(path, each))]
        return found

    def pids(self):
        return {int(path.rpartition("-")[2]) for path in self.folders()}

    def fill(self, count, **spec):
        """A kernel that was forked, and a full pool."""
        kernel = self.spawn(pool=count, **spec)
        self.assertWarm(kernel)
        return kernel, self.full(count)

    def full(self, count):
        # They lock their directories when they have told the zygote.
        return until(lambda: self.pids() if len(self.pids()) == count else None, what="a pool of %d" % count)

    def is_taken(self, kernel):
        return "taken from the pool of a zygote\n" in self.log(kernel)

    def assertTaken(self, kernel):
        self.assertTrue(self.is_taken(kernel), self.log(kernel))


class Takes(PoolTest):
    def test_one_is_taken_and_replaced(self):
        _, pids = self.fill(2)
        kernel = self.spawn(pool=2)
        self.assertTaken(kernel)
        self.assertIn(kernel["pid"], pids)
        self.assertEqual(self.value(kernel, "6 * 7"), 42)
        left = self.full(2)
        self.assertNotIn(kernel["pid"], left)
        self.assertEqual(len(left & pids), 1)
        self.assertFalse(os.path.exists(os.path.join(kernel["dir"], ".starting")))

    def test_a_taken_one_cannot_be_told_from_a_started_one(self):
        folder = os.path.join(self.far.root, "work")
        os.mkdir(folder)
        self.fill(1)
        for spec in ({}, {"cwd": folder, "env": {"COLOUR": "blue", "caf\u00e9": "\u20ac"}, "limits": LIMITS}):
            cold = self.spawn_cold(**spec)
            wanted = self.value(cold, FACTS)
            kernel = self.spawn(**spec)
            self.assertTaken(kernel)
            found = self.value(kernel, FACTS)
            self.assertEqual(sorted(found), sorted(wanted))
            for name in wanted:
                self.assertEqual(found[name], wanted[name], name)
            self.assertEqual(self.run_cell(kernel, "1")["kernel"], dict(self.run_cell(cold, "1")["kernel"], id=kernel["id"]))
            self.assertEqual(sorted(os.listdir(kernel["dir"])), sorted(os.listdir(cold["dir"])))
            self.assertEqual({name: kernel[name] for name in kernel if name not in ("id", "key", "dir", "pid", "start_time", "interpreter_pid", "created", "lane")},
                             {name: cold[name] for name in kernel if name not in ("id", "key", "dir", "pid", "start_time", "interpreter_pid", "created", "lane")})
            self.full(1)

    def test_environment_and_umask_are_those_of_the_taker(self):
        os.environ["FIRST"] = "1"
        self.fill(2)
        before = os.umask(0o002)
        try:
            del os.environ["FIRST"]
            os.environ["SECOND"] = "2"
            kernel = self.spawn()
        finally:
            os.umask(before)
        self.assertTaken(kernel)
        code = "import os; m = os.umask(0); os.umask(m); (os.environ.get('FIRST'), os.environ.get('SECOND'), m)"
        self.assertEqual(self.value(kernel, code), (None, "2", 0o002))
        self.assertEqual(self.run_cell(kernel, "import os; os._exit(1)")["status"], "died")
        self.assertEqual(self.value(kernel, code), (None, "2", 0o002), "a later interpreter has it, too")

    def test_its_processes_are_found_by_its_mark(self):
        self.fill(1)
        kernel = self.spawn()
        self.assertTaken(kernel)
        self.assertEqual(self.value(kernel, "1"), 1)
        self.assertEqual({pid for pid, _start in osdep.pids_with_mark(osdep.MARK, kernel["id"])}, {kernel["pid"], kernel["interpreter_pid"]})
        os.kill(kernel["pid"], signal.SIGKILL)
        until(lambda: gone(kernel["interpreter_pid"]), what="the end of the interpreter")

    def test_two_at_once_never_get_the_same(self):
        self.fill(3)
        pids = []
        for number in range(8):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    self.keys = 100 + number
                    kernel = self.spawn()
                    value = self.value(kernel, "x = globals().get('x', 0) + 1; import os; (x, os.environ['FARCELL_KERNEL'])")
                    code = 0 if value == (1, kernel["id"]) else 2
                finally:
                    os._exit(code)
            pids.append(pid)
        self.assertEqual([os.waitpid(pid, 0)[1] for pid in pids], [0] * 8)
        records = [files.read_json(os.path.join(self.far.base, name, "kernel.json")) for name in os.listdir(self.far.base) if name.startswith("k-")]
        self.assertEqual(len(records), 9)
        for field in ("pid", "interpreter_pid", "id"):
            self.assertEqual(len({record[field] for record in records}), 9)
        self.assertGreaterEqual(sum("taken from the pool" in self.log(record) for record in records), 2)

    def test_one_key_takes_one(self):
        self.fill(2)
        first = self.spawn_answer(key="ab")
        again = self.spawn_answer(key="ab")
        self.assertTaken(first["kernel"])
        self.assertEqual((again["reused"], again["kernel"]["id"]), (True, first["kernel"]["id"]))

    def test_a_missing_working_directory_is_told_and_nothing_is_left(self):
        _, pids = self.fill(1)
        with self.assertRaises(Fault) as caught:
            self.spawn(cwd="/no/such/place")
        self.assertEqual((caught.exception.code, "/no/such/place" in caught.exception.message), ("spawn-failed", True))
        self.assertEqual(len([name for name in os.listdir(self.far.base) if name.startswith("k-")]), 1)
        until(lambda: len(self.pids()) == 1 and not self.pids() & pids, what="another one")
        self.assertTaken(self.spawn())

    def test_a_directory_that_somebody_has_filled_is_not_replaced(self):
        self.fill(1)
        connect = warm.Zygote.connect
        made = []

        def spoil(zygote):
            name, = [name for name in os.listdir(self.far.base) if name.startswith("k-") and not os.path.exists(os.path.join(self.far.base, name, "kernel.json"))]
            os.mkdir(os.path.join(self.far.base, name, "surprise"), 0o700)
            made.append(name)
            return connect(zygote)

        with mock.patch.object(warm.Zygote, "connect", spoil):
            with self.assertRaises(Fault) as caught:
                self.spawn()
        self.assertEqual(caught.exception.code, "spawn-failed")
        until(lambda: not osdep.pids_with_mark(osdep.MARK, made[0]), what="the end of its processes")
        self.full(1)

    def test_a_request_too_long_for_a_message_is_forked_for(self):
        self.fill(1)
        kernel = self.spawn(env={"LONG%d" % number: "x" * 100000 for number in range(5)})
        self.assertWarm(kernel)
        self.assertEqual(self.value(kernel, "import os; len(os.environ['LONG4'])"), 100000)

    def test_random_numbers_differ(self):
        self.fill(2)
        values = [self.value(kernel, "import random; random.random()") for kernel in (self.spawn(), self.spawn())]
        self.assertNotEqual(*values)


class Sizes(PoolTest):
    def test_without_a_number_there_is_none(self):
        self.spawn()
        self.zygote()
        self.assertEqual(self.folders(), [])

    def test_null_leaves_it_and_a_number_changes_it(self):
        self.fill(1)
        self.assertTaken(self.spawn(pool=None))
        self.full(1)
        self.assertTaken(self.spawn(pool=3))
        pids = self.full(3)
        self.spawn(pool=0)
        until(lambda: not self.folders() and all(map(gone, pids)), what="an empty pool")

    def test_what_is_no_number_of_kernels_is_refused(self):
        for number in (-1, 33, True, "2", 1.5, [1]):
            with self.assertRaises(Fault) as caught:
                self.spawn(pool=number)
            self.assertEqual(caught.exception.code, "bad-request")

    def test_they_are_no_kernels_to_others_and_doctor_counts_them(self):
        kernel, _ = self.fill(2)
        self.assertEqual([each["kernel"]["id"] for each in kernels.listing(self.header("list"))], [kernel["id"]])
        facts = doctor.facts(self.header("doctor"))
        self.assertEqual((facts["kernels"], facts["ready"]), (1, 2))


class Ends(PoolTest):
    def check_all_gone(self, pids):
        until(lambda: all(map(gone, pids)), what="the end of the pool")

    def family(self, pids):
        return pids.union(*[[pid for pid, _start in osdep.descendants(each)] for each in pids])

    def test_a_dead_one_is_not_given_out_and_is_replaced(self):
        _, pids = self.fill(2)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.check_all_gone(pids)
        kernel = self.spawn()
        self.assertEqual(self.value(kernel, "1 + 1"), 2)
        self.assertNotIn(kernel["pid"], pids)
        with mock.patch.object(pool, "_SETBACK_FIRST", 0.01):
            self.assertFalse(pids & self.full(2))

    def test_one_whose_interpreter_is_dead_ends(self):
        _, pids = self.fill(1)
        supervisor, = pids
        (interpreter, _start), = osdep.descendants(supervisor)
        os.kill(interpreter, signal.SIGKILL)
        self.check_all_gone(pids)
        self.assertEqual(self.value(self.spawn(), "1 + 1"), 2)
        self.full(1)

    def test_one_that_dies_while_it_is_taken_costs_no_kernel(self):
        _, pids = self.fill(1)
        supervisor, = pids
        os.kill(supervisor, signal.SIGSTOP)
        child = os.fork()
        if child == 0:
            until(lambda: any(name.startswith("k-") and not os.path.exists(os.path.join(self.far.base, name, "kernel.json")) for name in os.listdir(self.far.base)), what="a spawn")
            time.sleep(0.2)
            os.kill(supervisor, signal.SIGKILL)
            os._exit(0)
        kernel = self.spawn()
        os.waitpid(child, 0)
        self.assertIn("what the zygote had forked ended", self.log(kernel))
        self.assertEqual(self.value(kernel, "1 + 1"), 2)

    def test_they_end_when_the_zygote_is_cooled(self):
        kernel, pids = self.fill(2)
        family = self.family(pids)
        self.assertEqual(len(family), 4)
        self.assertEqual(kernels.cool(self.header("cool")), 1)
        self.check_all_gone(family)
        self.assertEqual([name for name in os.listdir(self.far.base) if name.startswith("z-")], [])
        self.assertEqual(self.value(kernel, "1 + 1"), 2)

    def test_they_end_when_the_zygote_is_killed(self):
        _, pids = self.fill(2)
        family = self.family(pids)
        os.kill(self.zygote(), signal.SIGKILL)
        self.check_all_gone(family)
        self.assertEqual(self.folders(), [])
        kernel = self.spawn()
        self.assertWarm(kernel)
        self.zygote()
        left = [name for place in os.listdir(self.far.base) if place.startswith("z-") for name in os.listdir(os.path.join(self.far.base, place))]
        self.assertEqual([name for name in left if name.startswith("r-")], [])

    def test_they_end_with_the_idle_time(self):
        with mock.patch.object(warm, "IDLE_SECONDS", 1.0):
            kernel, pids = self.fill(1)
        self.check_all_gone(self.family(pids))
        until(lambda: not self.far.zygotes(), what="the end of the zygote")
        self.assertEqual(self.value(kernel, "1 + 1"), 2)

    def test_they_end_with_the_base(self):
        _, pids = self.fill(1)
        os.rename(self.far.base, self.far.base + "-gone")
        self.check_all_gone(self.family(pids))
        os.rename(self.far.base + "-gone", self.far.base)

    def test_a_taken_one_outlives_the_zygote(self):
        self.fill(1)
        kernel = self.spawn()
        self.assertTaken(kernel)
        os.kill(self.zygote(), signal.SIGKILL)
        until(lambda: not self.far.zygotes(), what="the zygote's end")
        self.assertEqual(self.value(kernel, "1 + 1"), 2)

    def test_a_stale_one_is_not_given_out(self):
        folder = os.path.join(self.far.root, "lib")
        os.mkdir(folder)

        def write(text):
            with open(os.path.join(folder, "edited.py"), "w") as file:
                file.write(text)

        spec = {"env": {"PYTHONPATH": folder}, "preload": ["edited"]}
        write("value = 1\n")
        _, pids = self.fill(1, **spec)
        write("value = 22\n")
        kernel = self.spawn(**spec)
        self.assertEqual(self.value(kernel, "import edited; edited.value"), 22)
        self.check_all_gone(pids)


if __name__ == "__main__":
    unittest.main()
