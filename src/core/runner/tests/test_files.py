"""Atomic writes, publishing, locks and FIFOs, with real processes on both sides."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from _farcell import fastjson, files


class Base(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir, True)

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def put(self, name, data=b"x"):
        with open(self.path(name), "wb") as file:
            file.write(data)
        return self.path(name)


class Writing(Base):
    def test_an_atomic_write_replaces_and_leaves_nothing_else(self):
        path = self.path("a")
        files.atomic_write(path, b"one")
        files.atomic_write(path, b"two")
        self.assertEqual((files.read_bytes(path), os.listdir(self.dir)), (b"two", ["a"]))
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)

    def test_an_atomic_write_replaces_a_planted_link_and_not_its_target(self):
        target = self.put("victim", b"precious")
        os.symlink(target, self.path("a"))
        files.atomic_write(self.path("a"), b"ours")
        self.assertEqual((files.read_bytes(target), files.read_bytes(self.path("a"))), (b"precious", b"ours"))

    def test_a_failed_write_leaves_nothing(self):
        os.mkdir(self.path("a"))
        with self.assertRaises(OSError):
            files.atomic_write(self.path("a"), b"x")
        self.assertEqual(os.listdir(self.dir), ["a"])

    def test_a_full_disk_leaves_nothing(self):
        mount = self.path("small")
        os.mkdir(mount)
        if subprocess.call(["mount", "-t", "tmpfs", "-o", "size=64k", "none", mount], stderr=subprocess.DEVNULL):
            self.skipTest("no mounts here")
        try:
            with self.assertRaises(OSError):
                files.atomic_write(os.path.join(mount, "a"), b"x" * (1 << 20))
            self.assertEqual(os.listdir(mount), [])
        finally:
            subprocess.call(["umount", mount])

    def test_a_left_over_temporary_name_is_stepped_over(self):
        with open(self.path(".tmp-%d-%d" % (os.getpid(), files._counter + 1)), "w"):
            pass
        files.atomic_write(self.path("a"), b"x")
        self.assertEqual(files.read_bytes(self.path("a")), b"x")

    def test_reading_follows_no_link_and_waits_for_no_fifo(self):
        os.symlink(self.put("t", b"{}"), self.path("link"))
        os.mkfifo(self.path("fifo"))
        self.assertIsNone(files.read_bytes(self.path("link")))
        self.assertIsNone(files.read_json(self.path("none")))
        self.assertEqual(files.read_bytes(self.path("fifo")), b"")

    def test_what_is_no_object_is_none(self):
        for data in (b"", b"{", b"[1]", b"\xff\xfe", b"{} {}"):
            self.assertIsNone(files.read_json(self.put("a", data)), data)


class Publishing(Base):
    def publish(self, data):
        tmp = files.write_tmp(self.dir, data)
        try:
            return files.publish_new(tmp, self.path("final"))
        finally:
            files.remove(tmp)

    def test_publishing_cannot_replace(self):
        self.assertTrue(self.publish(b"one"))
        self.assertFalse(self.publish(b"two"))
        self.assertEqual((files.read_bytes(self.path("final")), os.listdir(self.dir)), (b"one", ["final"]))

    def test_publishing_cannot_replace_without_hard_links_either(self):
        self.addCleanup(setattr, os, "link", os.link)

        def refuse(*_args, **_options):
            raise PermissionError(1, "no links on this file system")
        os.link = refuse
        self.assertTrue(self.publish(b"one"))
        self.assertFalse(self.publish(b"two"))
        self.assertEqual(files.read_bytes(self.path("final")), b"one")

    def test_of_many_that_publish_one_name_one_wins(self):
        pids = []
        for number in range(12):
            pid = os.fork()
            if pid == 0:
                try:
                    os._exit(0 if self.publish(b"%d" % number) else 1)
                finally:
                    os._exit(2)
            pids.append(pid)
        statuses = sorted(os.waitpid(pid, 0)[1] >> 8 for pid in pids)
        self.assertEqual(statuses, [0] + [1] * 11)
        self.assertEqual(os.listdir(self.dir), ["final"])


class Locks(Base):
    def hold(self):
        """A process that holds the lock of our directory: (pid)."""
        ready, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                fd = os.open(self.dir, files.DIR_FLAGS)
                fcntl.flock(fd, fcntl.LOCK_EX)
                os.write(told, b"x")
                signal.pause()
            finally:
                os._exit(1)
        os.close(told)
        os.read(ready, 1)
        os.close(ready)
        return pid

    def test_a_lock_is_seen_and_gone_with_its_process(self):
        self.assertFalse(files.is_locked(self.dir))
        pid = self.hold()
        try:
            self.assertTrue(files.is_locked(self.dir))
            with self.assertRaises(files.LockTimeout):
                with files.locked(self.dir, 0.05):
                    pass
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.assertFalse(files.is_locked(self.dir))
        with files.locked(self.dir, 0.05):
            self.assertTrue(files.is_locked(self.dir))
        self.assertFalse(files.is_locked(self.dir))

    def test_what_is_not_there_or_a_link_is_not_locked(self):
        os.symlink(self.dir, self.path("link"))
        self.assertFalse(files.is_locked(self.path("none")))
        self.assertFalse(files.is_locked(self.path("link")))

    def test_a_lock_file_that_is_a_link_is_refused(self):
        os.symlink(self.put("t"), self.path("key"))
        with self.assertRaises(OSError):
            with files.locked(self.dir, 1.0, name="key"):
                pass


class Fifos(Base):
    def test_a_poke_arrives_and_one_without_reader_is_harmless(self):
        path = self.path("wake")
        self.assertTrue(files.make_fifo(path))
        self.assertFalse(files.poke(path))
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self.addCleanup(os.close, fd)
        self.assertTrue(files.poke(path))
        self.assertEqual(os.read(fd, 10), b"\n")
        self.assertFalse(files.poke(self.path("none")))

    def test_a_full_fifo_holds_nobody(self):
        path = self.path("wake")
        files.make_fifo(path)
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self.addCleanup(os.close, fd)
        try:
            while True:
                os.write(fd, b"x" * 4096)
        except BlockingIOError:
            pass
        done = threading.Thread(target=files.poke, args=(path,), daemon=True)
        done.start()
        done.join(10)
        self.assertFalse(done.is_alive())


class Trees(Base):
    def test_removing_a_tree_never_leaves_it(self):
        victim = self.path("victim")
        os.mkdir(victim)
        self.put("victim/precious")
        os.makedirs(self.path("k-1", "cells", "deep"))
        os.symlink(victim, self.path("k-1", "cells", "link"))
        os.mkfifo(self.path("k-1", "wake"))
        files.remove_tree(self.path("k-1"))
        os.symlink(victim, self.path("k-2"))
        files.remove_tree(self.path("k-2"))
        files.remove_tree(self.path("k-3"))
        self.assertEqual((os.listdir(self.dir), os.listdir(victim)), (["victim"], ["precious"]))


class FastJson(unittest.TestCase):
    VALUES = [{"a": [1, 2.5, None, True, "\u20ac\ud800\0\"\\"]}, [], {}, "text", 5, None, {"": {"": [[[]]]}}]

    def test_it_says_what_json_says(self):
        for value in self.VALUES:
            self.assertEqual(fastjson.dumps(value), json.dumps(value, separators=(",", ":")))
            text = json.dumps(value)
            self.assertEqual(fastjson.loads(text), value)
            self.assertEqual(fastjson.loads(b" " + text.encode() + b"\n"), value)

    def test_what_is_not_json_is_a_value_error(self):
        for bad in (b"", b"{", b"[1] 2", b"nul", b"\xff", b"{'a':1}", b"[" * 100000):
            with self.assertRaises(ValueError):
                fastjson.loads(bad)

    def test_both_ways_work_without_the_json_module(self):
        code = ("import sys; sys.path.insert(0, %r); from _farcell import fastjson as f; "
                "v = f.loads(b'{\"a\": [1, null, \"\\\\u20ac\"]}'); assert f.dumps(v) == '{\"a\":[1,null,\"\\\\u20ac\"]}', f.dumps(v); "
                "\nfor bad in (b'', b'{', b'[1] 2', b'nul', b'[' * 100000):\n"
                "  try: f.loads(bad); sys.exit(3)\n"
                "  except ValueError: pass\n") % os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        self.assertEqual(subprocess.call([sys.executable, "-S", "-c", code]), 0)
        code = "import sys; sys.path.insert(0, %r); import _farcell.link; assert 'json' not in sys.modules and 're' not in sys.modules"
        code %= os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        self.assertEqual(subprocess.call([sys.executable, "-E", "-S", "-c", code]), 0)


if __name__ == "__main__":
    unittest.main()
