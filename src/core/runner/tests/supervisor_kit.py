"""Kernels for the tests of the supervisor: real processes, spoken to through files or pipes as a host would."""

import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import uuid

RUNNER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if RUNNER not in sys.path:
    sys.path.insert(0, RUNNER)

from _farcell import frames, osdep  # noqa: E402

PATIENCE = 60.0


def until(check, seconds=PATIENCE, what="it"):
    """Ask `check` again and again until it gives something true, which is returned."""
    end = time.monotonic() + seconds
    pause = select.poll()
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError("%s did not happen within %s s" % (what, seconds))
        pause.poll(3)


def alive(pid):
    """Whether a process is there and no zombie."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def spec(**fields):
    value = {"id": "k-" + uuid.uuid4().hex[:12], "session": "default", "owner_hash": "o", "cwd": None, "env": {}, "idle_ms": 600000,
             "grace_ms": 500, "limits": {"memory_bytes": None, "processes": None, "cpu_seconds": None, "open_files": None,
                                         "spill_bytes": 67108864}}
    limits = fields.pop("limits", {})
    value.update(fields)
    value["limits"].update(limits)
    return value


def request(code, **fields):
    value = {"v": 1, "id": uuid.uuid4().hex, "code": code, "timeout_ms": 60000, "max_output": 1048576, "echo": "last", "cwd": None,
             "env": {}, "reset": False}
    value.update(fields)
    return value


def _environment():
    env = dict(os.environ)
    env.pop(osdep.MARK, None)
    return env


class FileKernel(object):
    """A kernel in a directory."""

    def __init__(self, base=None, program=None, **fields):
        self.spec = spec(**fields)
        self.base = tempfile.mkdtemp(prefix="farcell-test-", dir=base)
        self.dir = os.path.join(self.base, self.spec["id"])
        os.mkdir(self.dir, 0o700)
        full = dict(self.spec, key="ab", base=self.base, dir=self.dir, runner="00")
        self.process = subprocess.Popen(program(self.dir) if program else [sys.executable, os.path.join(RUNNER, "farcell_kernel.py"), self.dir],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=_environment())
        self.process.stdin.write(json.dumps(full).encode())
        self.process.stdin.close()
        self.answer = json.loads(self.process.stdout.readline().decode())
        self.process.stdout.close()
        self.pid = self.process.pid
        self.number = 0

    @property
    def record(self):
        return json.loads(self.read("kernel.json").decode())

    def path(self, name):
        return os.path.join(self.dir, name)

    def cell_path(self, kind, number):
        return self.path("cells/cell_%s_%06d%s" % (kind, number, "" if kind == "out" else ".json"))

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def wake(self):
        fd = os.open(self.path("wake"), os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, b"\n")
        os.close(fd)

    def send(self, code, **fields):
        return self.send_raw(json.dumps(request(code, **fields)).encode())

    def send_raw(self, data):
        self.number += 1
        temporary = self.path("cells/.t")
        with open(temporary, "wb") as file:
            file.write(data)
        os.rename(temporary, self.cell_path("req", self.number))
        self.wake()
        return self.number

    def reply(self, number, seconds=PATIENCE):
        until(lambda: os.path.exists(self.cell_path("res", number)), seconds, "the reply of cell %d" % number)
        with open(self.cell_path("res", number), "rb") as file:
            return json.loads(file.read().decode("utf-8"))

    def run(self, code, **fields):
        return self.reply(self.send(code, **fields))

    def control(self, do, **fields):
        name = self.path("cells/ctl_" + uuid.uuid4().hex)
        with open(name + ".t", "w") as file:
            json.dump(dict(fields, do=do), file)
        os.rename(name + ".t", name + ".json")
        self.wake()
        until(lambda: os.path.exists(name + ".done"), what="the answer to " + do)
        with open(name + ".done") as file:
            answer = json.load(file)
        os.unlink(name + ".done")
        return answer

    def wait_running(self, number):
        # A short cell may be over before it is looked at.
        until(lambda: any(os.path.exists(self.cell_path(kind, number)) for kind in ("run", "res")), what="the start of cell %d" % number)

    def records(self, number):
        """The record file as {kind: bytes}."""
        found = {}
        try:
            with open(self.cell_path("out", number), "rb") as file:
                data = file.read()
        except OSError:
            return found
        return split_records(data)

    def wait_printed(self, number, text):
        until(lambda: text in self.records(number).get("o", b""), what="the output %r" % text)

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        left = osdep.pids_with_mark(osdep.MARK, self.spec["id"])
        for pid, start in left:
            osdep.kill_exact(pid, start, signal.SIGKILL)
        shutil.rmtree(self.base, ignore_errors=True)
        if left:
            raise AssertionError("processes were left behind: %r" % left)


def split_records(data):
    found = {}
    at = 0
    while at + 5 <= len(data):
        kind, size = struct.unpack_from(">cI", data, at)
        kind = kind.decode()
        found[kind] = found.get(kind, b"") + data[at + 5:at + 5 + size]
        at += 5 + size
    return found


PROGRAM = "import sys, json; sys.path.insert(0, sys.argv[1]); from _farcell import supervisor; supervisor.main_pipes(json.loads(sys.argv[2]), 0, 1)"


class PipeKernel(object):
    """A kernel on two pipes."""

    def __init__(self, program=PROGRAM, gather=False, **fields):
        self.spec = spec(**fields)
        header = {"v": 1, "nonce": "0123456789abcdef" * 2, "op": "stdio", "spec": self.spec, "gather": gather}
        self.process = subprocess.Popen([sys.executable, "-c", program, RUNNER, json.dumps(header)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, env=_environment())
        self.pid = self.process.pid
        self.in_fd, self.out_fd = self.process.stdin.fileno(), self.process.stdout.fileno()
        words = self._line().split()
        assert words[:2] == [b"0123456789abcdef" * 2, b"json"], words
        self.answer = json.loads(self._exactly(int(words[2]) + 1).decode())
        self.reader = frames.Reader()
        self.arrived = []
        self.refs = 0

    def _line(self):
        line = b""
        while not line.endswith(b"\n"):
            line += self._exactly(1)
        return line

    def _exactly(self, count):
        data = b""
        while len(data) < count:
            piece = os.read(self.out_fd, count - len(data))
            assert piece, "the supervisor closed its pipe"
            data += piece
        return data

    def push(self, kind, value):
        frames.write_all(self.in_fd, frames.pack(kind, json.dumps(value).encode()))

    def send(self, code, **fields):
        value = request(code, **fields)
        self.push(b"Q", value)
        return value["id"]

    def next(self, wanted, match=lambda payload: True, seconds=PATIENCE):
        """The next frame of a kind; others stay for later."""
        end = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self.out_fd, select.POLLIN)
        while True:
            for index, (kind, payload) in enumerate(self.arrived):
                if kind == wanted and match(payload):
                    del self.arrived[index]
                    return payload
            left = end - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise AssertionError("no %r frame within %s s" % (wanted, seconds))
            data = os.read(self.out_fd, 1 << 20)
            if not data:
                raise AssertionError("the supervisor is gone")
            self.arrived.extend(self.reader.feed(data))

    def reply(self, cell_id, seconds=PATIENCE):
        found = self.next(b"R", lambda payload: json.loads(payload.decode())["cell"]["id"] == cell_id, seconds)
        return json.loads(found.decode())

    def run(self, code, **fields):
        return self.reply(self.send(code, **fields))

    def control(self, do, **fields):
        self.refs += 1
        ref = self.refs
        self.push(b"C", dict(fields, do=do, ref=ref))
        return json.loads(self.next(b"D", lambda payload: json.loads(payload.decode())["ref"] == ref).decode())

    def get(self, file, number=None, offset=0, size=65536):
        self.refs += 1
        ref = self.refs
        self.push(b"G", {"ref": ref, "file": file, "number": number, "offset": offset, "max": size})
        return self.next(b"B", lambda payload: struct.unpack_from(">I", payload)[0] == ref)[4:]

    def printed(self):
        """What came in O frames so far: {kind: bytes}."""
        return split_records(b"".join(payload[4:] for kind, payload in self.arrived if kind == b"O"))

    def close(self):
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("the supervisor outlived its host")
        left = osdep.pids_with_mark(osdep.MARK, self.spec["id"])
        for pid, start in left:
            osdep.kill_exact(pid, start, signal.SIGKILL)
        if left:
            raise AssertionError("processes were left behind: %r" % left)
