"""The constant command, read by every login shell at hand and run by every /bin/sh at hand."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests import link_harness as harness

LOADER = b'exec("import sys; print(sys.version_info >= (3, 6), sys.stdin.buffer.read().decode())")\n'


def shells(*names):
    return [name.split() for name in names if shutil.which(name.split()[0])]


class FindPython(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)

    def fake(self, name, text):
        path = os.path.join(self.dir, name)
        with open(path, "w") as file:
            file.write("#!/bin/sh\n" + text)
        os.chmod(path, stat.S_IRWXU)
        return path

    def run_script(self, shell, python="", path=None, rest=LOADER + b"one\ntwo", words=None):
        env = dict(os.environ, PATH=os.environ["PATH"] if path is None else path)
        program = [shutil.which(shell[0])] + shell[1:] + ["-c", words or harness.script()]
        done = subprocess.run(program, input=b"abc123\n" + os.fsencode(python) + b"\n" + rest, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, timeout=60)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def test_the_script_is_safe_between_single_quotes_in_every_shell(self):
        text = harness.script()
        for forbidden in "'\\!#\n`":
            self.assertNotIn(forbidden, text)
        self.assertTrue(text.isascii() if hasattr(text, "isascii") else True)

    def test_every_login_shell_reads_the_command_alike(self):
        for shell in shells("sh", "dash", "bash", "bash --posix", "zsh", "fish", "tcsh", "busybox ash", "ksh"):
            with self.subTest(shell=shell):
                status, out, err = self.run_script(shell, words=harness.command())
                self.assertEqual((status, out), (0, "True one\ntwo\n"), err)

    def test_not_a_byte_of_the_rest_is_eaten(self):
        rest = LOADER + b"\n \t x \\n \\\n" + b"y" * 200000
        for shell in shells("dash", "bash --posix", "busybox ash"):
            with self.subTest(shell=shell):
                status, out, _err = self.run_script(shell, rest=rest)
                self.assertEqual((status, out), (0, "True \n \t x \\n \\\n" + "y" * 200000 + "\n"))

    def test_no_python_is_told_with_the_nonce(self):
        for shell in shells("dash", "bash --posix", "busybox ash"):
            with self.subTest(shell=shell):
                status, out, _err = self.run_script(shell, python="/no/such python")
                self.assertEqual((status, out), (0, "abc123 no-python none of: /no/such python\n"))

    def test_python_2_is_passed_over_and_told(self):
        old = self.fake("python3", 'case "$1" in -V) echo "Python 2.7.18" >&2;; *) exit 97;; esac\n')
        for shell in shells("dash", "bash --posix", "busybox ash"):
            with self.subTest(shell=shell):
                self.assertEqual(self.run_script(shell, python=old)[1], "abc123 no-python %s=2.7.18\n" % old)
                self.fake("python", 'exec "%s" "$@"\n' % sys.executable)
                status, out, err = self.run_script(shell, path=self.dir)
                self.assertEqual((status, out), (0, "True one\ntwo\n"), err)

    def test_a_python_that_cannot_start_is_passed_over(self):
        self.fake("python3", "echo 'error while loading shared libraries' >&2; exit 127\n")
        self.fake("python", 'exec "%s" "$@"\n' % sys.executable)
        status, out, _err = self.run_script(["dash"] if shutil.which("dash") else ["sh"], path=self.dir)
        self.assertEqual((status, out), (0, "True one\ntwo\n"))

    def test_a_loader_that_failed_is_not_run_again(self):
        self.fake("python3", 'exec "%s" "$@"\n' % sys.executable)
        self.fake("python", 'exec "%s" "$@"\n' % sys.executable)
        for status in ("99", "0"):
            loader = ('exec("import os; os.write(1, b\'once \'); os._exit(%s)")\n' % status).encode()
            self.assertEqual(self.run_script(["sh"], path=self.dir, rest=loader + loader)[:2], (int(status), "once "))

    def test_a_broken_one_that_ate_the_loader_leaves_nothing_to_run(self):
        self.fake("python3", "read line; exit 1\n")
        self.fake("python", 'exec "%s" "$@"\n' % sys.executable)
        out = self.run_script(["sh"], path=self.dir, rest=LOADER + b'{"op": "run"}\n')[1]
        self.assertTrue(out.startswith("abc123 no-python python3=exit-1 python=exit-98"), out)

    def test_a_path_with_blanks_quotes_and_dollars_is_data(self):
        path = self.fake("my $(touch x) 'py\" ;thon", 'exec "%s" "$@"\n' % sys.executable)
        self.assertEqual(self.run_script(["sh"], python=path)[:2], (0, "True one\ntwo\n"))


if __name__ == "__main__":
    unittest.main()
