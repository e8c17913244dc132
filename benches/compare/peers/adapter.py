"""What all adapters share: the line protocol that the benchmark speaks with a peer, and the work that is measured.

The benchmark starts `python -m NAME` in the peers' virtual environment, writes a JSON object a line, and reads one a line as the answer. Times are taken
here, around the peer's own call, so that this protocol is in no figure.

    {"do": "connect", "target": {"kind": "local", "python": "/usr/bin/python3"}}     {"version": "2.1.2", "note": ""}
    {"do": "spawn", "count": 1}                                                      {"ms": [31.2], "kernels": [0]}
    {"do": "count", "kernels": [0], "rounds": 10}                                    {"ms": [0.2, …]}
    {"do": "print", "kernel": 0, "rounds": 3, "bytes": 1000000}                      {"ms": [4.1, …]}
    {"do": "load", "kernel": 0, "rounds": 3, "bytes": 200000}                        {"ms": [3.9, …]}
    {"do": "pids", "kernels": [0]}                                                   {"pids": [4711], "container": null}
    {"do": "stop", "kernels": [0]}                                                   {}

An answer may be {"cannot": "why"} for what the peer does not offer, or {"error": "what went wrong"}. The end of stdin ends the adapter and all that it has
started.
"""

import json
import os
import sys
import time
import traceback


class Cannot(Exception):
    """The peer does not offer this; the message says why, for people who know the peer."""


class PythonWork:
    """The cells that are measured, as Python."""

    FIRST = "x = 0"
    COUNT = "x += 1"
    ASK_COUNT = "print(x)"
    ASK_SIZE = "print(len(data))"
    ASK_PID = "import os; print(os.getpid())"

    @staticmethod
    def printing(size):
        """Print so many bytes, in lines of 100."""
        return "print(('x' * 99 + '\\n') * %d, end='')" % (size // 100)

    @staticmethod
    def loading(text):
        """A cell that consists of a long literal."""
        return "data = '%s'" % text


class BashWork:
    """The same for a shell."""

    FIRST = "x=0"
    # Not $((x + 1)), which sends SWE-ReX on a detour of 0.1 s.
    COUNT = "let x+=1"
    ASK_COUNT = "echo $x"
    ASK_SIZE = "echo ${#data}"
    ASK_PID = "echo $$"

    @staticmethod
    def printing(size):
        return "yes %s 2>/dev/null | head -n %d" % ("x" * 99, size // 100)

    @staticmethod
    def loading(text):
        return "data='%s'" % text


class Adapter:
    """A peer. Subclasses say how it connects, spawns, runs and ends; what is measured stands here."""

    work = PythonWork
    note = ""

    def __init__(self, target):
        """Get as far as the peer gets once for a target, before any kernel."""
        self.target = target
        # The container whose numbers `pids` tells, if it is in one.
        self.container = target.get("container")
        self.kernels = []
        self.counts = []

    def version(self):
        """What is compared with."""
        raise NotImplementedError

    def spawn(self):
        """Start a kernel and return it."""
        raise NotImplementedError

    def run(self, kernel, code):
        """Run a cell to its end and return what it printed."""
        raise NotImplementedError

    def stop(self, kernel):
        """End a kernel."""

    def close(self):
        """End everything."""

    def pids(self, kernel):
        """The processes that this kernel consists of, in the numbers of the far side."""
        return [int(self.run(kernel, self.work.ASK_PID))]

    # What the benchmark asks for.

    def do_spawn(self, count):
        times, numbers = [], []
        for _ in range(count):
            started = time.perf_counter()
            kernel = self.spawn()
            self.run(kernel, self.work.FIRST)
            times.append(_since(started))
            numbers.append(len(self.kernels))
            self.kernels.append(kernel)
            self.counts.append(0)
        return {"ms": times, "kernels": numbers}

    def do_count(self, kernels, rounds):
        times = []
        for _ in range(rounds):
            for number in kernels:
                kernel = self.kernels[number]
                started = time.perf_counter()
                self.run(kernel, self.work.COUNT)
                times.append(_since(started))
                self.counts[number] += 1
        for number in kernels:
            self._expect(number, self.work.ASK_COUNT, self.counts[number])
        return {"ms": times}

    def do_print(self, kernel, rounds, bytes):
        code, times = self.work.printing(bytes), []
        for _ in range(rounds):
            started = time.perf_counter()
            text = self.run(self.kernels[kernel], code)
            times.append(_since(started))
            # One that has a terminal makes two characters of a newline, and adds some.
            size = len(text.replace("\r", "").strip("\n"))
            if size != bytes - 1:
                raise Cannot("of %d bytes of output %d arrive" % (bytes, size + 1))
        return {"ms": times}

    def do_load(self, kernel, rounds, bytes):
        code, times = self.work.loading(literal(bytes)), []
        for _ in range(rounds):
            started = time.perf_counter()
            self.run(self.kernels[kernel], code)
            times.append(_since(started))
            self._expect(kernel, self.work.ASK_SIZE, bytes)
        return {"ms": times}

    def do_pids(self, kernels):
        found = sorted({pid for number in kernels for pid in self.pids(self.kernels[number])})
        return {"pids": found, "container": self.container}

    def do_stop(self, kernels):
        for number in kernels:
            self.stop(self.kernels[number])
            self.kernels[number] = None
        return {}

    def _expect(self, number, question, expected):
        answer = self.run(self.kernels[number], question).strip()
        if answer != str(expected):
            raise RuntimeError("%s: %r, not %r" % (question, answer[-200:], expected))


def _since(started):
    return (time.perf_counter() - started) * 1000.0


def literal(size):
    """Letters and digits that do not compress well: the same every time, and the same as the benchmark makes for farcell."""
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    state, piece = 12345, bytearray()
    for _ in range(min(size, 65521)):
        state = (state * 1103515245 + 12345) % 2147483648
        piece.append(alphabet[state >> 16 & 63])
    return (bytes(piece) * (size // len(piece) + 1))[:size].decode()


def serve(adapter_class):
    """Answer the benchmark until its end of the pipe closes."""
    # Peers print; the answers need a stdout of their own.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    adapter = None
    try:
        for line in sys.stdin:
            request = json.loads(line)
            what = request.pop("do")
            try:
                if what == "connect":
                    adapter = adapter_class(request["target"])
                    answer = {"version": adapter.version(), "note": adapter.note}
                else:
                    answer = getattr(adapter, "do_" + what)(**request)
            except Cannot as e:
                answer = {"cannot": str(e)}
            except Exception as e:
                traceback.print_exc()
                answer = {"error": "%s: %s" % (type(e).__name__, e)}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        if adapter is not None:
            adapter.close()
