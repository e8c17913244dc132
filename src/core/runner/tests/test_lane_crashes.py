"""Couriers that are killed or stopped between any two of their steps, and many that use one kernel at the same time."""

import json
import os
import random
import select
import signal
import time
import unittest

from tests.lane_kit import DIRECT, OPTIONS, Courier, command
from tests.supervisor_kit import PATIENCE, FileKernel, request, until
from tests.test_lane_files import needs_lane
from _farcell import cellfiles, files, lane_client, lane_files


class Stepping:
    """Stands in for a module, or for the words of a page: counts what is done with it, and sends this process a signal before one of these steps."""

    def __init__(self, inner, count):
        self.__dict__.update(_inner=inner, _count=count)

    def __getattr__(self, name):
        value = getattr(self._inner, name)
        if not callable(value) or isinstance(value, type):
            return value

        def step(*args, **kwargs):
            self._count(name)
            return value(*args, **kwargs)
        return step

    def __getitem__(self, word):
        return self._inner[word]

    def __setitem__(self, word, value):
        self._count("word %d" % word)
        self._inner[word] = value


class Steps:
    """A forked courier that does `work(courier)` and is hit by `signum` at its step number `at`."""

    def __init__(self, kernel, work, at, signum):
        self.alive = True
        self.reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self.reader)
                os.write(writer, json.dumps(self._work(kernel, work, at, signum)).encode())
                os._exit(0)
            finally:
                os._exit(1)
        os.close(writer)

    def _work(self, kernel, work, at, signum):
        taken = [0]

        def count(_name):
            taken[0] += 1
            if taken[0] == at:
                os.kill(os.getpid(), signum)
        courier = Courier(kernel)
        courier.lane._words = Stepping(courier.lane._words, count)
        for module in (lane_client, lane_files, files, cellfiles):
            for name in {"os", "fcntl"}.intersection(vars(module)):
                setattr(module, name, Stepping(getattr(module, name), count))
        return work(courier)

    def hit(self):
        """Wait until it is killed or stopped; False if it came to its end instead."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        self.alive = os.WIFSTOPPED(status)
        if os.WIFEXITED(status):
            assert not os.WEXITSTATUS(status), "the courier failed"
            return False
        return True

    def go_on(self):
        """What it says in the end, after it was stopped."""
        os.kill(self.pid, signal.SIGCONT)
        data = b""
        while True:
            assert select.select([self.reader], [], [], PATIENCE)[0]
            piece = os.read(self.reader, 65536)
            if not piece:
                return json.loads(data.decode())
            data += piece

    def close(self):
        os.close(self.reader)
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def courses():
    """(name, code, acknowledged): every way that a cell can take."""
    return (("quiet", "x += 1", False), ("acknowledged", "x += 1", True), ("loud", "x += 1; print('hello')", False), ("long", "import time; time.sleep(0.02); x += 1", False))


def before(kernel):
    """A reply in the page that nobody has acknowledged: (id, reply)."""
    courier = Courier(kernel)
    try:
        while True:
            value = request("x")
            courier.put(value)
            reply, way = courier.outcome(courier.lane.number, value["id"], 1.0)
            if way == DIRECT:
                return value["id"], reply
    finally:
        courier.close()


@needs_lane
class Crashes(unittest.TestCase):
    def kernel(self):
        kernel = FileKernel()
        self.addCleanup(kernel.close)
        value = request("x = 0")
        command(kernel.dir, "run", cell=value, wait=OPTIONS)
        return kernel

    def ask(self, kernel, value):
        return command(kernel.dir, "wait", id=value["id"], wait=OPTIONS)

    def again(self, kernel, value):
        """What a host does that does not know what became of a cell: the reply."""
        return command(kernel.dir, "run", cell=value, wait=OPTIONS, again=True)["reply"]

    def can_ship(self, kernel):
        """Not while one that takes a number is stopped: that is so with every command, and told as busy."""
        try:
            with files.locked(kernel.path("cells"), 0.0):
                return True
        except files.LockTimeout:
            return False

    def x(self, kernel):
        return int(command(kernel.dir, "run", cell=request("x"), wait=OPTIONS)["reply"]["result"]["text/plain"])

    def each_step(self, signum, check):
        """`check` at every step of every course, until one comes to its end unharmed."""
        for name, code, acknowledged in courses():
            kernel = self.kernel()
            step = 1
            while True:
                earlier, heard = before(kernel)
                value = request(code)
                acks = [heard["cell"]["number"]] if acknowledged else []

                def work(courier):
                    courier.put(value, acks)
                    return courier.outcome(courier.lane.number, value["id"])[0]
                steps = Steps(kernel, work, step, signum)
                try:
                    with self.subTest(course=name, step=step):
                        if not steps.hit():
                            break
                        check(kernel, steps, value)
                        if not acknowledged:
                            self.assertEqual(self.ask(kernel, {"id": earlier})["reply"], heard)
                finally:
                    steps.close()
                step += 1
            self.assertGreater(step, 10)

    def test_killed_at_any_step_no_cell_is_lost_or_run_twice(self):
        def check(kernel, _steps, value):
            runs = self.x(kernel)
            answer = self.ask(kernel, value)
            if answer["fate"] == "unknown":
                self.assertEqual(self.x(kernel), runs)
                answer["reply"] = self.again(kernel, value)
            self.assertEqual((answer["reply"]["status"], answer["reply"]["cell"]["id"]), ("ok", value["id"]))
            self.assertEqual(self.again(kernel, value), answer["reply"])
            self.assertEqual(self.x(kernel), self.total(kernel))
            before(kernel)  # the lane is free again
        self.totals = {}
        self.each_step(signal.SIGKILL, check)

    def total(self, kernel):
        self.totals[kernel.pid] = self.totals.get(kernel.pid, 0) + 1
        return self.totals[kernel.pid]

    def test_stopped_at_any_step_it_holds_up_nobody(self):
        def check(kernel, steps, value):
            if self.can_ship(kernel):
                other = command(kernel.dir, "run", cell=request("print('other')"), wait=OPTIONS)
                self.assertEqual((other["fate"], other["reply"]["stdout"]), ("settled", "other\n"))
            reply = steps.go_on()
            self.assertEqual((reply["status"], reply["cell"]["id"], reply["stdout"]), ("ok", value["id"], "hello\n" if "hello" in value["code"] else ""))
            self.assertEqual(self.ask(kernel, value)["reply"], reply)
            self.assertEqual(self.x(kernel), self.total(kernel))
        self.totals = {}
        self.each_step(signal.SIGSTOP, check)

    def test_stopped_at_any_step_and_overtaken_it_runs_nothing_again(self):
        def check(kernel, steps, value):
            if not self.can_ship(kernel):
                return
            reply = self.again(kernel, value)
            self.assertEqual(reply["status"], "ok")
            late = steps.go_on()
            self.assertEqual(late["cell"]["id"], value["id"])
            if late["cell"]["number"] == reply["cell"]["number"]:
                self.assertEqual(late, reply)
            else:
                self.assertEqual(late["status"], "refused")
            self.assertEqual(self.x(kernel), self.total(kernel))
        self.totals = {}
        self.each_step(signal.SIGSTOP, check)

    def test_killed_at_any_step_together_with_its_kernel(self):
        step, fates = 1, set()
        while True:
            kernel = self.kernel()
            trace = kernel.path("trace")
            value = request("open(%r, 'a').write('.') and None" % trace)

            def work(courier):
                courier.put(value)
                return courier.outcome(courier.lane.number, value["id"])[0]
            steps = Steps(kernel, work, step, signal.SIGKILL)
            try:
                if not steps.hit():
                    break
            finally:
                steps.close()
            os.kill(kernel.pid, signal.SIGKILL)
            kernel.process.wait(PATIENCE)
            with self.subTest(step=step):
                answer = self.ask(kernel, value)
                runs = os.path.getsize(trace) if os.path.exists(trace) else 0
                self.assertIn((answer["fate"], runs), [("unknown", 0), ("settled", 1), ("dead", 0), ("dead", 1)])
                if runs:
                    self.assertNotIn("before this cell began", str(answer["reply"]["error"]))
                fates.add(answer["fate"])
            step += 1
        self.assertTrue({"unknown", "settled"} <= fates, fates)


@needs_lane
class Crowds(unittest.TestCase):
    def setUp(self):
        self.kernel = FileKernel()
        self.addCleanup(self.kernel.close)
        command(self.kernel.dir, "run", cell=request("ids = []"), wait=OPTIONS)

    def crowd(self, size, cells, codes):
        """Forked couriers that tell each id before they do anything with it, and its reply after: {pid: pipe}."""
        members = {}
        for _ in range(size):
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    courier = Courier(self.kernel)
                    for _ in range(cells):
                        value = request("")
                        value["code"] = random.choice(codes) % value["id"]
                        os.write(writer, b"%s begins\n" % value["id"].encode())
                        said = self.deal(courier, value)
                        os.write(writer, b"%s %s\n" % (value["id"].encode(), said.encode()))
                finally:
                    os._exit(0)
            os.close(writer)
            members[pid] = reader
        return members

    def deal(self, courier, value):
        acks, courier.acks = courier.acks, []
        if courier.lane.offer(value, acks):
            reply, _ = courier.outcome(courier.lane.number, value["id"])
        else:
            reply = courier.settle(courier.ship(value), value["id"])
        wrong = reply["status"] != "ok" or reply["stdout"] not in ("", value["id"] + "\n") or reply["cell"]["id"] != value["id"]
        return "wrong: %s" % json.dumps(reply) if wrong else "%d" % reply["cell"]["number"]

    def told(self, members):
        """All that was told, once all are gone: {id: number or None}."""
        found = {}
        for pid, reader in members.items():
            data = b""
            while True:
                self.assertTrue(select.select([reader], [], [], PATIENCE)[0])
                piece = os.read(reader, 65536)
                if not piece:
                    break
                data += piece
            os.close(reader)
            os.waitpid(pid, 0)
            for line in data.decode().split("\n")[:-1]:
                cell_id, said = line.split(" ", 1)
                self.assertTrue(said == "begins" or said.isdigit(), said)
                found[cell_id] = None if said == "begins" else int(said)
        return found

    def ids(self):
        return eval(command(self.kernel.dir, "run", cell=request("ids"), wait=OPTIONS)["reply"]["result"]["text/plain"])

    def test_many_couriers_and_commands_at_once(self):
        codes = ["ids.append(%r)", "ids.append(%r)", "print(%r); ids.append(1)", "import time; time.sleep(0.004); ids.append(%r)"]
        members = self.crowd(3, 150, codes)
        for _ in range(60):
            value = request("print('mine')")
            self.assertEqual(command(self.kernel.dir, "run", cell=value, wait=OPTIONS)["reply"]["stdout"], "mine\n")
            command(self.kernel.dir, "probe")
        told = self.told(members)
        self.assertEqual((len(told), None in told.values()), (450, False))
        self.assertEqual(len(set(told.values())), 450)
        ran = self.ids()
        self.assertEqual(len(ran), 450)
        self.assertEqual(len([each for each in ran if each != 1]), len(set(ran) - {1}))

    def test_couriers_that_are_killed_at_any_moment(self):
        codes = ["ids.append(%r)", "ids.append(%r)", "import time; time.sleep(0.003); ids.append(%r)"]
        told = {}
        for _ in range(25):
            members = self.crowd(2, 10 ** 6, codes)
            time.sleep(random.uniform(0.005, 0.06))
            for pid in members:
                os.kill(pid, signal.SIGKILL)
            told.update(self.told(members))
        fates = {cell_id: command(self.kernel.dir, "wait", id=cell_id, wait=OPTIONS)["fate"] for cell_id, number in told.items() if number is None}
        ran = self.ids()
        self.assertEqual(len(ran), len(set(ran)))
        for cell_id, number in told.items():
            self.assertEqual(cell_id in ran, number is not None or fates[cell_id] == "settled", (number, fates.get(cell_id)))
        self.assertGreater(len(ran), 50)


if __name__ == "__main__":
    unittest.main()
