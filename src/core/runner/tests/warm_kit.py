"""Warm spawns for tests: kernels that this process itself asks for, as a long-lived helper on the target does."""

import json
import os
import time
import unittest
from unittest import mock

from tests.link_harness import HASH, Far, gone, modules, until

from _farcell import kernels, launch, link, osdep, spawn, warm

MODULES = modules()


class _Sink:
    """Takes the frames of an answer."""

    nonce = "0" * 32

    def send(self, _kind, _payload):
        pass


class WarmTest(unittest.TestCase):
    """A test with a base of its own, whose kernels and zygotes end with it."""

    def setUp(self):
        self.far = Far()
        self.addCleanup(self.far.close)
        os.mkdir(self.far.base, 0o700)
        patch = mock.patch.dict(os.environ)
        patch.start()
        self.addCleanup(patch.stop)
        os.environ.pop(osdep.MARK, None)
        self.keys = 0

    def header(self, op, **fields):
        return dict({"v": 1, "nonce": "0" * 32, "runner": HASH, "bundle": 0, "base": self.far.base, "place": {"dir": None}, "deadline_ms": 60000, "op": op}, **fields)

    def spawn(self, key=None, **spec):
        """The record of a kernel."""
        return self.spawn_answer(key, **spec)["kernel"]

    def spawn_answer(self, key=None, **spec):
        self.keys += 1
        full = {"id": "k-" + os.urandom(8).hex(), "session": "default", "owner_hash": "o", "cwd": None, "env": {}, "idle_ms": 600000, "grace_ms": 500,
                "limits": {"memory_bytes": None, "processes": None, "cpu_seconds": None, "open_files": None, "spill_bytes": 67108864}, "preload": []}
        full.update(spec)
        return spawn.spawn(self.header("spawn", key=key or "%04x" % self.keys, spec=full), MODULES, time.monotonic() + 60)

    def spawn_cold(self, **spec):
        with mock.patch.object(warm, "start", lambda *_: (False, "")):
            return self.spawn(**spec)

    def run_cell(self, kernel, code):
        """The reply."""
        cell = {"v": 1, "id": os.urandom(16).hex(), "code": code, "timeout_ms": 60000, "max_output": 1048576, "echo": "last", "cwd": None, "env": {}, "reset": False}
        fields, raw = link.op_run(link.Call(self.header("run", dir=kernel["dir"], cell=cell, wait={"hold_ms": 50000}, ack=[]), None, None, _Sink()))
        self.assertEqual(fields["fate"], "settled", fields)
        return json.loads(raw.decode())

    def value(self, kernel, code):
        """What the repr of the last expression says, read back."""
        reply = self.run_cell(kernel, code)
        self.assertEqual(reply["status"], "ok", reply)
        return eval((reply["result"] or {}).get("text/plain", "None"))

    def stop(self, kernel):
        self.assertTrue(link.op_control(link.Call(self.header("control", dir=kernel["dir"], do="stop"), None, None, _Sink()))["done"])
        until(lambda: gone(kernel["pid"]), what="the end of the supervisor")

    def remove(self, kernel):
        kernels.remove(kernel["dir"])

    def log(self, kernel):
        with open(os.path.join(kernel["dir"], "runner.log")) as file:
            return file.read()

    def is_warm(self, kernel):
        return "forked from a zygote, pid" in self.log(kernel)

    def assertWarm(self, kernel):
        self.assertTrue(self.is_warm(kernel), self.log(kernel))

    def zygote(self):
        """The number of the only one there is, ready to fork."""
        until(lambda: any(os.path.exists(os.path.join(self.far.base, name, "zygote.json")) for name in os.listdir(self.far.base)), what="its record")
        # What it forks looks like itself at first: for its rehearsal, and to become a kernel.
        def only_one():
            pids = self.far.zygotes()
            return pids[0] if len(pids) == 1 else None
        return until(only_one, what="a single zygote")
