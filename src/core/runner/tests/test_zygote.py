"""Zygotes come and go, hang and die, and preload what cannot be had: nobody who asks for a kernel has to know."""

import os
import signal
import subprocess
import sys
import time
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests.link_harness import gone, until
from tests.warm_kit import WarmTest

from _farcell import files, osdep, place, warm
from _farcell.fault import Fault


class Lives(WarmTest):
    def check_works(self, kernel):
        self.assertEqual(self.value(kernel, "1 + 1"), 2)

    def folder(self):
        name, = [name for name in os.listdir(self.far.base) if name.startswith("z-")]
        return os.path.join(self.far.base, name)

    def test_it_ends_when_nobody_asks(self):
        with mock.patch.object(warm, "IDLE_SECONDS", 0.2):
            kernel = self.spawn()
        self.assertWarm(kernel)
        until(lambda: not self.far.zygotes(), what="its end")
        self.assertEqual([name for name in os.listdir(self.far.base) if name.startswith("z-")], [])
        self.check_works(kernel)
        self.assertWarm(self.spawn())

    def test_it_ends_with_its_directory(self):
        kernel = self.spawn()
        self.zygote()
        files.remove_tree(self.folder())
        self.assertWarm(self.spawn())
        until(lambda: len(self.far.zygotes()) == 1, what="the end of the first")
        self.check_works(kernel)

    def test_it_ends_with_the_whole_base(self):
        self.spawn()
        self.zygote()
        os.rename(self.far.base, self.far.base + "-gone")
        until(lambda: not self.far.zygotes(), what="its end")
        os.rename(self.far.base + "-gone", self.far.base)

    def test_it_ends_in_good_order_on_sigterm(self):
        kernel = self.spawn()
        os.kill(self.zygote(), signal.SIGTERM)
        until(lambda: not self.far.zygotes(), what="its end")
        self.assertEqual([name for name in os.listdir(self.far.base) if name.startswith("z-")], [])
        self.check_works(kernel)

    def test_after_a_kill_there_is_a_new_one(self):
        first = self.spawn()
        pid = self.zygote()
        os.kill(pid, signal.SIGKILL)
        until(lambda: gone(pid), what="its end")
        second = self.spawn()
        self.assertWarm(second)
        self.assertNotEqual(self.zygote(), pid)
        self.check_works(first)
        self.check_works(second)

    def test_one_that_hangs_is_waited_for_a_moment_and_then_killed(self):
        self.spawn()
        pid = self.zygote()
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        with mock.patch.object(warm, "TAKEN_SECONDS", 0.3):
            kernel = self.spawn()
        self.assertGreaterEqual(time.monotonic() - began, 0.3)
        self.assertFalse(self.is_warm(kernel))
        self.assertIn("not forked from a zygote: the zygote did not answer, and was killed", self.log(kernel))
        self.assertIsNone(self.run_cell(kernel, "1")["kernel"]["note"])
        until(lambda: gone(pid), what="its end")
        self.assertEqual(os.listdir(kernel["dir"]).count(".starting"), 0)
        self.assertWarm(self.spawn())

    def test_a_request_that_was_given_up_is_not_taken(self):
        self.spawn()
        pid = self.zygote()
        os.kill(pid, signal.SIGSTOP)
        with mock.patch.object(warm, "TAKEN_SECONDS", 0.2), mock.patch.object(osdep, "kill_exact", lambda *_: False):
            kernel = self.spawn()
        os.kill(pid, signal.SIGCONT)
        self.assertFalse(self.is_warm(kernel))
        self.check_works(kernel)
        self.assertWarm(self.spawn())  # after it, in the same queue
        self.assertEqual({pid for pid, _start in osdep.pids_with_mark(osdep.MARK, kernel["id"])}, {kernel["pid"], kernel["interpreter_pid"]})
        self.check_works(kernel)

    def test_however_short_the_patience_one_kernel_comes_of_a_spawn(self):
        self.spawn()
        self.zygote()
        ways = set()
        with mock.patch.object(osdep, "kill_exact", lambda *_: False):
            for step in range(40):
                with mock.patch.object(warm, "TAKEN_SECONDS", 1e-6 + step * 2e-5):
                    kernel = self.spawn()
                self.check_works(kernel)
                self.assertEqual({pid for pid, _start in osdep.pids_with_mark(osdep.MARK, kernel["id"])}, {kernel["pid"], kernel["interpreter_pid"]})
                ways.add(self.is_warm(kernel))
                os.kill(kernel["pid"], signal.SIGKILL)
        self.assertTrue(ways)

    def test_a_line_that_cannot_be_heard_is_read_from_the_record(self):
        self.spawn()
        self.zygote()
        sockets = warm._sockets()

        class Late:
            """A connection on which the answer comes just after patience has ended."""

            def __init__(self, link):
                self.link = link
                self.first = True

            def recv(self, size):
                if self.first:
                    self.first = False
                    self.link.settimeout(30)
                    until(lambda: self.link.recv(1, sockets.MSG_PEEK), what="the answer")
                    raise sockets.timeout()
                return self.link.recv(size)

            def __getattr__(self, name):
                return getattr(self.link, name)

        connect = warm.Zygote.connect
        with mock.patch.object(warm.Zygote, "connect", lambda zygote: Late(connect(zygote))):
            kernel = self.spawn()
        self.assertWarm(kernel)
        self.check_works(kernel)

    def test_a_fork_that_breaks_is_cleared_up(self):
        # The record of the kernel cannot be written where there is a directory in its place.
        self.spawn()
        self.zygote()
        connect = warm.Zygote.connect
        made = []

        def spoil(zygote):
            directory, = [name for name in os.listdir(self.far.base) if name.startswith("k-") and not os.path.exists(os.path.join(self.far.base, name, "kernel.json"))]
            os.mkdir(os.path.join(self.far.base, directory, "wake"), 0o700)
            made.append(directory)
            return connect(zygote)

        with mock.patch.object(warm.Zygote, "connect", spoil):
            with self.assertRaises(Fault) as caught:
                self.spawn()
        self.assertEqual(caught.exception.code, "spawn-failed")
        until(lambda: not osdep.pids_with_mark(osdep.MARK, made[0]), what="the end of its processes")
        self.assertFalse(os.path.exists(os.path.join(self.far.base, made[0])))

    def test_without_its_socket_it_is_not_found_and_ends(self):
        self.spawn()
        self.zygote()
        os.unlink(os.path.join(self.folder(), "sock"))
        with mock.patch.object(warm, "_BEGUN_SECONDS", 0.1):
            kernel = self.spawn()
        self.check_works(kernel)
        until(lambda: not self.far.zygotes(), what="its end")
        self.assertWarm(self.spawn())

    def test_a_base_too_deep_for_a_socket_has_none(self):
        deep = os.path.join(self.far.base, "d" * 100)
        os.mkdir(deep, 0o700)
        self.far.base = deep
        kernel = self.spawn()
        self.check_works(kernel)
        self.assertIn("not forked from a zygote: the path of its socket would be too long", self.log(kernel))
        self.assertEqual(self.far.zygotes(), [])

    def test_a_directory_of_another_kind_is_left_alone(self):
        with mock.patch.object(warm.kinds, "kind", lambda *_: "0123456789abcdef"):
            os.mkdir(os.path.join(self.far.base, "elsewhere"), 0o700)
            os.symlink("elsewhere", os.path.join(self.far.base, "z-0123456789abcdef"))
            kernel = self.spawn()
        self.check_works(kernel)
        self.assertIn("is a symbolic link", self.log(kernel))
        self.assertEqual(os.listdir(os.path.join(self.far.base, "elsewhere")), [])

    def test_ten_first_spawns_at_once_start_one(self):
        pids = []
        for number in range(10):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    self.keys = 100 + number
                    kernel = self.spawn()
                    code = 0 if self.value(kernel, "6 * 7") == 42 and self.is_warm(kernel) else 2
                finally:
                    os._exit(code)
            pids.append(pid)
        self.assertEqual([os.waitpid(pid, 0)[1] for pid in pids], [0] * 10)
        self.zygote()
        self.assertEqual(len([name for name in os.listdir(self.far.base) if name.startswith("k-")]), 10)

    def test_whoever_says_nothing_holds_up_nobody(self):
        self.spawn()
        import socket
        quiet = socket.socket(socket.AF_UNIX)
        self.addCleanup(quiet.close)
        quiet.connect(os.path.join(self.folder(), "sock"))
        babbler = socket.socket(socket.AF_UNIX)
        self.addCleanup(babbler.close)
        babbler.connect(os.path.join(self.folder(), "sock"))
        babbler.sendall(b"\x00\x00\x00\x05nonse")
        kernel = self.spawn()
        self.assertWarm(kernel)
        babbler.settimeout(30)
        self.assertEqual(babbler.recv(1), b"")
        quiet.settimeout(30)
        self.assertEqual(quiet.recv(1), b"", "it is sent away after a while")
        self.assertEqual(os.listdir("/proc/%d/fd" % kernel["interpreter_pid"]).count("3"), 0)

    def test_inside_of_a_kernel_there_is_none(self):
        os.environ[osdep.MARK] = "k-outer"
        self.check_works(self.spawn())
        self.assertEqual(self.far.zygotes(), [])

    def test_below_a_kernel_none_is_started(self):
        code = ("import os, sys; sys.path.insert(0, %r)\nfrom tests.warm_kit import WarmTest\n"
                "test = WarmTest('run'); test.setUp(); test.far.base = %r\nprint(test.value(test.spawn(key='77'), '6 * 7'))"
                % (os.path.dirname(os.path.dirname(os.path.abspath(__file__))), self.far.base))
        outer = [sys.executable, "-c", "import os, subprocess, sys; env = dict(os.environ); del env['FARCELL_KERNEL']; subprocess.call(sys.argv[1:], env=env)"]
        out = subprocess.run(outer + [sys.executable, "-c", code], stdout=subprocess.PIPE, env=dict(os.environ, FARCELL_KERNEL="k-outer")).stdout
        self.assertEqual(out.decode().strip(), "42")
        self.assertEqual(self.far.zygotes(), [])

    def test_new_packages_are_found_by_new_kernels(self):
        site = os.path.join(self.far.root, "lib", "python%d.%d" % sys.version_info[:2], "site-packages")
        os.makedirs(site)
        env = {"PYTHONUSERBASE": self.far.root}
        first = self.spawn(env=env)
        pid = self.zygote()
        extra = os.path.join(self.far.root, "extra")
        os.mkdir(extra)
        with open(os.path.join(extra, "editable_one.py"), "w") as file:
            file.write("value = 5\n")
        with open(os.path.join(site, "editable.pth"), "w") as file:
            file.write(extra + "\n")
        self.assertEqual(self.value(first, "import importlib.util; importlib.util.find_spec('editable_one') is None"), True)
        second = self.spawn(env=env)
        self.assertWarm(second)
        self.assertEqual(self.value(second, "import editable_one; editable_one.value"), 5)
        until(lambda: gone(pid), what="the end of the first zygote")
        self.zygote()

    def test_the_sweep_takes_what_is_left_of_a_dead_one_only(self):
        from _farcell import kernels
        self.spawn()
        self.zygote()
        dead = os.path.join(self.far.base, "z-0000000000000000")
        os.mkdir(dead, 0o700)
        open(os.path.join(dead, "sock"), "w").close()
        kernels.sweep(self.header("sweep"), -10)
        self.assertFalse(os.path.exists(dead))
        self.assertWarm(self.spawn())

    def test_a_runner_that_is_gone_is_told_only_where_it_is_needed(self):
        self.spawn()
        self.zygote()
        files.remove_tree(place.runner_dir(self.far.base, self.header("x")["runner"]))
        with mock.patch("tests.warm_kit.MODULES", None):
            self.assertWarm(self.spawn())
            with self.assertRaises(Fault) as caught:
                self.spawn(env={"TZ": "UTC+7"})
        self.assertEqual(caught.exception.code, "need-runner")


class Preloads(WarmTest):
    def setUp(self):
        super().setUp()
        self.folder = os.path.join(self.far.root, "lib")
        os.mkdir(self.folder)
        self.env = {"PYTHONPATH": self.folder}

    def module(self, name, text):
        with open(os.path.join(self.folder, name + ".py"), "w") as file:
            file.write(text)
        return name

    def start(self, *names):
        kernel = self.spawn(env=self.env, preload=list(names))
        self.assertWarm(kernel)
        return kernel

    def loaded(self, kernel, name):
        return self.value(kernel, "import sys; %r in sys.modules" % name)

    def test_a_module_is_there_before_the_first_cell(self):
        name = self.module("counted", "import os\nwhere = os.getpid()\nvalue = []\n")
        one, two = self.start(name), self.start(name)
        self.assertTrue(self.loaded(one, name))
        self.assertIsNone(self.run_cell(one, "1")["kernel"]["note"])
        self.assertEqual(self.value(one, "import counted; counted.where"), self.zygote())
        self.assertEqual(self.value(one, "counted.value.append(1); counted.value"), [1])
        self.assertEqual(self.value(two, "import counted; counted.value"), [])
        self.assertEqual(self.run_cell(one, "import os; os._exit(1)")["status"], "died")
        self.assertTrue(self.loaded(one, name), "after a reset, too")

    def test_preloads_make_kinds(self):
        name = self.module("one", "")
        self.assertFalse(self.loaded(self.start(), name))
        self.assertTrue(self.loaded(self.start(name), name))
        self.assertEqual(len(self.far.zygotes()), 2)

    def test_one_that_fails_is_told_once_and_the_others_are_there(self):
        good, bad = self.module("good", ""), self.module("bad", "raise ValueError('no luck')\n")
        kernel = self.start(bad, good, "never.heard_of")
        reply = self.run_cell(kernel, "import sys; ('good' in sys.modules, 'bad' in sys.modules)")
        self.assertEqual(reply["result"]["text/plain"], "(True, False)")
        self.assertIn("preload of bad failed: ValueError: no luck", reply["kernel"]["note"])
        self.assertIn("preload of never.heard_of failed: ModuleNotFoundError", reply["kernel"]["note"])
        self.assertIsNone(self.run_cell(kernel, "1")["kernel"]["note"])
        self.assertIn("no luck", self.run_cell(self.start(bad, good, "never.heard_of"), "1")["kernel"]["note"])
        self.zygote()

    def check_refused(self, text, why):
        name = self.module("awkward", text)
        kernel = self.start(name)
        reply = self.run_cell(kernel, "import sys, threading; ('awkward' in sys.modules, threading.active_count())")
        self.assertEqual(reply["result"]["text/plain"], "(False, 1)")
        self.assertIn("preload of awkward failed: " + why, reply["kernel"]["note"])

    def test_one_that_starts_threads_is_refused(self):
        self.check_refused("import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n", "it leaves threads running")

    def test_one_that_starts_processes_is_refused(self):
        self.check_refused("import subprocess\np = subprocess.Popen(['sleep', '3'])\n", "it leaves processes running")

    def test_one_that_leaves_files_open_is_refused(self):
        self.check_refused("f = open(__file__)\n", "it leaves %s open" % os.path.join(self.folder, "awkward.py"))

    def test_one_that_exits_is_refused(self):
        self.check_refused("import sys\nsys.exit(3)\n", "SystemExit: 3")

    def test_what_it_changes_of_the_process_is_not_handed_down(self):
        name = self.module("rude", "import signal, sys, os\nsignal.signal(signal.SIGUSR2, lambda *a: None)\nsys.path.append('/from/rude')\n"
                                   "print('noise')\nsys.stderr.write('noise')\nimport logging\nlogging.basicConfig(stream=sys.stdout, level=20)\n")
        kernel = self.start(name)
        reply = self.run_cell(kernel, "import signal, sys, logging; logging.info('heard'); (signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL, '/from/rude' in sys.path)")
        self.assertEqual(reply["result"]["text/plain"], "(True, True)")
        self.assertEqual((reply["stdout"], reply["stderr"]), ("INFO:root:heard\n", ""))

    def test_one_whose_forks_die_is_had_without_a_fork(self):
        name = self.module("deadly", "import os\nfork = os.fork\nos.fork = lambda: fork() or os._exit(7)\n")
        for _ in range(2):
            kernel = self.spawn(env=self.env, preload=[name])
            self.assertFalse(self.is_warm(kernel))
            self.assertIn("not forked from a zygote: ", self.log(kernel))
            reply = self.run_cell(kernel, "1 + 1")
            self.assertEqual(reply["result"]["text/plain"], "2")
            self.assertIn("nothing was preloaded: ", reply["kernel"]["note"])

    def test_one_that_crashes_is_not_tried_again_for_a_while(self):
        name = self.module("crashing", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
        for why in ("the zygote ended", "a zygote ended before it was ready"):
            kernel = self.spawn(env=self.env, preload=[name])
            self.assertFalse(self.is_warm(kernel))
            self.assertIn("nothing was preloaded: " + why, self.run_cell(kernel, "1")["kernel"]["note"])
        self.module("crashing", "")
        with mock.patch.object(warm, "FAILED_SECONDS", 0.0):
            self.assertTrue(self.loaded(self.start(name), name))

    def test_an_edited_module_is_imported_anew(self):
        name = self.module("edited", "value = 1\n")
        self.assertEqual(self.value(self.start(name), "import edited; edited.value"), 1)
        self.module("edited", "value = 22\n")
        self.assertEqual(self.value(self.start(name), "import edited; edited.value"), 22)
        until(lambda: len(self.far.zygotes()) == 1, what="the end of the first zygote")

    def test_one_that_takes_long_is_not_waited_for(self):
        gate = os.path.join(self.far.root, "gate")
        os.mkfifo(gate)
        name = self.module("slow", "open(%r).read()\n" % gate)
        with mock.patch.object(warm, "IMPORT_SECONDS", 0.5):
            for _ in range(2):
                kernel = self.spawn(env=self.env, preload=[name])
                self.assertFalse(self.is_warm(kernel))
                self.assertFalse(self.loaded(kernel, name))
        self.assertIn("still imports", self.log(kernel))
        with open(gate, "w"):
            pass
        self.zygote()
        self.assertTrue(self.loaded(self.start(name), name))

    def test_names_that_no_module_can_have_are_refused(self):
        for preload in (["os; evil"], ["a b"], [""], [3], "numpy", ["x"] * 65, ["." ]):
            with self.assertRaises(Fault) as caught:
                self.spawn(preload=preload)
            self.assertEqual(caught.exception.code, "bad-request")


if __name__ == "__main__":
    unittest.main()
