"""A kernel in a directory: claims, garbage, locks, waiters, a full disk, and a directory that goes away."""

import errno
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from tests.supervisor_kit import RUNNER, FileKernel, alive, request, until
from tests.tools_kit import IMPORT, FileHost


class Kernel(unittest.TestCase):
    def setUp(self):
        self.kernel = FileKernel()
        self.addCleanup(self.kernel.close)


class Requests(Kernel):
    def test_the_record_has_the_fields_of_the_protocol(self):
        record = self.kernel.record
        self.assertEqual(sorted(record), sorted(
            "v id key dir base pid start_time boot_id generation interpreter_pid language python version owner_hash session created "
            "runner idle_ms wake lane".split()))
        self.assertEqual((record["pid"], record["wake"], record["generation"]), (self.kernel.pid, "fifo", 1))
        self.assertEqual(record, self.kernel.answer["kernel"])
        for name in ("kernel.json", "wake", "runner.log", "reserve"):
            self.assertEqual(os.stat(self.kernel.path(name)).st_mode & 0o077, 0, name)

    def test_the_lock_is_held_and_not_by_the_interpreter(self):
        fd = os.open(self.kernel.dir, os.O_RDONLY)
        self.addCleanup(os.close, fd)
        self.assertRaises(OSError, fcntl.flock, fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        self.kernel.run("import subprocess\np = subprocess.Popen(['sleep', '600'], close_fds=False)")
        self.kernel.control("stop")
        self.kernel.process.wait(20)
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def test_a_claimed_request_is_renamed_and_removed_after_the_reply(self):
        number = self.kernel.send("print('go')\nimport time\ntime.sleep(60)")
        self.kernel.wait_printed(number, b"go")
        self.assertTrue(os.path.exists(self.kernel.cell_path("run", number)))
        self.assertFalse(os.path.exists(self.kernel.cell_path("req", number)))
        self.kernel.control("interrupt")
        self.kernel.reply(number)
        until(lambda: not os.path.exists(self.kernel.cell_path("run", number)), 5)

    def test_the_queue_is_served_by_number(self):
        first = self.kernel.send("import time; time.sleep(0.3); order = []")
        self.kernel.number += 3
        for number in (4, 2, 3):
            with open(self.kernel.path("cells/.t"), "w") as file:
                json.dump(request("order.append(%d)" % number), file)
            os.rename(self.kernel.path("cells/.t"), self.kernel.cell_path("req", number))
        self.kernel.wake()
        self.kernel.reply(first)
        self.kernel.reply(4)
        self.assertEqual(self.kernel.run("order")["result"], {"text/plain": "[2, 3, 4]"})

    def test_a_withdrawn_request_is_never_run(self):
        first = self.kernel.send("import time; time.sleep(0.5)")
        second = self.kernel.send("x = 1")
        os.unlink(self.kernel.cell_path("req", second))
        self.kernel.reply(first)
        self.assertEqual(self.kernel.run("'x' in globals()")["result"], {"text/plain": "False"})
        self.assertFalse(os.path.exists(self.kernel.cell_path("res", second)))

    def test_an_id_runs_once(self):
        one = request("n = globals().get('n', 0) + 1; n")
        first = self.kernel.reply(self.kernel.send_raw(json.dumps(one).encode()))
        self.assertEqual(first["result"], {"text/plain": "1"})
        again = self.kernel.reply(self.kernel.send_raw(json.dumps(one).encode()))
        self.assertEqual((again["status"], again["error"]["kind"], again["cell"]["id"]), ("refused", "protocol", one["id"]))
        self.assertEqual(self.kernel.run("n")["result"], {"text/plain": "1"})

    def test_a_number_is_answered_once(self):
        self.kernel.run("1")
        before = self.kernel.read("cells/cell_res_000001.json")
        self.kernel.number = 0
        self.kernel.send("2")
        until(lambda: not os.path.exists(self.kernel.cell_path("req", 1)))
        self.kernel.run("3")
        self.assertEqual(self.kernel.read("cells/cell_res_000001.json"), before)

    def test_garbage_is_refused_under_its_number(self):
        good = request("1")
        for data in (b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100000, b'{"v":1}', json.dumps(dict(good, v=2)).encode(),
                     json.dumps(dict(good, id="x")).encode(), json.dumps(dict(good, code=5)).encode(),
                     json.dumps(dict(good, timeout_ms="1")).encode(), json.dumps(dict(good, timeout_ms=True)).encode(),
                     json.dumps(dict(good, max_output=-1)).encode(), json.dumps(dict(good, echo=[])).encode(),
                     json.dumps(dict(good, cwd=5)).encode(), json.dumps(dict(good, env=[1])).encode(),
                     json.dumps(dict(good, env={"A=B": "c"})).encode(), json.dumps(dict(good, env={"A": "\0"})).encode(),
                     json.dumps(dict(good, reset="yes")).encode()):
            number = self.kernel.send_raw(data)
            reply = self.kernel.reply(number)
            self.assertEqual((reply["status"], reply["error"]["kind"], reply["cell"]["number"]), ("refused", "protocol", number), data[:80])
            self.assertFalse(os.path.exists(self.kernel.cell_path("req", number)))
            until(lambda: not os.path.exists(self.kernel.cell_path("run", number)), 5)
        self.assertEqual(self.kernel.run("1")["kernel"]["state"], "fresh")

    def test_things_that_are_no_files_do_not_hold_it(self):
        secret = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, secret)
        with open(os.path.join(secret, "kept"), "w") as file:
            json.dump(request("stolen = 1"), file)
        cells = self.kernel.path("cells/")
        os.mkfifo(cells + "cell_req_000001.json")
        os.makedirs(cells + "cell_req_000002.json/full")
        os.symlink(os.path.join(secret, "kept"), cells + "cell_req_000003.json")
        os.symlink(secret, cells + "cell_req_000004.json")
        os.mkfifo(cells + "ctl_aa.json")
        os.mkdir(cells + "ctl_bb.json")
        for name in ("cell_req_x.json", "cell_req_.json", "cell_req_00000a.json", "cell_req_000001", "ctl_.txt", "\u00fc"):
            open(cells + name, "w").close()
        self.kernel.number = 9
        self.assertEqual(self.kernel.run("'stolen' in globals()")["result"], {"text/plain": "False"})
        for number in (1, 2, 3, 4):
            self.assertEqual(self.kernel.reply(number)["status"], "refused")
        self.assertTrue(os.path.exists(os.path.join(secret, "kept")))
        self.assertEqual([name for name in os.listdir(cells) if name.startswith("cell_run")], [])

    def test_large_code(self):
        reply = self.kernel.run("s = '" + "x" * 10000000 + "'\nlen(s)")
        self.assertEqual(reply["result"], {"text/plain": "10000000"})

    def test_a_lone_surrogate_in_code_and_names(self):
        # No Python can compile the first; what matters is that it is told and nothing breaks.
        self.assertEqual(self.kernel.run("len('\ud800')")["status"], "error")
        self.assertEqual(self.kernel.run("import os; os.environ['A']", env={"A": "\udcff"})["status"], "ok")

    def test_a_second_supervisor_is_refused(self):
        process = subprocess.Popen([sys.executable, os.path.join(RUNNER, "farcell_kernel.py"), self.kernel.dir],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        answer = json.loads(process.communicate(json.dumps(self.kernel.spec).encode())[0].decode())
        self.assertEqual((answer["ok"], answer["error"]["code"]), (False, "spawn-failed"))
        self.assertIn("lock", answer["error"]["message"])
        self.assertEqual(self.kernel.run("1")["status"], "ok")

    def test_nothing_of_the_users_is_in_the_log(self):
        self.kernel.run("print('s3cret-output'); 's3cret-code'", env={"NAME": "s3cret-env"})
        self.kernel.send_raw(b"s3cret-garbage")
        self.kernel.reply(2)
        self.kernel.control("s3cret-control")
        self.assertNotIn(b"s3cret", self.kernel.read("runner.log"))


class Waiters(Kernel):
    def waiter(self, name):
        path = self.kernel.path("waiters/" + name)
        os.mkfifo(path)
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, fd)
        return fd

    def woken(self, fd, seconds=20):
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return any(events & select.POLLIN for _, events in poll.poll(seconds * 1000))

    def test_waiters_are_woken_when_a_cell_settles(self):
        fd = self.waiter("w-aa")
        number = self.kernel.send("1")
        self.assertTrue(self.woken(fd))
        self.assertTrue(os.path.exists(self.kernel.cell_path("res", number)))

    def test_only_those_who_ask_are_woken_for_output(self):
        quiet, eager = self.waiter("w-aa"), self.waiter("w-bb-o")
        number = self.kernel.send("print('go')\nimport time\ntime.sleep(60)")
        self.assertTrue(self.woken(eager))
        self.assertFalse(self.woken(quiet, 0.1))
        self.assertIn(b"go", self.kernel.records(number)["o"])
        self.kernel.control("interrupt")
        self.assertTrue(self.woken(quiet))

    def test_waiters_that_nobody_reads_are_removed_when_they_are_old(self):
        for name in ("w-old", "w-new"):
            os.mkfifo(self.kernel.path("waiters/" + name))
        os.utime(self.kernel.path("waiters/w-old"), (1, 1))
        self.kernel.run("1")
        until(lambda: os.listdir(self.kernel.path("waiters")) == ["w-new"])

    def test_waiters_are_woken_at_the_end(self):
        fd = self.waiter("w-aa")
        self.kernel.process.terminate()
        self.assertTrue(self.woken(fd))


class Polling(unittest.TestCase):
    def test_without_fifos_it_polls(self):
        path = os.path.join(tempfile.gettempdir(), "farcell-test-poll-%d.py" % os.getpid())
        with open(path, "w") as file:
            file.write("import sys, os; sys.path.insert(0, %r)\nfrom _farcell import files, supervisor\n"
                       "files.make_fifo = lambda path: False\nsupervisor.main_detached(sys.argv[1])" % RUNNER)
        self.addCleanup(os.unlink, path)
        kernel = FileKernel(program=lambda directory: [sys.executable, path, directory])
        self.addCleanup(kernel.close)
        kernel.wake = lambda: None
        self.assertEqual(kernel.record["wake"], "poll")
        self.assertEqual(kernel.run("1 + 1")["result"], {"text/plain": "2"})
        number = kernel.send("import time; time.sleep(60)")
        kernel.wait_running(number)
        self.assertEqual(kernel.control("interrupt")["done"], True)
        self.assertEqual(kernel.reply(number)["status"], "interrupted")


class GoneDirectory(Kernel):
    def test_a_removed_directory_ends_the_kernel(self):
        number = self.kernel.send("import subprocess\np = subprocess.Popen(['sleep', '600'], start_new_session=True)\nprint(p.pid)\n"
                                  "import time\nwhile True:\n    print('x'); time.sleep(0.05)", timeout_ms=700)
        child = int(until(lambda: self.kernel.records(number).get("o", b"").partition(b"\n")[2] and self.kernel.records(number)["o"].split()[0]))
        shutil.rmtree(self.kernel.dir)
        self.assertEqual(self.kernel.process.wait(20), 0)
        until(lambda: not alive(child), 10)


@unittest.skipUnless(os.getuid() == 0 and sys.platform.startswith("linux"), "needs root to mount a small disk")
class FullDisk(unittest.TestCase):
    def setUp(self):
        self.disk = tempfile.mkdtemp(prefix="farcell-test-disk-")
        self.addCleanup(os.rmdir, self.disk)
        if subprocess.call(["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "farcell-test", self.disk], stderr=subprocess.DEVNULL):
            self.skipTest("cannot mount")
        self.addCleanup(subprocess.call, ["umount", self.disk])
        self.kernel = FileKernel(base=self.disk, limits={"spill_bytes": 67108864})
        self.addCleanup(self.kernel.close)
        self.filler = os.path.join(self.disk, "filler")
        elsewhere = tempfile.mkdtemp(prefix="farcell-test-disk-")
        self.addCleanup(shutil.rmtree, elsewhere)
        self.full = os.path.join(elsewhere, "full")  # is there when the disk is

    def fill(self):
        with open(self.filler, "ab", 0) as file:
            try:
                while True:
                    file.write(b"\0" * 4096)
            except OSError as error:
                self.assertEqual(error.errno, errno.ENOSPC)
        open(self.full, "w").close()

    def test_the_spill_takes_a_quarter_of_what_is_free(self):
        reply = self.kernel.run("print('x' * 5_000_000)", max_output=1000)
        self.assertEqual(reply["output"]["stdout_bytes"], 5000001)
        self.assertLess(os.stat(reply["output"]["spill"]).st_size, 600 << 10)

    def test_a_call_of_a_tool_that_there_is_no_room_for_is_refused(self):
        host = FileHost(self.kernel)
        cell = host.start(IMPORT + "for n in (1, 3000000, 2):\n    try:\n        print(len(echo('x' * n)))\n    except ToolError as error:\n        print(error)")
        cell.serve(2)
        reply = cell.reply()
        self.assertEqual(reply["stdout"], "1\necho: there is no room on the target to note the call (ENOSPC)\n2\n")
        self.assertEqual((reply["kernel"]["note"], reply["tools"]["calls"], reply["tools"]["errors"][0]["call"]), (None, 3, 0))

    def test_a_kernel_that_finds_a_full_disk_does_not_start(self):
        self.fill()
        kernel = FileKernel.__new__(FileKernel)
        try:
            kernel.__init__(base=self.disk)
        except OSError as error:
            self.assertEqual(error.errno, errno.ENOSPC)  # not even its directory could be made
            return
        self.addCleanup(kernel.close)
        self.assertEqual((kernel.answer["ok"], kernel.answer["error"]["code"]), (False, "disk-full"))

    def test_a_full_disk_stops_the_spill_and_says_so(self):
        number = self.kernel.send("print('go')\nimport os, time\nwhile not os.path.exists(%r): time.sleep(0.01)\nprint('x' * 300_000)" % self.full,
                                  max_output=1000)
        self.kernel.wait_printed(number, b"go\n")
        self.fill()
        reply = self.kernel.reply(number)
        self.assertEqual((reply["status"], reply["output"]["stdout_bytes"], reply["output"]["spill"]), ("ok", 300004, None))
        self.assertIn("not kept", reply["kernel"]["note"])

    def test_the_reply_waits_for_space_and_the_cell_is_not_run_twice(self):
        number = self.kernel.send("print('go')\nimport os, time\nwhile not os.path.exists(%r): time.sleep(0.01)\n"
                                  "n = globals().get('n', 0) + 1\n'y' * 400_000" % self.full,
                                  max_output=1000000)
        waiting = self.kernel.send("n")
        self.kernel.wait_printed(number, b"go\n")
        self.fill()
        until(lambda: b"no room for the reply" in self.kernel.read("runner.log") or not os.path.exists(self.kernel.path("reserve")))
        end = time.monotonic() + 1.2
        until(lambda: time.monotonic() > end)
        self.assertFalse(os.path.exists(self.kernel.cell_path("res", number)))
        self.assertTrue(alive(self.kernel.pid))
        os.unlink(self.filler)
        reply = self.kernel.reply(number, 10)
        self.assertEqual((reply["status"], len(reply["result"]["text/plain"])), ("ok", 400002))
        self.assertEqual(self.kernel.reply(waiting)["result"], {"text/plain": "1"})

    def test_the_reserve_is_enough_for_a_small_reply(self):
        number = self.kernel.send("print('go')\nimport os, time\nwhile not os.path.exists(%r): time.sleep(0.01)\n1" % self.full)
        self.kernel.wait_printed(number, b"go\n")
        self.fill()
        reply = self.kernel.reply(number, 10)
        self.assertEqual((reply["status"], reply["stdout"]), ("ok", "go\n"))
        os.unlink(self.filler)


if __name__ == "__main__":
    unittest.main()
