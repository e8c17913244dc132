"""One cell without a kernel: it runs in the command's own processes, writes nothing, and ends as a kernel's cell would."""

import os
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests import link_harness as harness
from tests.link_harness import needs_root

PYTHON = os.path.realpath("/usr/bin/python3")


def cell(code):
    return {"v": 1, "id": os.urandom(16).hex(), "code": code, "timeout_ms": 60000, "max_output": 1048576, "echo": "last", "cwd": None, "env": {}, "reset": False}


def spec(**more):
    value = {"id": "k-" + os.urandom(8).hex(), "session": "default", "owner_hash": "o", "cwd": None, "env": {}, "idle_ms": None, "grace_ms": 300,
             "limits": {"memory_bytes": None, "processes": None, "cpu_seconds": None, "open_files": None, "spill_bytes": 67108864}}
    value.update(more)
    return value


def header(code, of_kernel=None, **more):
    return {"op": "once", "spec": spec(**(of_kernel or {})), "cell": dict(cell(code), **more)}


class Once(unittest.TestCase):
    def run_cell(self, code, of_kernel=None, **more):
        answer = self.send(header(code, of_kernel, **more))
        self.assertTrue(answer.json and answer.json["ok"], (answer.json, answer.stdout[-500:], answer.stderr[-2000:]))
        reply = answer.json["reply"]
        self.assertEqual((reply["kernel"]["state"], reply["cell"]["number"], reply["kernel"]["generation"]), ("none", 1, 1))
        return reply

    def send(self, request):
        return harness.send(request)

    def test_a_value_and_what_is_printed_come_back(self):
        reply = self.run_cell("import os, sys\nprint('out')\nos.system('echo child')\nprint('err', file=sys.stderr)\nx = 41\nx + 1")
        self.assertEqual((reply["status"], reply["stdout"], reply["stderr"], reply["exit_code"]), ("ok", "out\nchild\n", "err\n", 0))
        self.assertEqual(reply["result"], {"text/plain": "42"})

    def test_variables_are_not_kept(self):
        self.run_cell("x = 1")
        self.assertEqual(self.run_cell("x")["error"]["name"], "NameError")

    def test_displays_come_in_order(self):
        reply = self.run_cell("display({'text/plain': 'a'}, raw=True)\ndisplay({'text/plain': 'b'}, raw=True)")
        self.assertEqual((reply["status"], [each["text/plain"] for each in reply["displays"]]), ("ok", ["a", "b"]), reply)

    def test_an_exception_shows_the_line_of_the_cell_alone(self):
        reply = self.run_cell("y = 0\n1 / y")
        self.assertEqual((reply["status"], reply["exit_code"], reply["error"]["name"]), ("error", 1, "ZeroDivisionError"))
        self.assertIn("1 / y", reply["error"]["traceback"])
        self.assertNotIn("_farcell", reply["error"]["traceback"])

    def test_sys_exit_has_its_code(self):
        reply = self.run_cell("import sys; print('bye'); sys.exit(3)")
        self.assertEqual((reply["status"], reply["exit_code"], reply["stdout"]), ("exit", 3, "bye\n"))

    def test_long_output_keeps_head_and_tail_and_counts(self):
        reply = self.run_cell("print('a' * 5000 + 'b' * 5000)", max_output=1000)
        self.assertEqual((reply["output"]["stdout_bytes"], reply["output"]["stdout_omitted"], reply["output"]["spill"]), (10001, 9001, None))
        self.assertTrue(reply["stdout"].startswith("aaa") and reply["stdout"].endswith("bbb\n"))

    def test_a_timeout_is_told_with_what_was_printed(self):
        reply = self.run_cell("import time\nprint('so far', flush=True)\ntime.sleep(600)", timeout_ms=300)
        self.assertEqual((reply["status"], reply["stdout"], reply["error"]["kind"], reply["exit_code"]), ("timeout", "so far\n", "deadline", None))

    def test_a_cell_that_ignores_interrupts_ends_all_the_same(self):
        reply = self.run_cell("import time\nwhile True:\n    try:\n        time.sleep(600)\n    except KeyboardInterrupt:\n        pass", timeout_ms=300)
        self.assertEqual((reply["status"], reply["error"]["kind"]), ("timeout", "deadline"))

    def test_it_reads_nothing_of_the_command_and_writes_no_frame(self):
        reply = self.run_cell("import os, sys\nos.write(1, b'%s json 2\\n{}\\n' % (b'0' * 32))\nsys.stdin.read()")
        self.assertEqual((reply["status"], reply["result"]["text/plain"]), ("ok", "''"))

    def test_packages_variables_and_directory_are_those_of_a_kernel(self):
        reply = self.run_cell("import os, sys\n(os.getcwd(), os.environ['A'], os.environ['B'], any('-packages' in path for path in sys.path), sys.path[0], exit.name)",
                              {"cwd": "/", "env": {"A": "1"}}, env={"B": "2"})
        self.assertEqual((reply["status"], reply["result"] and reply["result"]["text/plain"]), ("ok", "('/', '1', '2', True, '', 'exit')"), reply)

    def test_modules_are_found_where_the_kernels_environment_says(self):
        with tempfile.TemporaryDirectory(prefix="farcell-test-") as folder:
            os.chmod(folder, 0o755)
            with open(os.path.join(folder, "farcell_once_module.py"), "w") as file:
                file.write("value = 5")
            reply = self.run_cell("import farcell_once_module; farcell_once_module.value", {"env": {"PYTHONPATH": folder}})
        self.assertEqual((reply["status"], reply["result"]), ("ok", {"text/plain": "5"}), reply)

    def test_what_cannot_run_so_is_refused_and_has_not_run(self):
        tools = {"token": "0" * 32, "import": "farcell_tools", "patience_ms": 1, "list": []}
        for wrong, word in (({"tools": tools}, "tools"), ({"reset": True}, "reset"), ({"timeout_ms": -1}, "timeout_ms"), ({"v": 2}, "version")):
            answer = self.send(header("print('ran')", **wrong))
            self.assertEqual(answer.code, "bad-request", answer.json)
            self.assertIn(word, answer.json["error"]["message"])
            self.assertNotIn(b"ran\n", answer.stdout)
        answer = self.send(header("1", {"cwd": "/no/such/place"}))
        self.assertEqual((answer.code, "/no/such/place" in answer.json["error"]["message"]), ("bad-request", True))


class Forked(Once):
    """With a process for the cell, whose deaths are replies."""

    def test_a_crash_is_told_with_its_signal(self):
        reply = self.run_cell("import os, signal\nprint('so far', flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)")
        self.assertEqual((reply["status"], reply["signal"], reply["stdout"]), ("died", "SIGSEGV", "so far\n"))

    def test_an_exit_past_python_is_told_with_its_code(self):
        reply = self.run_cell("import os; os._exit(7)")
        self.assertEqual((reply["status"], reply["exit_code"], reply["signal"]), ("died", 7, None))

    def test_nothing_that_it_started_outlives_it(self):
        reply = self.run_cell("import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True).pid")
        harness.until(lambda: harness.gone(int(reply["result"]["text/plain"])), what="the child's end")

    def test_the_cell_ends_with_its_host(self):
        nonce, data = harness.request(header("import os, time\nopen(%r, 'w').write(str(os.getpid()))\ntime.sleep(600)" % self.path(), timeout_ms=None))
        process = harness.start()
        process.stdin.write(data)
        process.stdin.close()
        pid = int(harness.until(self.read, what="the cell's start"))
        self.assertFalse(harness.gone(pid))
        process.stdout.close()
        harness.until(lambda: harness.gone(pid), what="the cell's end")
        process.stderr.close()
        process.wait(harness.SLACK)

    def test_the_deadline_of_the_command_ends_it_all(self):
        request = header("import os, time\nopen(%r, 'w').write(str(os.getpid()))\ntime.sleep(600)" % self.path(), timeout_ms=None)
        answer = self.send(dict(request, deadline_ms=1500))
        self.assertIsNone(answer.json)
        harness.until(lambda: harness.gone(int(self.read())), what="the cell's end")

    def path(self):
        folder = tempfile.mkdtemp(prefix="farcell-test-")
        self.addCleanup(shutil.rmtree, folder)
        self.file = os.path.join(folder, "file")
        return self.file

    def read(self):
        try:
            with open(self.file) as file:
                return file.read()
        except OSError:
            return ""


@needs_root
class Alone(Once):
    """Without one: another user, who may have just the shell and the Python of the command."""

    USER = 61236

    def send(self, request):
        bare = ("import os, resource, sys; os.setgroups([]); os.setgid(%d); resource.setrlimit(resource.RLIMIT_NPROC, (2, 2)); os.setuid(%d); "
                "os.chdir('/'); os.execv('/bin/sh', ['/bin/sh', '-c', sys.argv[1]])" % (self.USER, self.USER))
        nonce, data = harness.request(request, python=PYTHON)
        process = harness.start(shell=[PYTHON, "-c", bare], cwd="/", env={"PATH": os.environ["PATH"]})
        out, err = process.communicate(data, timeout=120)
        return harness.Reply(out, err, process.returncode, nonce)

    def test_a_value_and_what_is_printed_come_back(self):
        reply = self.run_cell("import os, sys\nprint('out')\nprint('err', file=sys.stderr)\nx = 41\nx + 1")
        self.assertEqual((reply["status"], reply["stdout"], reply["stderr"], reply["exit_code"]), ("ok", "out\n", "err\n", 0))
        self.assertEqual(reply["result"], {"text/plain": "42"})

    def test_there_is_no_process_for_it(self):
        self.assertEqual(self.run_cell("import os; os.fork()")["error"]["name"], "BlockingIOError")

    def test_a_cell_that_ends_its_process_leaves_no_answer_but_a_mark(self):
        for code in ("import os; os._exit(7)", "import os; os._exit(0)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"):
            nonce_and_all = self.send(header(code))
            self.assertIn(b" out 0\n", nonce_and_all.stdout)
            self.assertTrue(nonce_and_all.json is None or nonce_and_all.code == "no-python", nonce_and_all.json)


del Once  # its tests run in the two others


if __name__ == "__main__":
    unittest.main()
