"""What depends on the platform: identity of processes, descendants, limits and pipes."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import unittest

from tests.supervisor_kit import RUNNER, alive, until
from _farcell import osdep

LINUX = unittest.skipUnless(osdep.LINUX, "needs /proc")


class Processes(unittest.TestCase):
    def sleeper(self, **options):
        process = subprocess.Popen(["sleep", "300"], **options)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    @LINUX
    def test_identity_is_pid_and_start_time(self):
        process = self.sleeper()
        start = osdep.proc_start_time(process.pid)
        self.assertGreater(start, 0)
        self.assertFalse(osdep.kill_exact(process.pid, start + 1, signal.SIGKILL))
        self.assertIsNone(process.poll())
        self.assertTrue(osdep.kill_exact(process.pid, start, signal.SIGKILL))
        self.assertEqual(process.wait(), -signal.SIGKILL)
        self.assertFalse(osdep.kill_exact(process.pid, start, signal.SIGKILL))

    @LINUX
    def test_descendants_are_found_behind_others_and_zombies_are_not(self):
        program = "import subprocess, os; p = subprocess.Popen(['sleep', '300'], start_new_session=True); print(p.pid, flush=True); p.wait()"
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        grandchild = int(process.stdout.readline())
        process.stdout.close()
        pids = dict(osdep.descendants(os.getpid()))
        self.assertIn(process.pid, pids)
        self.assertIn(grandchild, pids)
        self.assertTrue(osdep.kill_exact(grandchild, pids[grandchild], signal.SIGKILL))
        until(lambda: not alive(process.pid))  # a zombie now: nobody has waited for it
        self.assertNotIn(process.pid, dict(osdep.descendants(os.getpid())))
        process.wait()

    @LINUX
    def test_marks_are_found_exactly(self):
        value = "k-test-%d" % os.getpid()
        process = self.sleeper(env=dict(os.environ, FARCELL_KERNEL=value))
        self.sleeper(env=dict(os.environ, FARCELL_KERNEL=value + "0"))
        found = until(lambda: osdep.pids_with_mark(osdep.MARK, value))
        self.assertEqual([pid for pid, _ in found], [process.pid])

    @LINUX
    def test_a_name_with_brackets_does_not_confuse(self):
        folder = tempfile.mkdtemp()
        path = os.path.join(folder, "a) Z 1 (b")
        os.symlink("/bin/sleep", path)
        process = subprocess.Popen([path, "300"])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        until(lambda: (process.pid, osdep.proc_start_time(process.pid)) in osdep.descendants(os.getpid()))
        os.unlink(path)
        os.rmdir(folder)

    def test_no_process_no_start_time(self):
        self.assertEqual(osdep.proc_start_time(2 ** 22 + 7), 0)

    def test_peeking_leaves_the_child_to_be_reaped(self):
        if osdep.peek_child() == -1:
            self.skipTest("cannot peek here")
        process = self.sleeper()
        self.assertEqual(osdep.peek_child(), 0)
        process.kill()
        until(lambda: osdep.peek_child() == process.pid)
        self.assertEqual(process.wait(), -signal.SIGKILL)


class Descriptors(unittest.TestCase):
    def test_bytes_available(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        self.addCleanup(os.close, writer)
        self.assertEqual(osdep.bytes_available(reader), 0)
        os.write(writer, b"12345")
        self.assertEqual(osdep.bytes_available(reader), 5)

    def test_the_lock_waits_for_a_probe_but_not_for_ever(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(os.rmdir, folder)
        first, second = os.open(folder, os.O_RDONLY), os.open(folder, os.O_RDONLY)
        self.addCleanup(os.close, first)
        self.addCleanup(os.close, second)
        fcntl.flock(first, fcntl.LOCK_SH)
        self.assertFalse(osdep.lock_exclusive(second, 0.05))
        fcntl.flock(first, fcntl.LOCK_UN)
        self.assertTrue(osdep.lock_exclusive(second, 0.05))

    def test_close_all_except(self):
        code = ("import os, sys; sys.path.insert(0, %r); from _farcell import osdep\n"
                "fds = [os.dup(1) for _ in range(5)]; osdep.close_all_except({0, 1, 2, fds[2]})\n"
                "print(fds[2] in osdep.open_fds(), [fd for fd in fds if fd != fds[2] and os.path.exists('/proc/self/fd/%%d' %% fd)])") % RUNNER
        self.assertEqual(subprocess.check_output([sys.executable, "-c", code]).decode().strip(), "True []")


class Limits(unittest.TestCase):
    def test_limits_are_set_and_clamped(self):
        code = ("import resource, sys; sys.path.insert(0, %r); from _farcell import osdep\n"
                "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
                "osdep.apply_limits({'open_files': 1000, 'cpu_seconds': 5, 'memory_bytes': 1 << 30})\n"
                "print(resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CPU), "
                "resource.getrlimit(resource.RLIMIT_AS), resource.getrlimit(resource.RLIMIT_CORE))") % RUNNER
        self.assertEqual(subprocess.check_output([sys.executable, "-c", code]).decode().strip(),
                         "(64, 64) (5, 6) (1073741824, 1073741824) (0, 0)")

    def test_signal_names(self):
        self.assertEqual(osdep.signal_name(11), "SIGSEGV")
        self.assertTrue(osdep.signal_name(40).startswith("SIG"))

    def test_without_ctypes_nothing_breaks(self):
        code = ("import sys; sys.modules['ctypes'] = None; sys.path.insert(0, %r); from _farcell import osdep\n"
                "print(osdep.set_subreaper(), osdep.set_pdeathsig(9))") % RUNNER
        self.assertEqual(subprocess.check_output([sys.executable, "-c", code]).decode().strip(), "False False")


if __name__ == "__main__":
    unittest.main()
