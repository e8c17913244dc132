"""Sends commands to the far side just as the engine does: the real find_python.sh, the real loader, a real bundle, `/bin/sh -c`."""

import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

RUNNER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if RUNNER not in sys.path:
    sys.path.insert(0, RUNNER)

needs_root = unittest.skipIf(os.geteuid() != 0, "needs root to be two users")
SLACK = 30.0  # for machines that are busy with other things


def script():
    """find_python.sh as the engine joins it."""
    with open(os.path.join(RUNNER, "find_python.sh")) as file:
        return " ".join(line for line in file.read().split("\n") if line and not line.startswith("#"))


def command():
    return "exec /bin/sh -c '%s'" % script()


def loader():
    with open(os.path.join(RUNNER, "stage1.py")) as file:
        return b"exec(" + json.dumps(file.read()).encode("ascii") + b")\n"


def modules():
    found = {}
    for folder, names in ((RUNNER, ["farcell_kernel.py"]), (os.path.join(RUNNER, "_farcell"), None)):
        for name in sorted(names or os.listdir(folder)):
            if name.endswith(".py"):
                with open(os.path.join(folder, name)) as file:
                    found[name] = file.read()
    return found


BUNDLE = json.dumps(modules()).encode("ascii")
HASH = hashlib.sha256(BUNDLE).hexdigest()[:16]


class Reply:
    """What a command printed: its frames, and all there is beside them."""

    def __init__(self, process_out, process_err, status, nonce):
        self.stdout, self.stderr, self.status = process_out, process_err, status
        self.out = b""
        self.json = None
        at = 0
        marker = nonce.encode() + b" "
        while True:
            begin = process_out.find(marker, at)
            if begin < 0:
                break
            end = process_out.index(b"\n", begin)
            words = process_out[begin:end].split(b" ", 2)
            if words[1] == b"no-python":
                self.json = {"ok": False, "error": {"code": "no-python", "message": words[2].decode()}}
                break
            size = int(words[2])
            payload = process_out[end + 1:end + 1 + size]
            if len(payload) < size or process_out[end + 1 + size:end + 2 + size] != b"\n":
                break
            at = end + 2 + size
            if words[1] == b"out":
                self.out += payload
            else:
                self.json = json.loads(payload.decode("utf-8"))
                break

    @property
    def code(self):
        return self.json["error"]["code"] if self.json and not self.json["ok"] else None


def request(header, bundle=True, python=None):
    """(nonce, bytes for stdin)."""
    nonce = os.urandom(16).hex()
    full = {"v": 1, "nonce": nonce, "runner": HASH, "bundle": len(BUNDLE) if bundle else 0, "base": None, "deadline_ms": 60000}
    full.update(header)
    data = b"%s\n%s\n" % (nonce.encode(), os.fsencode(sys.executable if python is None else python))
    data += loader() + json.dumps(full).encode("ascii") + b"\n"
    return nonce, data + (BUNDLE if bundle else b"")


def start(shell=("/bin/sh", "-c"), env=None, words=None, **options):
    return subprocess.Popen(list(shell) + [words or command()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env=env, start_new_session=True, **options)


def send(header, bundle=True, python=None, **options):
    nonce, data = request(header, bundle, python)
    process = start(**options)
    out, err = process.communicate(data, timeout=120)
    return Reply(out, err, process.returncode, nonce)


def until(condition, seconds=SLACK, what="condition"):
    """Poll with a deadline."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError("%s did not come true in %s s" % (what, seconds))
        time.sleep(0.005)


def gone(pid):
    """Whether a process has ended (a zombie that nobody reaps has)."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


class Far:
    """One target with a base directory of its own."""

    def __init__(self):
        self.root = tempfile.mkdtemp(prefix="farcell-test-")
        self.base = os.path.join(os.path.realpath(self.root), "base")
        self.installed = False

    def send(self, op, **fields):
        options = {name: fields.pop(name) for name in ("shell", "env", "words", "python", "cwd") if name in fields}
        header = {"op": op, "base": self.base if self.installed else None, "place": {"dir": self.base}}
        header.update(fields)
        reply = send(header, bundle=not self.installed, **options)
        if reply.json and reply.json["ok"]:
            self.installed = True
        return reply

    def ok(self, op, **fields):
        reply = self.send(op, **fields)
        if not reply.json or not reply.json["ok"]:
            raise AssertionError("%s failed: %r %s" % (op, reply.json, reply.stderr.decode("utf-8", "replace")[-2000:]))
        return reply.json

    def spawn(self, key="aa", **spec):
        full = {"id": "k-" + os.urandom(8).hex(), "session": "default", "owner_hash": "o", "cwd": None, "env": {}, "idle_ms": 600000, "grace_ms": 500,
                "limits": {"memory_bytes": None, "processes": None, "cpu_seconds": None, "open_files": None, "spill_bytes": 67108864}}
        full.update(spec)
        return self.ok("spawn", key=key, spec=full)

    def cell(self, code, **more):
        cell = {"v": 1, "id": os.urandom(16).hex(), "code": code, "timeout_ms": 60000, "max_output": 1048576, "echo": "last",
                "cwd": None, "env": {}, "reset": False}
        cell.update(more)
        return cell

    def run(self, directory, code, wait=None, **more):
        return self.ok("run", dir=directory, cell=self.cell(code, **more), wait=dict({"hold_ms": 25000}, **(wait or {})), ack=[])

    def close(self):
        """End all kernels, and everything that is left of them, by their own numbers."""
        for name in os.listdir(self.base) if os.path.isdir(self.base) else []:
            record = os.path.join(self.base, name, "kernel.json")
            if not os.path.exists(record):
                continue
            with open(record) as file:
                kernel = json.load(file)
            for pid in (kernel.get("pid"), kernel.get("interpreter_pid")):
                if pid and not gone(pid) and self.is_ours(pid):
                    os.kill(pid, signal.SIGKILL)
                    until(lambda: gone(pid), what="the end of %d" % pid)
        shutil.rmtree(self.root, ignore_errors=True)

    def is_ours(self, pid):
        """A pid may have been given anew: only what was started from this base is ended."""
        try:
            with open("/proc/%d/cmdline" % pid, "rb") as file:
                return os.fsencode(self.base) in file.read()
        except OSError:
            return False


def records(data):
    found, at = [], 0
    while at < len(data):
        kind, length = struct.unpack_from(">cI", data, at)
        found.append((kind.decode(), bytes(data[at + 5:at + 5 + length])))
        at += 5 + length
    return found


def text_of(data, kind="o"):
    return b"".join(payload for found, payload in records(data) if found == kind).decode()


class FarTest(unittest.TestCase):
    """A test with a target, whose kernels end with it."""

    def setUp(self):
        self.far = Far()
        self.addCleanup(self.far.close)

    def kernel(self, key="aa", **spec):
        return self.far.spawn(key, **spec)["kernel"]

    def value(self, directory, code, **options):
        answer = self.far.run(directory, code, **options)
        self.assertEqual(answer["fate"], "settled", answer)
        self.assertEqual(answer["reply"]["status"], "ok", answer["reply"])
        return (answer["reply"]["result"] or {}).get("text/plain")

    def begin(self, directory, code, **more):
        """Ship a cell, and come back as soon as it runs."""
        answer = self.far.run(directory, code, wait={"hold_ms": 0}, **more)
        until(lambda: self.far.ok("probe", dir=directory)["running"], what="the cell's start")
        return answer["number"], answer["id"]
