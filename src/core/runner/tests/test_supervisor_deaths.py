"""Whatever ends the interpreter: a reply comes at once, and a new interpreter stands ready."""

import os
import signal
import subprocess
import sys
import time
import unittest

from tests.supervisor_kit import RUNNER, FileKernel, PipeKernel, alive, until

_NEVER = "import sys; sys.path.insert(0, %r); from _farcell import interpreter, supervisor\n"


class Deaths(unittest.TestCase):
    def setUp(self):
        self.kernel = FileKernel()
        self.addCleanup(self.kernel.close)

    def test_segfault_is_a_reply_with_all_output(self):
        self.kernel.run("x = 1")
        began = time.monotonic()
        reply = self.kernel.run("print('so far'); import ctypes; ctypes.string_at(0)")
        self.assertLess(time.monotonic() - began, 5)
        self.assertEqual((reply["status"], reply["signal"], reply["exit_code"]), ("died", "SIGSEGV", None))
        self.assertEqual((reply["error"]["kind"], reply["error"]["name"]), ("signal", "SIGSEGV"))
        self.assertEqual(reply["stdout"], "so far\n")
        self.assertEqual(reply["kernel"]["state"], "reset")
        after = self.kernel.run("'x' in globals()")
        self.assertEqual((after["status"], after["result"]["text/plain"], after["kernel"]["generation"]), ("ok", "False", 2))
        self.assertEqual(self.kernel.record["generation"], 2)
        self.assertTrue(alive(self.kernel.record["interpreter_pid"]))

    def test_os_exit_tells_the_code(self):
        for code in (3, 0):
            reply = self.kernel.run("import os; os._exit(%d)" % code)
            self.assertEqual((reply["status"], reply["exit_code"], reply["signal"], reply["error"]["kind"]), ("died", code, None, "exit"))
            self.assertEqual(reply["error"]["message"], "the interpreter exited with code %d" % code)

    def test_kill_from_within(self):
        reply = self.kernel.run("import os, signal; print('a', end=''); os.kill(os.getpid(), signal.SIGKILL)")
        self.assertEqual((reply["status"], reply["signal"], reply["stdout"]), ("died", "SIGKILL", "a"))
        self.assertIn("out-of-memory", reply["error"]["hint"])

    def test_death_between_cells_is_told_by_the_next(self):
        self.kernel.run("x = 1")
        before = self.kernel.record
        os.kill(before["interpreter_pid"], signal.SIGSEGV)
        until(lambda: self.kernel.record["generation"] == 2)
        reply = self.kernel.run("'x' in globals()")
        self.assertEqual((reply["status"], reply["kernel"]["state"], reply["result"]["text/plain"]), ("ok", "lost", "False"))
        self.assertIn("SIGSEGV", reply["kernel"]["note"])
        self.assertEqual(self.kernel.run("1")["kernel"]["state"], "kept")

    def test_death_takes_all_descendants_along(self):
        code = ("import subprocess, os, multiprocessing\n"
                "a = subprocess.Popen(['sleep', '600']); b = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
                "c = os.fork()\n"
                "if not c:\n"
                "    os.setsid()\n"
                "    d = os.fork()\n"
                "    if d: os._exit(0)\n"
                "    import time; open('/dev/null'); time.sleep(600)\n"
                "os.waitpid(c, 0)\n"
                "print(a.pid, b.pid)")
        pids = [int(word) for word in self.kernel.run(code)["stdout"].split()]
        children = until(lambda: subprocess.run(["pgrep", "-P", str(self.kernel.pid)], stdout=subprocess.PIPE).stdout.split())
        orphans = [int(pid) for pid in children if int(pid) != self.kernel.record["interpreter_pid"]]
        self.assertTrue(orphans, "the orphan has become a child of the supervisor")
        self.assertTrue(all(alive(pid) for pid in pids + orphans))
        self.kernel.run("import os; os._exit(1)")
        for pid in pids + orphans:
            until(lambda: not alive(pid), 10)

    def test_a_cell_that_ends_the_pipe_is_answered(self):
        reply = self.kernel.run("import os\nfor fd in range(3, 1024):\n    try: os.close(fd)\n    except OSError: pass\nimport time; time.sleep(60)")
        self.assertEqual((reply["status"], reply["error"]["kind"]), ("died", "protocol"))
        self.assertEqual(self.kernel.run("1 + 1")["result"], {"text/plain": "2"})

    def test_nonsense_on_the_pipe_is_answered(self):
        find = ("import os\n"
                "fds = [int(n) for n in os.listdir('/proc/self/fd') if int(n) > 2]\n"
                "for fd in fds:\n"
                "    try:\n"
                "        if os.readlink('/proc/self/fd/%d' % fd).startswith('pipe:'): os.write(fd, %s)\n"
                "    except OSError: pass\n"
                "import time; time.sleep(60)")
        for nonsense in ("b'\\xff' * 100", "b'\\0\\0\\0\\2r{}'", "b'\\0\\0\\0\\0Z'", "b'\\0\\0\\0\\1d1'", "b'\\0\\0\\0\\6r' + b'{\"a\":1'"):
            reply = self.kernel.run(find.replace("%s", nonsense), timeout_ms=20000)
            self.assertEqual((reply["status"], reply["error"]["kind"]), ("died", "protocol"), nonsense)
        self.assertEqual(self.kernel.run("1 + 1")["result"], {"text/plain": "2"})

    def test_a_result_for_another_cell_is_dropped(self):
        forge = ("import os, json, struct\n"
                 "body = json.dumps({'number': 99, 'status': 'ok', 'result': None, 'error': None, 'exit_code': 0}).encode()\n"
                 "for n in os.listdir('/proc/self/fd'):\n"
                 "    try:\n"
                 "        if int(n) > 2 and os.readlink('/proc/self/fd/' + n).startswith('pipe:'):\n"
                 "            os.write(int(n), struct.pack('>I', len(body)) + b'r' + body)\n"
                 "    except OSError: pass\n"
                 "'mine'")
        self.assertEqual(self.kernel.run(forge)["result"], {"text/plain": "'mine'"})

    def test_memory_limit_and_exhaustion(self):
        kernel = FileKernel(limits={"memory_bytes": 400 << 20})
        self.addCleanup(kernel.close)
        reply = kernel.run("b = bytearray(1 << 30)")
        self.assertEqual((reply["status"], reply["error"]["name"]), ("error", "MemoryError"))
        self.assertEqual(reply["error"]["hint"], "out of memory: the limit memory_bytes of %d (400 MiB) was reached" % (400 << 20))

    def test_file_and_process_limits_are_named(self):
        kernel = FileKernel(limits={"open_files": 64, "processes": 1})
        self.addCleanup(kernel.close)
        reply = kernel.run("kept = []\nwhile True: kept.append(open('/dev/null'))")
        self.assertEqual(reply["error"]["hint"], "too many files are open: the limit open_files is 64")
        reply = kernel.run("kept = None\nraise RuntimeError(\"can't start new thread\")")
        self.assertIn("the limit processes of 1 was reached", reply["error"]["hint"])
        self.assertIsNone(kernel.run("raise RuntimeError('another')")["error"]["hint"])

    def test_cpu_limit_is_named(self):
        kernel = FileKernel(limits={"cpu_seconds": 1})
        self.addCleanup(kernel.close)
        reply = kernel.run("while True: pass")
        self.assertEqual((reply["status"], reply["signal"]), ("died", "SIGXCPU"))
        self.assertEqual(reply["error"]["hint"], "the limit cpu_seconds of 1 s was reached")


class NoInterpreter(unittest.TestCase):
    def kernel(self, body):
        program = _NEVER % RUNNER + body + "\nsupervisor.main_detached(sys.argv[1])"
        kernel = FileKernel.__new__(FileKernel)
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), "farcell-test-program-%d.py" % os.getpid())
        with open(path, "w") as file:
            file.write(program)
        self.addCleanup(os.unlink, path)
        kernel.__init__(program=lambda directory: [sys.executable, path, directory])
        self.addCleanup(kernel.close)
        return kernel

    def test_interpreters_that_end_at_once_make_no_fork_loop(self):
        kernel = self.kernel("import os\ndef serve(*args): os._exit(5)\ninterpreter.serve = serve")
        until(lambda: kernel.record["generation"] == 3 and kernel.record["interpreter_pid"] is None)
        reply = kernel.run("1")
        self.assertEqual((reply["status"], reply["error"]["kind"]), ("died", "spawn"))
        self.assertIn("code 5", reply["error"]["message"])
        self.assertLessEqual(kernel.record["generation"], 4)
        self.assertEqual(kernel.run("1")["error"]["kind"], "spawn")

    def test_a_fork_that_fails_is_told_and_tried_again(self):
        kernel = self.kernel(
            "import os\nreal = os.fork\n"
            "def fork():\n    if os.path.exists(sys.argv[1] + '/no-fork'): raise OSError(11, 'Resource temporarily unavailable')\n    return real()\n"
            "os.fork = fork")
        self.assertEqual(kernel.run("1")["status"], "ok")
        open(kernel.path("no-fork"), "w").close()
        self.assertEqual(kernel.run("import os; os._exit(1)")["status"], "died")
        reply = kernel.run("1")
        self.assertEqual((reply["status"], reply["error"]["kind"]), ("died", "spawn"))
        self.assertIn("temporarily unavailable", reply["error"]["message"])
        os.unlink(kernel.path("no-fork"))
        self.assertEqual(kernel.run("1")["status"], "ok")

    def test_the_out_of_memory_killer_is_named_when_it_was_it(self):
        # A count that grows when a file appears stands in for the machine's own: the killer itself would hit others too.
        kernel = self.kernel("import os\nfrom _farcell import osdep\nosdep.oom_kills = lambda: int(os.path.exists(sys.argv[1] + '/oom'))")
        reply = kernel.run("import os, signal\nopen(%r, 'w').close()\nos.kill(os.getpid(), signal.SIGKILL)" % kernel.path("oom"))
        self.assertIn("the out-of-memory killer ended it", reply["error"]["hint"])

    def test_without_ctypes_marks_are_enough_for_programs(self):
        kernel = self.kernel("sys.modules['ctypes'] = None")
        pid = int(kernel.run("import subprocess\np = subprocess.Popen('setsid sleep 600 & echo $!', shell=True, stdout=subprocess.PIPE)\n"
                             "print(p.stdout.readline().decode())")["stdout"])
        self.assertTrue(alive(pid))
        kernel.run("import os; os._exit(1)")
        until(lambda: not alive(pid), 10)
        self.assertEqual(kernel.run("1")["status"], "ok")

    def test_a_defect_of_the_supervisor_is_a_reply_and_an_end(self):
        kernel = self.kernel(
            "from _farcell import conductor\n"
            "def broken(self): raise RuntimeError('defect')\nconductor.Conductor._deadline = broken")
        number = kernel.send("import time; time.sleep(600)", timeout_ms=300)
        reply = kernel.reply(number)
        self.assertEqual((reply["status"], reply["error"]["kind"], reply["kernel"]["state"]), ("died", "protocol", "lost"))
        self.assertEqual(kernel.process.wait(20), 0)
        self.assertIn(b"RuntimeError: defect", kernel.read("runner.log"))
        self.assertFalse(alive(kernel.record["interpreter_pid"] or 0) if kernel.record["interpreter_pid"] else False)


class Stdio(unittest.TestCase):
    def test_deaths_over_pipes_are_the_same(self):
        kernel = PipeKernel()
        self.addCleanup(kernel.close)
        reply = kernel.run("print(1); import ctypes; ctypes.string_at(0)")
        self.assertEqual((reply["status"], reply["signal"], reply["stdout"], reply["kernel"]["state"]), ("died", "SIGSEGV", "1\n", "reset"))
        self.assertEqual(kernel.run("2")["kernel"], {"id": kernel.spec["id"], "generation": 2, "state": "fresh", "note": None})


if __name__ == "__main__":
    unittest.main()
