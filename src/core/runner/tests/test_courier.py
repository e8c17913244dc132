"""The courier through `/bin/sh -c`, as the engine opens it: one channel, several kernels, calls side by side."""

import fcntl
import json
import os
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests import link_harness as harness
from tests.courier_kit import Stream, StreamTest
from tests.link_harness import text_of, until
from _farcell import attended, files, lane, lane_client, lane_page, records

WINDOW = 1 << 20


def spec(**more):
    full = {"id": "k-" + os.urandom(8).hex(), "session": "default", "owner_hash": "o", "cwd": None, "env": {}, "idle_ms": 600000, "grace_ms": 500, "limits": {}}
    full.update(more)
    return full


class Hello(StreamTest):
    def test_it_says_who_it_is_and_takes_calls_that_came_right_behind_the_bundle(self):
        self.far.installed = False
        ahead = Stream.call_frame(Counter(), "list", deadline_ms=20000)[1] + Stream.frame(None, b"P", 0)
        stream = self.stream(ahead=ahead)
        courier = stream.greeted()
        self.assertEqual(sorted(courier), ["pid", "python", "wake", "window"])
        self.assertEqual((courier["window"], os.readlink("/proc/%d/exe" % courier["pid"])), (WINDOW, os.path.realpath(courier["python"])))
        self.assertIn(courier["wake"], ("fifo+pidfd", "fifo", "poll"))
        self.assertEqual(stream.answer(1)["kernels"], [])
        self.assertIn((b"p", 0, 0), stream.frames)

    def test_a_bundle_that_it_brought_is_enough_to_spawn(self):
        stream = self.stream()
        made = stream.ok("spawn", key="aa", spec=spec())
        self.assertEqual((made["reused"], stream.value(made["kernel"]["dir"], "1 + 1")), (False, "2"))
        self.assertEqual(stream.ok("spawn", key="aa", spec=spec())["reused"], True)

    def test_without_bundle_and_runner_it_is_an_error_and_no_call_is_looked_at(self):
        self.kernel()
        nonce, data = harness.request({"op": "courier", "base": self.far.base, "runner": "0123456789abcdef"}, bundle=False)
        process = harness.start()
        out, _err = process.communicate(data + Stream.call_frame(Counter(), "sweep", older_than_s=0)[1], timeout=60)
        self.assertEqual((harness.Reply(out, b"", 0, nonce).code, out.count(b"json")), ("need-runner", 1))

    def test_later_calls_need_no_runner_except_a_spawn(self):
        kernel = self.kernel()
        stream = self.stream()
        stream.greeted()
        os.rename(os.path.join(self.far.base, "runner-" + harness.HASH), os.path.join(self.far.root, "away"))
        self.assertEqual(stream.value(kernel["dir"], "5"), "5")
        self.assertEqual(stream.ok("probe", dir=kernel["dir"])["alive"], True)
        self.assertEqual(stream.ok("list")["kernels"][0]["kernel"]["id"], kernel["id"])
        # Of another kind than any zygote that is there, so that it has to be read anew.
        answer = stream.result(stream.call("spawn", key="bb", spec=dict(spec(), env={"PYTHONHASHSEED": "7"})))
        self.assertEqual(answer["error"]["code"], "need-runner")
        self.assertEqual(stream.ok("doctor")["wake"], stream.greeted()["wake"])
        self.assertTrue(stream.ok("control", dir=kernel["dir"], do="stop", hold_ms=20000)["done"])


class Counter:
    """Numbers for a call that is made before there is a stream."""

    _next = 0
    frame = Stream.frame


class Cells(StreamTest):
    def test_kernels_side_by_side(self):
        stream = self.stream()
        calls = [stream.call("spawn", key="a%d" % at, spec=spec()) for at in range(6)]
        kernels = [stream.answer(call)["kernel"] for call in calls]
        self.assertEqual(len({kernel["id"] for kernel in kernels}), 6)
        for turn in range(3):
            calls = [stream.run(kernel["dir"], "n = %d; n * 10" % at) for at, kernel in enumerate(kernels)]
            self.assertEqual([stream.answer(call)["reply"]["result"]["text/plain"] for call in calls], [str(at * 10) for at in range(6)])
        sleeper = stream.run(kernels[0]["dir"], "import time; time.sleep(300)")
        self.running(stream, kernels[0]["dir"])
        self.assertEqual(stream.value(kernels[1]["dir"], "n"), "1")
        self.assertTrue(stream.ok("control", dir=kernels[0]["dir"], do="interrupt")["done"])
        self.assertEqual(stream.answer(sleeper)["reply"]["status"], "interrupted")
        self.assertEqual(len(stream.ok("list")["kernels"]), 6)

    def running(self, stream, directory):
        return until(lambda: stream.ok("probe", dir=directory)["running"], what="the cell's start")

    def test_the_same_answers_as_a_command_gives(self):
        directory = self.kernel()["dir"]
        stream = self.stream()
        number = stream.answer(stream.run(directory, "print('word')\n7"))["number"]
        for op, fields in (("wait", {"number": number, "wait": {"hold_ms": 0}}), ("wait", {"wait": {"hold_ms": 0}}), ("probe", {}),
                           ("wait", {"number": number, "wait": {"hold_ms": 0, "stream": True}}), ("read", {"file": "out", "number": number, "max": 9, "offset": 2}),
                           ("wait", {"id": "0" * 32, "wait": {"hold_ms": 0}}), ("wait", {"number": 77, "wait": {"hold_ms": 0}})):
            command = self.far.send(op, dir=directory, **fields)
            call = stream.call(op, dir=directory, **fields)
            self.assertEqual((stream.answer(call), stream.records.get(call, b"")), (command.json, command.out), (op, fields))
        for op, fields in (("read", {"file": "no"}), ("wait", {"wait": {"hold_ms": -1}}), ("run", {"cell": {"id": "x"}}), ("control", {"do": "dance"}),
                           ("withdraw", {}), ("ack", {"numbers": ["1"]}), ("wait", {"number": 0})):
            self.assertEqual(stream.result(stream.call(op, dir=directory, **fields)), self.far.send(op, dir=directory, **fields).json, op)
        for bad in ("/", "k-none", self.far.base + "/k-0000", "/etc/k-passwd"):
            self.assertEqual(stream.result(stream.call("probe", dir=bad)), self.far.send("probe", dir=bad).json, bad)
        self.assertFalse(stream.ok("withdraw", dir=directory, id="1" * 32)["withdrawn"])
        stream.ok("ack", dir=directory, numbers=[number])
        self.assertEqual(stream.ok("probe", dir=directory)["replies"], [])
        self.assertEqual([name for name in os.listdir(os.path.join(directory, "cells")) if name.startswith("cell")], [])

    def test_a_call_that_is_wrong_is_an_answer_and_the_stream_goes_on(self):
        stream = self.stream()
        stream.greeted()
        for at, body in enumerate((b"", b"{", b"[]", b"\xff\xfe", b'{"op": "run"}', b'{"op": ["run"], "deadline_ms": 5}', b'{"op": "dance", "deadline_ms": 5}',
                                   b'{"op": "stdio", "deadline_ms": 5}', b'{"op": "run", "deadline_ms": true, "dir": 5}', b"[" * 100000)):
            stream.write(stream.frame(b"C", 1000 + at, body))
            self.assertEqual(stream.result(1000 + at)["error"]["code"], "bad-request", body[:50])
        self.assertEqual(stream.ok("list")["kernels"], [])

    def test_output_comes_while_the_cell_runs(self):
        directory = self.kernel()["dir"]
        gate = os.path.join(self.far.root, "gate")
        os.mkfifo(gate)
        stream = self.stream()
        call = stream.run(directory, "print('one', flush=True); open(%r).read(); print('two'); 7" % gate, wait={"stream": True, "tell": True})
        stream.until(lambda: text_of(stream.records.get(call, b"")) == "one\n", what="the first line")
        self.assertNotIn(call, stream.answers)
        open(gate, "w").close()
        answer = stream.answer(call)
        self.assertEqual((answer["fate"], text_of(stream.records[call]), answer["offset"]), ("settled", "one\ntwo\n", len(stream.records[call])))
        self.assertEqual((answer["reply"]["stdout"], answer["reply"]["result"]["text/plain"]), ("one\ntwo\n", "7"))

    def test_a_hold_ends_with_whole_records_and_the_next_wait_goes_on_there(self):
        directory = self.kernel()["dir"]
        gate = os.path.join(self.far.root, "gate")
        os.mkfifo(gate)
        stream = self.stream()
        first = stream.run(directory, "print('one', flush=True); open(%r).read(); print('two')" % gate, wait={"stream": True, "hold_ms": 200})
        answer = stream.answer(first)
        self.assertEqual((answer["fate"], text_of(stream.records[first]), answer["offset"]), ("running", "one\n", len(stream.records[first])))
        self.assertGreater(answer["running_ms"], 0)
        second = stream.call("wait", dir=directory, number=answer["number"], wait={"stream": True, "hold_ms": 25000, "offset": answer["offset"]})
        open(gate, "w").close()
        self.assertEqual((stream.answer(second)["fate"], text_of(stream.records[second])), ("settled", "two\n"))
        third = stream.call("wait", dir=directory, number=answer["number"], wait={"stream": True, "hold_ms": 0})
        self.assertEqual((stream.answer(third)["fate"], text_of(stream.records[third])), ("settled", "one\ntwo\n"))

    def test_a_cell_that_has_to_wait_is_told_and_can_be_withdrawn(self):
        directory = self.kernel()["dir"]
        stream = self.stream()
        stream.run(directory, "import time; time.sleep(300)")
        told = stream.answer(stream.run(directory, "1", wait={"tell": True}))
        self.assertEqual((told["fate"], told["ahead"]), ("waiting", 1))
        waiting = stream.call("wait", dir=directory, number=told["number"], wait={"hold_ms": 25000})
        self.assertTrue(stream.ok("withdraw", dir=directory, id=told["id"])["withdrawn"])
        self.assertEqual(stream.answer(waiting, 4.0)["fate"], "unknown")

    def test_a_request_that_is_sent_again_is_not_run_again(self):
        directory = self.kernel()["dir"]
        stream = self.stream()
        stream.value(directory, "n = 0")
        cell = self.far.cell("n += 1; n")
        first = stream.answer(stream.run(directory, "", cell=cell))
        second = stream.answer(stream.run(directory, "", cell=cell, again=True))
        self.assertEqual((first["reply"], first["number"]), (second["reply"], second["number"]))
        other = self.stream()
        self.assertEqual(other.answer(other.run(directory, "", cell=cell, again=True))["reply"], first["reply"])
        self.assertEqual(stream.value(directory, "n"), "1")

    def test_ten_megabytes_of_code_in_pieces_and_another_call_between_them(self):
        directories = [self.kernel(key)["dir"] for key in ("aa", "bb")]
        stream = self.stream()
        stream.value(directories[1], "1")
        number, frame = stream.call_frame("run", dir=directories[0], cell=self.far.cell("s = '" + "x" * 10000000 + "'\nlen(s)"), wait={"hold_ms": 50000}, ack=[])
        body, size = frame[9:], 65000
        pieces = [body[at:at + size] for at in range(0, len(body), size)]
        for piece in pieces[:50]:
            stream.write(stream.frame(b"c", number, piece))
        self.assertEqual(stream.value(directories[1], "2"), "2")
        for piece in pieces[50:-1]:
            stream.write(stream.frame(b"c", number, piece))
        stream.write(stream.frame(b"C", number, pieces[-1]))
        self.assertEqual(stream.value(directories[1], "3"), "3")
        self.assertEqual(stream.answer(number)["reply"]["result"]["text/plain"], "10000000")
        self.assertEqual(stream.result(stream.run(directories[0], "x" * 300000 + " = 1", cell=dict(self.far.cell("#" * 300000), id="no")))["error"]["code"], "bad-request")

    def test_a_long_request_behind_its_header_is_shipped_as_it_came(self):
        directory = self.kernel()["dir"]
        stream = self.stream()
        stream.value(directory, "n = 0")
        fill = "# %s\n" % ("\u20ac" * 200000)
        cell = self.far.cell(fill + "n += 1; n")
        request = json.dumps(cell, ensure_ascii=False).encode("utf-8")
        first = stream.answer(stream.run_behind(directory, request, cell["id"], ack=[1]))
        self.assertEqual((first["id"], first["reply"]["result"]["text/plain"]), (cell["id"], "1"))
        again = stream.answer(stream.run_behind(directory, request, cell["id"], again=True))
        self.assertEqual((again["number"], again["reply"]), (first["number"], first["reply"]))
        # As where the directory is on a disk, and where a helper has to ship it.
        other = self.far.cell(fill + "n += 1; n")
        text = json.dumps(other).encode("ascii")
        self.assertEqual(stream.answer(stream.run_behind(directory, text, other["id"], again=True))["reply"]["result"]["text/plain"], "2")
        garbage = b"{" + b" " * 300000
        self.assertEqual(stream.answer(stream.run_behind(directory, garbage, "%032x" % 7))["reply"]["status"], "refused")
        for fields in ({"cell_bytes": len(text) - 1}, {"cell_bytes": None}, {"id": "no"}, {"wait": 5}, {"op": "submit"}, {"op": "list"}):
            self.assertEqual(stream.result(stream.run_behind(directory, text, other["id"], **fields))["error"]["code"], "bad-request", fields)
        self.assertEqual(stream.value(directory, "n"), "2")

    def test_a_large_answer_comes_in_pieces_between_which_others_come(self):
        directories = [self.kernel(key)["dir"] for key in ("aa", "bb")]
        stream = self.stream()
        large = stream.run(directories[0], "print('x' * 8000000)", cell=self.far.cell("print('x' * 8000000)", max_output=10000000))
        replies = [os.path.join(directory, "cells", "cell_res_000001.json") for directory in directories]
        until(lambda: os.path.exists(replies[0]), what="the large reply")
        small = stream.run(directories[1], "1")
        # Nothing has been read yet, so most of the large one still waits for room when the small one comes.
        until(lambda: os.path.exists(replies[1]), what="the small reply")
        self.assertEqual(len(stream.answer(large)["reply"]["stdout"]), 8000001)
        stream.answer(small)
        mine = [kind for kind, number, _size in stream.frames if number == large]
        self.assertEqual(mine, [b"j"] * (len(mine) - 1) + [b"J"])
        self.assertLess(stream.frames.index(next(frame for frame in stream.frames if frame[1] == small)), len(stream.frames) - 5)


    @unittest.skipUnless(lane.possible(), "there are no lanes here")
    def test_a_reply_that_is_only_in_the_page_of_the_lane_answers_a_wait_at_once(self):
        """Whoever has put the cell there needs no courier, and leaves it to one: nobody rings a bell in files for it."""
        directory = self.kernel()["dir"]
        stream = self.stream()
        stream.value(directory, "None")
        ours = lane_client.Lane.open(directory, files.read_json(os.path.join(directory, "kernel.json")))
        self.addCleanup(ours.close)
        for _ in range(3):
            request = self.far.cell("1 + 1")
            until(lambda: ours.offer(request), what="a free lane")
            number = ours.number
            until(lambda: ours._words[lane_page.REPLY] == number, what="a reply")
            ours.number = 0
            ours._unlock()
            began = time.monotonic()
            answer = stream.ok("wait", dir=directory, id=request["id"], number=number, wait={"hold_ms": 25000, "tell": False}, ack=[])
            self.assertEqual((answer["fate"], answer["reply"]["result"]), ("settled", {"text/plain": "2"}))
            self.assertLess(time.monotonic() - began, attended.LOOK_EVERY / 2)


class Gathers(StreamTest):
    CODE = "import sys\nfor i in range(20000):\n    print('\u20ac%08d' % i, file=sys.stderr if i % 1000 == 7 else sys.stdout)\nsys.stdout.buffer.write(b'\\xff\"\\x01\\\\')\n'end'"
    OUT = "".join("\u20ac%08d\n" % i for i in range(20000) if i % 1000 != 7)
    ERR = "".join("\u20ac%08d\n" % i for i in range(20000) if i % 1000 == 7)

    def both(self, stream, call):
        found = list(records.split(bytes(stream.records.get(call, b""))))
        return tuple(b"".join(payload for kind, payload in found if kind == wanted) for wanted in (b"o", b"e"))

    def test_output_is_told_by_records_or_by_the_reply_and_never_by_both(self):
        directory = self.kernel()["dir"]
        stream = self.stream()
        call = stream.run(directory, self.CODE, wait={"gather": True})
        answer = stream.answer(call)
        reply = answer["reply"]
        self.assertEqual((reply["gathered"], reply["stdout"], reply["stderr"], reply["result"]["text/plain"]), (True, "", "", "'end'"))
        self.assertEqual(self.both(stream, call), (self.OUT.encode() + b"\xff\"\x01\\", self.ERR.encode()))
        self.assertEqual((reply["output"]["stdout_bytes"], reply["output"]["spill"]), (len(self.OUT.encode()) + 4, None))
        self.assertEqual(answer["offset"], len(stream.records[call]))
        # Others ask for it in other ways, and each gets all of it once.
        for wait in ({}, {"stream": True}):
            again = stream.call("wait", dir=directory, number=answer["number"], id=answer["id"], wait=wait, ack=[])
            told = stream.answer(again)["reply"]
            self.assertEqual((told["stdout"], told["stderr"]), (self.OUT + "\\xff\"\x01\\", self.ERR))
            self.assertNotIn("gathered", told)
            self.assertEqual(bool(stream.records.get(again)), bool(wait))
        rest = stream.call("wait", dir=directory, number=answer["number"], id=answer["id"], wait={"gather": True, "offset": answer["offset"]}, ack=[])
        self.assertTrue(stream.answer(rest)["reply"]["gathered"])
        self.assertNotIn(rest, stream.records)
        told = self.far.ok("wait", dir=directory, number=answer["number"], id=answer["id"], wait={"hold_ms": 0, "gather": True}, ack=[])["reply"]
        self.assertEqual((told["stdout"], told["stderr"]), (self.OUT + "\\xff\"\x01\\", self.ERR))
        stream.answer(stream.run(directory, "1", ack=[answer["number"]]))
        self.assertEqual([name for name in os.listdir(os.path.join(directory, "cells")) if name.endswith("%06d" % answer["number"])], [])

    def test_what_is_little_or_not_whole_is_told_by_the_reply(self):
        directory = self.kernel()["dir"]
        stream = self.stream()
        for code, limit, size in (("print('x' * 1000)", 1 << 20, 1001), ("print('x' * 200000)", 150000, 200001)):
            call = stream.run(directory, code, cell=self.far.cell(code, max_output=limit), wait={"gather": True})
            reply = stream.answer(call)["reply"]
            self.assertNotIn("gathered", reply)
            self.assertNotIn(call, stream.records)
            self.assertEqual((reply["output"]["stdout_bytes"], reply["stdout"].startswith("x")), (size, True))


class Floods(StreamTest):
    def high_water(self, pid):
        with open("/proc/%d/status" % pid) as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))

    def test_a_flood_that_nobody_takes_holds_up_nobody_and_takes_no_memory(self):
        flooded, directory = [self.kernel(key)["dir"] for key in ("aa", "bb")]
        stream = self.stream()
        stream.credit = False
        pid = stream.greeted()["pid"]
        stream.value(directory, "x = 0")
        before = self.high_water(pid)
        flood = stream.run(flooded, "for i in range(50): print(str(i % 10) * 1000000)", cell=self.far.cell("for i in range(50): print(str(i % 10) * 1000000)", max_output=1000),
                           wait={"stream": True, "hold_ms": 50000})
        for _ in range(50):
            stream.value(directory, "x += 1")
        until(lambda: not os.path.exists(os.path.join(flooded, "cells", "cell_run_000001.json")), what="the end of the flood")
        self.assertEqual(stream.value(directory, "x"), "50")
        self.assertEqual((len(stream.records[flood]), flood in stream.answers), (WINDOW, False))
        self.assertLess(self.high_water(pid) - before, 8 * 1024)
        stream.credit = True
        stream.take(flood, WINDOW)
        answer = stream.answer(flood)
        self.assertEqual((answer["fate"], len(text_of(stream.records[flood]))), ("settled", 50 * 1000001))
        self.assertLess(self.high_water(pid) - before, 8 * 1024)

    def test_credit_is_kept_to_the_byte(self):
        directory = self.kernel()["dir"]
        stream = self.stream()
        stream.credit = False
        call = stream.run(directory, "", cell=self.far.cell("print('x' * 3000000)", max_output=1000), wait={"stream": True, "hold_ms": 50000})
        stream.until(lambda: len(stream.records.get(call, b"")) == WINDOW, what="the window")
        for more in (1, 9, 100000):
            have = len(stream.records[call])
            stream.take(call, more)
            stream.until(lambda: len(stream.records[call]) == have + more, what="what was granted")
            stream.ok("list")
            self.assertEqual(len(stream.records[call]), have + more)
        stream.take(call, 1 << 30)
        answer = stream.answer(call)
        self.assertEqual((len(text_of(stream.records[call])), answer["offset"]), (3000001, len(stream.records[call])))

    def test_a_hold_is_answered_even_if_the_host_takes_nothing(self):
        directory = self.kernel()["dir"]
        stream = self.stream()
        stream.credit = False
        call = stream.run(directory, "", cell=self.far.cell("print('x' * 3000000)", max_output=1000), wait={"stream": True, "hold_ms": 500}, deadline_ms=2000)
        answer = stream.answer(call)
        self.assertEqual((answer["fate"], answer["reply"]), ("running", None))
        whole = stream.records[call][:answer["offset"]]
        self.assertEqual(sum(5 + len(payload) for _kind, payload in harness.records(whole)), answer["offset"])
        rest = stream.call("wait", dir=directory, number=answer["number"], wait={"stream": True, "offset": answer["offset"]})
        stream.credit = True
        stream.take(rest, WINDOW)
        self.assertEqual(stream.answer(rest)["fate"], "settled")
        self.assertEqual(len(text_of(whole + stream.records[rest])), 3000001)


class Contention(StreamTest):
    def test_a_lock_that_somebody_holds_holds_up_only_its_own_call(self):
        directories = [self.kernel(key)["dir"] for key in ("aa", "bb")]
        stream = self.stream()
        for directory in directories:
            stream.value(directory, "1")
        lock = os.open(os.path.join(directories[0], "cells"), os.O_RDONLY)
        self.addCleanup(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = stream.run(directories[0], "'held'")
        self.assertEqual(stream.value(directories[1], "2"), "2")
        self.assertFalse(held in stream.answers)
        fcntl.flock(lock, fcntl.LOCK_UN)
        self.assertEqual(stream.answer(held)["reply"]["result"]["text/plain"], "'held'")

    def test_four_helpers_do_more_than_four_calls_and_none_waits_for_another(self):
        stopped = self.kernel()
        stream = self.stream()
        os.kill(stopped["pid"], signal.SIGSTOP)
        self.addCleanup(os.kill, stopped["pid"], signal.SIGCONT)
        slow = [stream.call("control", dir=stopped["dir"], do="interrupt", hold_ms=50000) for _ in range(3)]
        self.assertEqual(len(stream.ok("list")["kernels"]), 1)
        self.assertFalse(any(call in stream.answers for call in slow))
        more = [stream.call("list") for _ in range(20)]
        for call in more:
            stream.answer(call)
        self.assertFalse(any(call in stream.answers for call in slow))
        os.kill(stopped["pid"], signal.SIGCONT)
        self.assertEqual([stream.answer(call)["done"] for call in slow], [False] * 3)
        self.assertLessEqual(len(helpers_of(stream)), 4)

    def test_cancelled_calls_are_not_answered_and_their_helpers_end(self):
        stopped, other = self.kernel(), self.kernel("bb")
        stream = self.stream()
        os.kill(stopped["pid"], signal.SIGSTOP)
        self.addCleanup(os.kill, stopped["pid"], signal.SIGCONT)
        controls = [stream.call("control", dir=stopped["dir"], do="interrupt", hold_ms=50000) for _ in range(6)]
        until(lambda: len(helpers_of(stream)) == 4, what="the helpers")
        waiting = stream.run(other["dir"], "import time; time.sleep(0.5); 'done'")
        before = helpers_of(stream)
        for call in controls + [waiting]:
            stream.write(stream.frame(b"X", call))
        self.assertEqual(len(stream.ok("list")["kernels"]), 2)
        until(lambda: not before & helpers_of(stream), what="the end of the helpers of cancelled calls")
        done = stream.answer(stream.call("wait", dir=other["dir"], number=1, wait={"hold_ms": 25000}))
        self.assertEqual(done["reply"]["result"]["text/plain"], "'done'")
        self.assertEqual([call for call in controls + [waiting] if call in stream.answers], [])

    def test_a_call_ends_at_its_deadline(self):
        stopped = self.kernel()
        stream = self.stream()
        os.kill(stopped["pid"], signal.SIGSTOP)
        self.addCleanup(os.kill, stopped["pid"], signal.SIGCONT)
        late = stream.call("spawn", key="aa", spec=spec(), deadline_ms=700)
        cell = stream.run(stopped["dir"], "1", deadline_ms=700)
        self.assertEqual(stream.answer(cell)["fate"], "waiting")
        self.assertIn("reused", stream.result(late))
        # The directory's lock is held by nobody who answers: the blocking code would wait for ten seconds.
        lock = os.open(os.path.join(stopped["dir"], "cells"), os.O_RDONLY)
        self.addCleanup(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        began = time.monotonic()
        self.assertEqual(stream.result(stream.run(stopped["dir"], "1", deadline_ms=700))["error"]["code"], "internal")
        self.assertLess(time.monotonic() - began, 8.0)


def helpers_of(stream):
    """The pids of the courier's helpers."""
    pid = stream.greeted()["pid"]
    with open("/proc/%d/task/%d/children" % (pid, pid)) as file:
        return {int(word) for word in file.read().split() if not harness.gone(int(word))}


if __name__ == "__main__":
    unittest.main()
