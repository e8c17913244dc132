"""The courier's helpers: none is given an errand that would be lost with it."""

import json
import os
import select
import shutil
import signal
import tempfile
import time
import unittest

from tests.supervisor_kit import PATIENCE, until
from _farcell import helpers, loop


def _echo(_kind, text, _end, answer):
    if text.startswith(b"/"):
        open(text + b"/begun", "w").close()
        until(lambda: os.path.exists(text + b"/go-on"))
    answer.finish({"said": text.decode()})


class Helpers(unittest.TestCase):
    def setUp(self):
        self.loop = loop.Loop()
        self.pool = helpers.Pool(self.loop, _echo, most=1)
        before = signal.getsignal(signal.SIGCHLD)
        self.loop.catch_signals({signal.SIGCHLD: self.pool.reap})
        self.addCleanup(signal.signal, signal.SIGCHLD, before)
        self.addCleanup(signal.set_wakeup_fd, -1)
        self.addCleanup(signal.alarm, 0)
        self.addCleanup(self.pool.close)
        self.answers = []

    def errand(self, text):
        errand = helpers.Errand(text, time.monotonic() + PATIENCE, lambda _records, answer: self.answers.append(json.loads(answer.decode())))
        self.pool.send(errand)
        return errand

    def turn_until(self, count):
        end = time.monotonic() + PATIENCE
        while len(self.answers) < count:
            self.assertLess(time.monotonic(), end, "no answer in time")
            self.loop.turn()

    def test_one_that_is_killed_with_its_answer_on_the_way_gets_no_other_errand(self):
        for number in range(20):
            first = self.errand(b"first")
            ready = select.poll()
            ready.register(first.helper._fd, select.POLLIN)
            self.assertTrue(ready.poll(PATIENCE * 1000))
            second = self.errand(b"second")
            self.pool.cancel(first)
            self.turn_until(number + 1)
            self.assertEqual(self.answers[-1].get("said"), "second", self.answers[-1])
            self.assertIsNone(second.helper)

    def test_one_whose_socket_rings_late_goes_on(self):
        # As it does where the courier is halted between writing an errand and ringing: here because of what follows.
        folder = tempfile.mkdtemp(prefix="farcell-test-")
        self.addCleanup(shutil.rmtree, folder)
        helper = self.errand(os.fsencode(folder)).helper
        until(lambda: os.path.exists(folder + "/begun"))
        os.write(helper._fd, b"\0")
        open(folder + "/go-on", "w").close()
        self.turn_until(1)
        self.assertEqual(self.answers[-1].get("said"), folder, self.answers[-1])


if __name__ == "__main__":
    unittest.main()
