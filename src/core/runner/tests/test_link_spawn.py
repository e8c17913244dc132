"""Starting kernels: one per key, detached from everything, and nothing left of a start that failed."""

import json
import os
import signal
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests import link_harness as harness
from tests.link_harness import FarTest, needs_root, until


class Spawning(FarTest):
    def spawn_many(self, count, **fields):
        started = []
        for number in range(count):
            header = {"op": "spawn", "place": {"dir": self.far.base}, "key": "aa", "spec": {"id": "k-%d%s" % (number, os.urandom(4).hex()), "idle_ms": 600000}}
            header.update(fields)
            nonce, data = harness.request(header)
            process = harness.start()
            process.stdin.write(data)
            process.stdin.flush()
            started.append((nonce, process))
        answers = []
        for nonce, process in started:
            out, err = process.communicate(timeout=120)
            answers.append(harness.Reply(out, err, process.returncode, nonce).json)
        return answers

    def test_ten_at_once_make_one_kernel(self):
        answers = self.spawn_many(10)
        self.assertEqual({answer["ok"] for answer in answers}, {True}, answers)
        self.assertEqual(len({answer["kernel"]["id"] for answer in answers}), 1)
        self.assertEqual(sorted(answer["reused"] for answer in answers), [False] + [True] * 9)
        self.assertEqual(len([name for name in os.listdir(self.far.base) if name.startswith("k-")]), 1)

    def test_a_lost_key_entry_does_not_double_the_kernel(self):
        kernel = self.kernel()
        os.unlink(os.path.join(self.far.base, "keys", "aa"))
        again = self.far.spawn()
        self.assertEqual((again["reused"], again["kernel"]["id"]), (True, kernel["id"]))

    def test_the_command_returns_at_once_and_keeps_nothing_open(self):
        nonce, data = harness.request({"op": "spawn", "place": {"dir": self.far.base}, "key": "aa", "spec": {"id": "k-1"}})
        process = harness.start()
        out, err = process.communicate(data, timeout=60)  # waits for the end of both streams
        reply = harness.Reply(out, err, process.returncode, nonce)
        self.assertTrue(reply.json["ok"], reply.json)
        pid = reply.json["kernel"]["pid"]
        for fd in "012":
            # Just after its line is out.
            until(lambda: os.readlink("/proc/%d/fd/%s" % (pid, fd)) == "/dev/null", what="/dev/null on %s" % fd)
        self.assertNotEqual(os.getsid(pid), os.getsid(0))
        with open("/proc/%d/stat" % pid) as file:
            self.assertEqual(file.read().rsplit(")", 1)[1].split()[4], "0", "it has a terminal")

    def test_a_command_that_ignores_signals_does_not_hand_that_down(self):
        far = self.far
        words = "trap '' INT HUP QUIT; " + harness.command()
        spawned = far.send("spawn", key="aa", spec={"id": "k-1"}, words=words).json
        directory = spawned["kernel"]["dir"]
        self.assertEqual(self.value(directory, "import signal; [signal.getsignal(s) is signal.SIG_IGN for s in (signal.SIGHUP, signal.SIGQUIT)]"), "[False, False]")
        number, _id = self.begin(directory, "import time; time.sleep(300)")
        self.assertTrue(far.ok("control", dir=directory, do="interrupt")["done"])
        self.assertEqual(far.ok("wait", dir=directory, number=number, wait={"hold_ms": 25000})["reply"]["status"], "interrupted")

    def test_the_deadline_of_the_command_is_not_the_kernels(self):
        reply = self.far.send("spawn", key="aa", spec={"id": "k-1"}, deadline_ms=20000)
        with open("/proc/%d/status" % reply.json["kernel"]["pid"]) as file:
            pending = [line for line in file if line.startswith(("SigBlk", "SigIgn"))]
        self.assertEqual(int(pending[0].split()[1], 16) & 1 << (signal.SIGALRM - 1), 0)
        self.assertEqual(self.value(reply.json["kernel"]["dir"], "import signal; signal.alarm(0)"), "0")

    def test_the_users_packages_and_variables_are_there(self):
        extra = os.path.join(self.far.root, "site")
        os.mkdir(extra)
        with open(os.path.join(extra, "my_module.py"), "w") as file:
            file.write("value = 7\n")
        kernel = self.kernel(env={"PYTHONPATH": extra, "COLOUR": "blue"}, cwd=extra)
        self.assertEqual(self.value(kernel["dir"], "import my_module, sys, os; (my_module.value, sys.flags.no_site, sys.flags.ignore_environment, os.environ['COLOUR'], os.getcwd())"),
                         repr((7, 0, 0, "blue", extra)))
        self.assertEqual(self.value(kernel["dir"], "sys.path[0], any('runner-' in p for p in sys.path)"), "('', False)")

    def test_a_missing_working_directory_is_told_and_nothing_is_left(self):
        reply = self.far.send("spawn", key="aa", spec={"id": "k-1", "cwd": "/no/such/place"})
        self.assertEqual(reply.code, "spawn-failed")
        self.assertIn("/no/such/place", reply.json["error"]["message"])
        self.assertEqual([name for name in os.listdir(self.far.base) if name.startswith("k-")], [])
        self.assertEqual(self.far.spawn()["previous"], None)

    @needs_root
    def test_no_free_process_is_told(self):
        # A user of its own, so that its limit of processes counts.
        os.chmod(self.far.root, 0o755)
        home = os.path.join(self.far.root, "home")
        os.mkdir(home, 0o700)
        os.chown(home, 61234, 61234)
        nonce, data = harness.request({"op": "spawn", "place": {"dir": home + "/base"}, "key": "aa", "spec": {"id": "k-1"}},
                                      python=os.path.realpath("/usr/bin/python3"))
        limited = ("import os, resource, sys; os.setgroups([]); os.setgid(61234); os.setuid(61234); "
                   "resource.setrlimit(resource.RLIMIT_NPROC, (2, 2)); os.execv('/bin/sh', ['/bin/sh', '-c', sys.argv[1]])")
        process = harness.start(shell=[sys.executable, "-c", limited], cwd="/")
        out, err = process.communicate(data, timeout=60)
        reply = harness.Reply(out, err, process.returncode, nonce)
        self.assertEqual(reply.code, "no-process", (out, err))
        self.assertIn("no free process", reply.json["error"]["message"])
        self.assertEqual([name for name in os.listdir(home + "/base") if name.startswith("k-")], [])

    def test_a_start_that_died_half_way_is_cleared_up(self):
        self.kernel("bb")
        half = os.path.join(self.far.base, "k-half")
        os.mkdir(half, 0o700)
        open(os.path.join(half, ".starting"), "w").close()
        with open(os.path.join(self.far.base, "keys", "aa"), "w") as file:
            file.write("k-half")
        spawned = self.far.spawn(id="k-half")
        self.assertEqual((spawned["reused"], spawned["kernel"]["id"]), (False, "k-half"))

    def test_a_kernel_of_another_user_under_the_key_is_not_used(self):
        kernel = self.kernel()
        outside = os.path.join(self.far.root, "outside")
        os.mkdir(outside, 0o700)
        with open(os.path.join(outside, "kernel.json"), "w") as file:
            json.dump({"id": "k-evil", "key": "cc"}, file)
        os.symlink(outside, os.path.join(self.far.base, "k-evil"))
        with open(os.path.join(self.far.base, "keys", "cc"), "w") as file:
            file.write("k-evil")
        spawned = self.far.spawn("cc")
        self.assertEqual((spawned["reused"], spawned["previous"]), (False, None))
        self.assertEqual(self.far.send("probe", dir=os.path.join(self.far.base, "k-evil")).code, "unsafe-directory")
        self.assertEqual([entry["kernel"]["id"] for entry in self.far.ok("list")["kernels"]], sorted([kernel["id"], spawned["kernel"]["id"]]))

    def test_a_kernel_of_another_version_is_left_alone(self):
        kernel = self.kernel()
        path = os.path.join(kernel["dir"], "kernel.json")
        with open(path, "w") as file:
            json.dump(dict(kernel, v=2), file)
        self.assertEqual(self.far.send("spawn", key="aa", spec={"id": "k-1"}).code, "version")
        os.kill(kernel["pid"], signal.SIGKILL)
        until(lambda: harness.gone(kernel["pid"]), what="the kernel's end")
        self.assertEqual(self.far.ok("sweep", older_than_s=0)["removed"], [])

    def test_linked_keys_and_cells_are_refused(self):
        kernel = self.kernel()
        victim = os.path.join(self.far.root, "victim")
        with open(victim, "w") as file:
            file.write("precious")
        os.symlink(victim, os.path.join(self.far.base, "keys", "dd"))
        self.assertFalse(self.far.send("spawn", key="dd", spec={"id": "k-1"}).json["ok"])
        os.rename(os.path.join(kernel["dir"], "cells"), os.path.join(self.far.root, "cells"))
        os.symlink(os.path.join(self.far.root, "cells"), os.path.join(kernel["dir"], "cells"))
        self.assertFalse(self.far.send("run", dir=kernel["dir"], cell=self.far.cell("1"), wait={}, ack=[]).json["ok"])
        with open(victim) as file:
            self.assertEqual(file.read(), "precious")


if __name__ == "__main__":
    unittest.main()
