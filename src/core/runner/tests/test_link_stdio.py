"""The stdio driver's start: one command becomes a supervisor that speaks frames, and everything ends with its input."""

import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from _farcell import frames
from tests import link_harness as harness
from tests.link_harness import FarTest, gone, until


class Stdio(FarTest):
    def begin(self, **spec):
        full = {"id": "k-1", "session": "default", "owner_hash": "o", "cwd": None, "env": {}, "idle_ms": None, "grace_ms": 500, "limits": {}}
        full.update(spec)
        nonce, data = harness.request({"op": "stdio", "place": {"dir": self.far.base}, "spec": full, "deadline_ms": 20000})
        process = harness.start()
        self.addCleanup(self.end, process)
        process.stdin.write(data)
        process.stdin.flush()
        head = process.stdout.readline().split()
        self.assertEqual(head[:2], [nonce.encode(), b"json"], process.stderr.read() if not head else head)
        answer = json.loads(process.stdout.read(int(head[2])).decode())
        self.assertEqual(process.stdout.read(1), b"\n")
        return process, answer

    def end(self, process):
        if not process.stdin.closed:
            process.stdin.close()
        process.wait(30)
        process.stdout.close()
        process.stderr.close()

    def ask(self, process, code):
        process.stdin.write(frames.pack(b"Q", json.dumps(self.far.cell(code)).encode()))
        process.stdin.flush()
        output = b""
        while True:
            kind, payload = frames.read_frame(process.stdout.fileno())
            if kind == b"O":
                output += payload[9:]
            if kind == b"R":
                return json.loads(payload.decode()), output

    def test_cells_run_over_pipes(self):
        process, answer = self.begin(env={"COLOUR": "blue"}, cwd=self.far.root)
        self.assertTrue(answer["ok"], answer)
        reply, _out = self.ask(process, "import os, sys; x = 41; (os.environ['COLOUR'], os.getcwd(), sys.flags.no_site, sys.path[0])")
        self.assertEqual(reply["result"]["text/plain"], repr(("blue", self.far.root, 0, "")))
        reply, out = self.ask(process, "print('hi'); x + 1")
        self.assertEqual((reply["result"]["text/plain"], out), ("42", b"hi\n"))
        # No deadline of the command's is left over.
        self.assertEqual(self.ask(process, "import signal; signal.alarm(0)")[0]["result"]["text/plain"], "0")

    def test_all_ends_with_the_input(self):
        process, answer = self.begin()
        reply, _out = self.ask(process, "import subprocess; subprocess.Popen(['sleep', '600']).pid")
        pids = [answer["kernel"]["pid"], answer["kernel"]["interpreter_pid"], int(reply["result"]["text/plain"])]
        process.stdin.close()
        for pid in pids:
            until(lambda: gone(pid), what="the end of %d" % pid)

    def test_the_base_holds_the_runner_and_nothing_else(self):
        self.begin()
        self.assertEqual(os.listdir(self.far.base), ["runner-" + harness.HASH])

    def test_a_missing_working_directory_is_told(self):
        _process, answer = self.begin(cwd="/no/such/place")
        self.assertEqual((answer["ok"], answer["error"]["code"]), (False, "spawn-failed"))
        self.assertIn("/no/such/place", answer["error"]["message"])


if __name__ == "__main__":
    unittest.main()
