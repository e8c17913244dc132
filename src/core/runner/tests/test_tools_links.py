"""Calls of tools on their way between a kernel in a directory and its host: by a courier, and by commands."""

import json
import os
import signal
import threading
import time
import unittest
from unittest import mock

from tests import link_harness as harness
from tests.courier_kit import StreamTest
from tests.tools_kit import IMPORT, good, offer
from _farcell import cellfiles, files, records


def calls_in(data):
    """The calls in so many bytes of records, of which the last may be cut."""
    return [json.loads(payload.decode()) for kind, payload in records.split(bytes(data)) if kind == b"t"]


class Linked(StreamTest):
    def setUp(self):
        StreamTest.setUp(self)
        self.directory = self.kernel()["dir"]

    def tooled(self, code, **fields):
        return self.far.cell(IMPORT + code, tools=offer(), **fields)


class ByCourier(Linked):
    def setUp(self):
        Linked.setUp(self)
        self.link = self.stream()
        self.link.greeted()

    def start(self, code, **fields):
        """(call of the stream, the cell) of a cell that is followed."""
        cell = self.tooled(code, **fields)
        return self.link.run(self.directory, None, cell=cell, wait={"stream": True}), cell

    def next_call(self, run, count=1):
        self.link.until(lambda: len(calls_in(self.link.records.get(run, b""))) >= count, what="call %d" % count)
        return calls_in(self.link.records[run])[count - 1]

    def answer(self, cell, call, answer, number=1):
        return self.link.ok("answer", dir=self.directory, number=number, id=cell["id"], call=call, answer=answer)["taken"]

    def answer_behind(self, cell, call, text, size=None):
        """As the engine sends a long one: behind its header, in pieces."""
        self.link._next += 1
        number = self.link._next
        header = {"op": "answer", "dir": self.directory, "number": 1, "id": cell["id"], "call": call, "answer_bytes": len(text) if size is None else size, "deadline_ms": 60000}
        body = json.dumps(header).encode("ascii") + b"\n" + text
        pieces = [body[at:at + 65536] for at in range(0, len(body), 65536)]
        for piece in pieces[:-1]:
            self.link.write(self.link.frame(b"c", number, piece))
        self.link.write(self.link.frame(b"C", number, pieces[-1]))
        return self.link.result(number)

    def test_calls_and_answers(self):
        run, cell = self.start("[echo(n) for n in range(20)]")
        for count in range(1, 21):
            call = self.next_call(run, count)
            self.assertTrue(self.answer(cell, call["call"], good(call["arguments"]["value"])))
        reply = self.link.answer(run)["reply"]
        self.assertEqual((reply["result"], reply["tools"]), ({"text/plain": repr(list(range(20)))}, {"calls": 20, "errors": []}))

    def test_no_helper_takes_part(self):
        run, cell = self.start("echo(1)")
        self.next_call(run)
        children = self.children()
        self.answer(cell, 1, good(2))
        self.answer(cell, 1, good(3))  # again: the first stays
        self.assertEqual(self.link.answer(run)["reply"]["result"], {"text/plain": "2"})
        self.assertEqual(self.children(), children)

    def children(self):
        with open("/proc/%d/task/%d/children" % (self.link.hello["courier"]["pid"], self.link.hello["courier"]["pid"])) as file:
            return file.read()

    def test_ten_megabytes_each_way(self):
        run, cell = self.start("got = echo('x' * 10000000)\nlen(got)")
        self.assertEqual(len(self.next_call(run)["arguments"]["value"]), 10000000)
        self.assertEqual(self.answer_behind(cell, 1, json.dumps(good("y" * 10000000)).encode())["taken"], True)
        self.assertEqual(self.link.answer(run)["reply"]["result"], {"text/plain": "10000000"})

    def test_a_length_that_is_none(self):
        run, cell = self.start("echo(1)")
        self.next_call(run)
        text = json.dumps(good("y" * 300000)).encode()
        for size in (len(text) - 1, len(text) + 1):
            self.assertEqual(self.answer_behind(cell, 1, text, size)["error"]["code"], "bad-request")
        self.assertTrue(self.answer_behind(cell, 1, text)["taken"])
        self.link.answer(run)

    def test_requests_that_are_none(self):
        run, cell = self.start("echo(1)")
        self.next_call(run)
        for fields in ({"call": 0}, {"call": "1"}, {"id": "x"}, {"number": 0}, {"answer": 3}, {"answer": None}):
            header = dict({"dir": self.directory, "number": 1, "id": cell["id"], "call": 1, "answer": good(1)}, **fields)
            self.assertEqual(self.link.result(self.link.call("answer", **header))["error"]["code"], "bad-request", fields)
        self.answer(cell, 1, good(1))
        self.link.answer(run)

    def test_an_answer_to_a_cell_that_does_not_run(self):
        self.assertFalse(self.answer({"id": "0" * 32}, 1, good(1)))
        run, cell = self.start("echo(1)")
        self.next_call(run)
        self.assertFalse(self.answer(cell, 1, good(1), number=2))
        self.assertTrue(self.answer({"id": "0" * 32}, 1, good("of another cell")))  # the supervisor knows better
        harness.until(lambda: not os.listdir(self.directory + "/rpc"))
        self.assertTrue(self.answer(cell, 1, good("mine")))
        self.assertEqual(self.link.answer(run)["reply"]["result"], {"text/plain": "'mine'"})
        self.assertFalse(self.answer(cell, 1, good(1)))

    def test_an_answer_that_is_swept_away_on_its_way(self):
        """The supervisor sweeps as a cell ends, and does not know whose the files are that have no name yet."""
        run, cell = self.start("echo(1)")
        self.next_call(run)
        publish, swept = files.publish_new, []

        def sweep_first(tmp, final):
            if not swept:
                swept.append(files.remove(tmp))
            return publish(tmp, final)

        with mock.patch.object(files, "publish_new", sweep_first):
            self.assertTrue(cellfiles.answer(self.directory, 1, cell["id"], 1, [json.dumps(good(2)).encode()]))
        self.assertEqual(swept, [True])
        self.assertEqual(self.link.answer(run)["reply"]["result"], {"text/plain": "2"})
        with mock.patch.object(files, "publish_new", sweep_first):
            self.assertFalse(cellfiles.answer(self.directory, 1, cell["id"], 1, [b"{}"]))

    def test_an_answer_that_finds_no_place_makes_it(self):
        run, cell = self.start("echo(1)")
        self.next_call(run)
        os.rmdir(self.directory + "/rpc")
        self.assertTrue(self.answer(cell, 1, good(2)))
        self.assertEqual(self.link.answer(run)["reply"]["result"], {"text/plain": "2"})

    def test_a_call_survives_its_courier(self):
        run, cell = self.start("echo(1)")
        self.next_call(run)
        os.kill(self.link.hello["courier"]["pid"], signal.SIGKILL)
        self.link.process.wait(harness.SLACK)
        self.link = self.stream()
        self.link.greeted()
        run = self.link.call("wait", dir=self.directory, id=cell["id"], wait={"hold_ms": 25000, "stream": True})
        self.assertEqual(self.next_call(run)["call"], 1)  # the same one: a host that has begun it does not begin it again
        self.assertTrue(self.answer(cell, 1, good("once")))
        reply = self.link.answer(run)["reply"]
        self.assertEqual((reply["result"], reply["tools"]["calls"]), ({"text/plain": "'once'"}, 1))

    def test_a_cell_of_a_kernel_that_died_tells_how_often_it_called(self):
        run, _ = self.start("echo(1)")
        self.next_call(run)
        with open(self.directory + "/kernel.json") as file:
            os.kill(json.load(file)["pid"], signal.SIGKILL)
        answer = self.link.answer(run)
        self.assertEqual((answer["fate"], answer["reply"]["tools"]), ("dead", {"calls": 1, "errors": []}))

    def test_records_of_a_quiet_cell_are_removed_with_its_reply(self):
        run, cell = self.start("got = echo(1)")
        self.next_call(run)
        self.answer(cell, 1, good(1))
        answer = self.link.answer(run)
        path = self.directory + "/cells/cell_out_%06d" % answer["number"]
        self.assertTrue(os.path.exists(path))
        self.link.ok("ack", dir=self.directory, numbers=[answer["number"]])
        self.assertFalse(os.path.exists(path))

    def test_the_clock_can_be_held(self):
        run, cell = self.start("echo(1)", timeout_ms=1500)
        self.next_call(run)
        self.assertEqual(self.link.ok("control", dir=self.directory, do="hold", number=1, id=cell["id"], for_ms=60000)["detail"], "held")
        end = time.monotonic() + 1.7
        harness.until(lambda: time.monotonic() > end)
        self.assertEqual(self.link.ok("control", dir=self.directory, do="resume", number=1, id=cell["id"])["detail"], "resumed")
        self.answer(cell, 1, good(1))
        self.assertEqual(self.link.answer(run)["reply"]["status"], "ok")
        for fields in ({"number": 1, "id": cell["id"]}, {"number": 1, "for_ms": 5}, {"id": cell["id"], "for_ms": 5}):
            self.assertEqual(self.link.result(self.link.call("control", dir=self.directory, do="hold", **fields))["error"]["code"], "bad-request")

    def test_a_cell_with_tools_never_takes_a_lane(self):
        for _ in range(3):
            self.link.value(self.directory, "1")
        run, cell = self.start("echo(1)")
        self.next_call(run)
        self.answer(cell, 1, good(1), number=4)
        self.assertEqual(self.link.answer(run)["reply"]["result"], {"text/plain": "1"})


class ByCommands(Linked):
    def test_a_call_ends_the_wait_at_once(self):
        cell = self.tooled("print('x')\necho(1)")
        began = time.monotonic()
        answer = self.far.ok("run", dir=self.directory, cell=cell, wait={"hold_ms": 25000, "stream": True, "lull_ms": 20000}, ack=[])
        self.assertLess(time.monotonic() - began, 15)
        self.assertEqual((answer["fate"], answer["offset"] > 0), ("running", True))
        answers = []
        waiter = threading.Thread(target=lambda: answers.append(self.far.ok(
            "wait", dir=self.directory, number=answer["number"], wait={"hold_ms": 25000, "offset": answer["offset"], "stream": True})))
        waiter.start()
        self.assertTrue(self.far.ok("answer", dir=self.directory, number=answer["number"], id=cell["id"], call=1, answer=good("y" * 300000))["taken"])
        waiter.join(harness.SLACK)
        self.assertEqual((answers[0]["fate"], len(answers[0]["reply"]["result"]["text/plain"])), ("settled", 300002))

    def test_the_records_come_with_the_answer(self):
        cell = self.tooled("echo(1)")
        reply = self.far.send("run", dir=self.directory, cell=cell, wait={"hold_ms": 25000, "stream": True}, ack=[])
        self.assertEqual([call["arguments"] for call in calls_in(reply.out)], [{"value": 1}])
        self.far.ok("control", dir=self.directory, do="stop")

    def test_a_long_answer_behind_the_header(self):
        cell = self.tooled("len(echo(1))")
        number = self.far.ok("run", dir=self.directory, cell=cell, wait={"hold_ms": 25000, "stream": True}, ack=[])["number"]
        text = json.dumps(good("y" * 3000000)).encode()
        for size, expected in ((len(text) + 1, "bad-request"), (len(text), None)):
            nonce, data = harness.request({"op": "answer", "base": self.far.base, "place": {"dir": self.far.base}, "dir": self.directory, "number": number, "id": cell["id"],
                                           "call": 1, "answer_bytes": size}, bundle=False)
            process = harness.start()
            out, err = process.communicate(data + text, timeout=60)
            self.assertEqual(harness.Reply(out, err, process.returncode, nonce).code, expected)
        answer = self.far.ok("wait", dir=self.directory, number=number, wait={"hold_ms": 25000})
        self.assertEqual(answer["reply"]["result"], {"text/plain": "3000000"})

    def test_a_cell_without_tools_has_its_lull(self):
        answer = self.far.run(self.directory, "print('x')\nimport time\nfor n in range(3):\n    time.sleep(0.05)\n    print(n)", wait={"stream": True, "lull_ms": 2000})
        self.assertEqual(answer["fate"], "settled")


if __name__ == "__main__":
    unittest.main()
