"""Requests that are wrong, cut or late, targets that cannot hold a kernel, and keeping house."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests import link_harness as harness
from tests.link_harness import FarTest, gone, needs_root, until


class House(FarTest):
    def dead(self, key):
        kernel = self.kernel(key)
        os.kill(kernel["pid"], signal.SIGKILL)
        until(lambda: gone(kernel["pid"]) and gone(kernel["interpreter_pid"]), what="the kernel's end")
        return kernel

    def test_list_sweep_and_remove_touch_only_the_dead(self):
        live, dead, other = self.kernel("aa"), self.dead("bb"), self.dead("cc")
        listed = {entry["kernel"]["id"]: entry["alive"] for entry in self.far.ok("list")["kernels"]}
        self.assertEqual(listed, {live["id"]: True, dead["id"]: False, other["id"]: False})
        self.assertEqual(self.far.send("remove", dir=live["dir"]).code, "busy")
        self.far.ok("remove", dir=dead["dir"])
        self.assertEqual(self.far.ok("sweep", older_than_s=3600)["removed"], [])
        victim = os.path.join(self.far.root, "victim")
        os.mkdir(victim)
        os.symlink(victim, os.path.join(self.far.base, "k-link"))
        self.assertEqual(self.far.ok("sweep", older_than_s=0)["removed"], [other["dir"]])
        self.assertTrue(os.path.isdir(victim))
        self.assertEqual(self.value(live["dir"], "1"), "1")

    def test_what_died_long_ago_is_swept_in_passing_once_a_day(self):
        live, dead, recent = self.kernel("aa"), self.dead("bb"), self.dead("cc")
        long_ago = time.time() - 8 * 24 * 3600
        for part in ("cells", "waiters", "kernel.json", ""):
            os.utime(os.path.join(dead["dir"], part) if part else dead["dir"], (long_ago, long_ago))
        self.kernel("dd")
        self.assertTrue(os.path.isdir(dead["dir"]), "it was swept today already")
        os.utime(os.path.join(self.far.base, "swept"), (long_ago, long_ago))
        self.kernel("ee")
        self.assertEqual([os.path.isdir(kernel["dir"]) for kernel in (live, dead, recent)], [True, False, True])

    def test_a_stop_ends_a_supervisor_that_is_stopped(self):
        kernel = self.kernel()
        os.kill(kernel["pid"], signal.SIGSTOP)
        answer = self.far.ok("control", dir=kernel["dir"], do="stop", if_idle=True, hold_ms=300)
        self.assertFalse(answer["done"], "whether it is idle cannot be known")
        answer = self.far.ok("control", dir=kernel["dir"], do="stop", hold_ms=300)
        self.assertTrue(answer["done"])
        until(lambda: gone(kernel["pid"]) and gone(kernel["interpreter_pid"]), what="the kernel's end")

    def test_an_interrupt_is_for_the_cell_that_it_names(self):
        kernel = self.kernel()
        number, right = self.begin(kernel["dir"], "import time; time.sleep(60)")
        wrong = self.far.ok("control", dir=kernel["dir"], do="interrupt", id="0" * 32)
        self.assertEqual((wrong["done"], wrong["detail"]), (False, "another cell runs: %d" % number))
        self.assertTrue(self.far.ok("control", dir=kernel["dir"], do="interrupt", id=right)["done"])

    def test_a_cell_that_has_to_wait_is_told_at_once_if_that_is_asked_for(self):
        kernel = self.kernel()
        self.begin(kernel["dir"], "import time; time.sleep(60)")
        started = time.monotonic()
        answer = self.far.run(kernel["dir"], "1", wait={"hold_ms": 20000, "tell": True})
        self.assertEqual((answer["fate"], answer["ahead"]), ("waiting", 1))
        self.assertLess(time.monotonic() - started, 15)
        self.far.ok("control", dir=kernel["dir"], do="interrupt")

    def test_the_log_can_be_read(self):
        kernel = self.kernel()
        reply = self.far.send("read", dir=kernel["dir"], file="log", offset=0, max=100000)
        self.assertEqual((reply.json["ok"], reply.json["size"], len(reply.out)), (True, reply.json["offset"], reply.json["offset"]))
        self.assertEqual(self.far.send("read", dir=kernel["dir"], file="out", number=77).code, "unknown-cell")

    def test_the_doctor_finds_what_is_there(self):
        self.kernel()
        facts = self.far.ok("doctor")
        for name in ("python", "version", "platform", "base", "memory_backed", "free_bytes", "fifo", "inotify", "pidfd", "flock", "fork", "subreaper", "uid",
                     "user", "home", "logind", "lingering", "encoding", "cpu", "limits", "refused", "modules", "kernels"):
            self.assertIn(name, facts)
        self.assertEqual((facts["fifo"], facts["flock"], facts["fork"], facts["kernels"], facts["uid"]), (True, True, True, 1, os.geteuid()))
        self.assertEqual([name for name in os.listdir(self.far.base) if name.startswith(".")], [])


class Requests(FarTest):
    def test_what_does_not_fit_the_protocol_is_refused_by_name(self):
        directory = self.kernel()["dir"]
        cell = self.far.cell("1")
        for fields, part in (({"op": "dance"}, "dance"), ({"op": "run", "cell": cell}, "dir"), ({"op": "run", "dir": directory}, "cell"),
                             ({"op": "run", "dir": directory, "cell": dict(cell, id="x")}, "cell.id"), ({"op": "run", "dir": directory, "cell": dict(cell, code=5)}, "cell.code"),
                             ({"op": "wait", "dir": directory, "number": "1"}, "number"), ({"op": "wait", "dir": directory, "number": -1}, "number"),
                             ({"op": "wait", "dir": directory, "number": True}, "number"), ({"op": "wait", "dir": directory, "number": 10 ** 12}, "number"),
                             ({"op": "wait", "dir": directory, "wait": {"hold_ms": "x"}}, "hold_ms"), ({"op": "ack", "dir": directory, "numbers": ["../x"]}, "numbers"),
                             ({"op": "control", "dir": directory, "do": "explode"}, "do"), ({"op": "read", "dir": directory, "file": "../../x"}, "file"),
                             ({"op": "probe", "dir": "/etc"}, "dir"), ({"op": "sweep"}, "older_than_s"), ({"op": "spawn", "key": "../x", "spec": {"id": "k-1"}}, "key"),
                             ({"op": "spawn", "key": "aa", "spec": {"id": "../k-1"}}, "spec.id"), ({"op": "list", "base": "relative"}, "base"),
                             ({"op": "list", "base": None, "place": {"dir": "x"}}, "place.dir")):
            fields = dict(fields)
            reply = harness.send(dict({"base": self.far.base}, **fields), bundle="base" in fields or "place" in fields)
            self.assertEqual(reply.code, "bad-request", (fields, reply.json))
            self.assertIn(part, reply.json["error"]["message"])

    def test_an_unknown_version_is_refused(self):
        self.assertEqual(self.far.send("list", v=2).code, "version")

    def test_a_missing_runner_is_asked_for_and_nothing_is_done(self):
        reply = harness.send({"op": "list", "base": None, "place": {"dir": self.far.base}}, bundle=False)
        self.assertEqual(reply.code, "need-runner")
        self.assertFalse(os.path.exists(self.far.base))
        self.kernel()
        package = os.path.join(self.far.base, "runner-" + harness.HASH, "_farcell")
        for name in ("watch.py", "link.py"):
            os.unlink(os.path.join(package, name))
            reply = self.far.send("run", dir=os.path.join(self.far.base, "k-1"), cell=self.far.cell("1"), wait={}, ack=[])
            self.assertEqual(reply.code, "need-runner", reply.json)
        self.far.installed = False
        self.assertTrue(self.far.spawn()["reused"])

    def test_noise_of_the_login_shell_hurts_nobody(self):
        words = "echo 'Welcome to box 1'; printf 'no newline here '; echo warning >&2; (%s); echo 'bye bye'" % harness.command().replace("exec ", "", 1)
        reply = self.far.send("spawn", key="aa", spec={"id": "k-1"}, words=words)
        self.assertTrue(reply.json["ok"], reply.stdout)
        self.assertIn(b"bye bye", reply.stdout)

    def test_an_input_that_is_cut_is_told_on_stderr_and_nothing_is_done(self):
        nonce, data = harness.request({"op": "spawn", "place": {"dir": self.far.base}, "key": "aa", "spec": {"id": "k-1"}})
        head = data.index(b'{"v": 1')
        for cut in (10, 40, 80, head, head + 30, len(data) - len(harness.BUNDLE) - 1, len(data) - 5):
            process = harness.start()
            out, err = process.communicate(data[:cut], timeout=60)
            reply = harness.Reply(out, err, process.returncode, nonce)
            self.assertFalse(reply.json and reply.json["ok"], cut)
            self.assertFalse(os.path.exists(self.far.base))
            self.assertNotIn(b"Traceback", err if cut >= head else b"")
            if cut >= head:
                self.assertEqual((process.returncode, b"cut short" in err), (99, True), (cut, err))

    def test_after_its_deadline_a_command_is_gone(self):
        directory = self.kernel()["dir"]
        number, _id = self.begin(directory, "import time; time.sleep(300)")
        began = time.monotonic()
        # The answer comes before the deadline, because a hold that is longer is cut.
        answer = self.far.ok("wait", dir=directory, number=number, wait={"hold_ms": 60000}, deadline_ms=2000)
        self.assertEqual(answer["fate"], "running")
        self.assertLess(time.monotonic() - began, 15)
        fd = os.open(os.path.join(directory, "cells"), os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            reply = self.far.send("run", dir=directory, cell=self.far.cell("1"), wait={}, ack=[], deadline_ms=1000)
            self.assertIsNone(reply.json)
            self.assertEqual(reply.status, 128 + signal.SIGALRM)
        finally:
            os.close(fd)

    def test_no_python_is_told(self):
        reply = self.far.send("list", python="/no/python")
        self.assertEqual(reply.code, "no-python")
        reply = self.far.send("list", python="", env={"PATH": "/nonexistent"})
        self.assertTrue(reply.json["ok"] or reply.code == "no-python")

    @needs_root
    def test_a_target_where_nothing_can_be_written_says_so(self):
        nonce, data = harness.request({"op": "spawn", "key": "aa", "spec": {"id": "k-1"}}, python=os.path.realpath("/usr/bin/python3"))
        bare = ("import os, sys; os.setgroups([]); os.setgid(61235); os.setuid(61235); os.environ.clear(); os.chdir('/'); "
                "os.execv('/bin/sh', ['/bin/sh', '-c', sys.argv[1]])")
        words = ["unshare", "-m", "/bin/sh", "-c", "for d in /dev/shm /tmp /var/tmp; do mount -t tmpfs -o ro none $d || exit 77; done; exec \"$0\" -c \"$1\" \"$2\"",
                 sys.executable if not sys.executable.startswith("/tmp") else "/usr/bin/python3", bare]
        if not shutil.which("unshare"):
            self.skipTest("no unshare here")
        process = harness.start(shell=words, cwd="/")
        out, err = process.communicate(data, timeout=60)
        if process.returncode == 77 or b"unshare" in err:
            self.skipTest("no mount namespaces here")
        reply = harness.Reply(out, err, process.returncode, nonce)
        self.assertEqual(reply.code, "no-place", (out, err))
        for part in ("/dev/shm", "/tmp", "/var/tmp", "read-only"):
            self.assertIn(part, reply.json["error"]["message"])

    @needs_root
    def test_a_full_disk_is_told_and_nothing_is_left(self):
        mount = os.path.join(self.far.root, "small")
        os.mkdir(mount)
        if subprocess.call(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "none", mount], stderr=subprocess.DEVNULL):
            self.skipTest("no mounts here")
        self.far.base = os.path.join(mount, "base")
        try:
            directory = self.kernel()["dir"]
            self.value(directory, "x = 1")
            before = sorted(os.listdir(os.path.join(directory, "cells")))
            reply = self.far.send("run", dir=directory, cell=self.far.cell("#" * 5000000), wait={}, ack=[])
            self.assertEqual(reply.code, "disk-full", reply.json)
            self.assertEqual(sorted(os.listdir(os.path.join(directory, "cells"))), before)
            self.assertEqual(self.value(directory, "x"), "1")
            self.far.close()
        finally:
            self.assertEqual(subprocess.call(["umount", mount]), 0)


if __name__ == "__main__":
    unittest.main()
