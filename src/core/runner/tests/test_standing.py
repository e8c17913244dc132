"""A courier that stands: one host after the other on the same two pipes."""

import hashlib
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests import link_harness as harness
from tests.courier_kit import Stream, StreamTest
from _farcell import standing

WORD = "0123456789abcdef0123456789abcdef"
MARK = standing.MARK + WORD.encode() + b" "


def python_word(python):
    return hashlib.sha256(python.encode()).hexdigest()[:16]


STAND = {"mark": WORD, "python": python_word(sys.executable)}


class Visit(Stream):
    """A host that comes to a courier which runs already."""

    def __init__(self, before, ahead=b"", runner=harness.HASH, python="-"):
        self.far, self.process, self.input, self.output = before.far, before.process, before.input, before.output
        self.hello, self.frames, self.records, self.answers = None, [], {}, {}
        self.credit, self.ended = True, False
        self._raw, self._parts, self._next = b"", {}, 0
        self.nonce = os.urandom(16).hex()
        greeting = b"what a loader would have read\n" * 9
        self.write(MARK + ("%s %d %s %s\n" % (self.nonce, len(greeting), runner, python)).encode() + greeting + ahead)

    def _greet(self):
        begin = MARK + self.nonce.encode() + b"\n"
        at = self._raw.find(begin)
        if at >= 0:
            self._raw = self._raw[at + len(begin):]
            Stream._greet(self)
        if self.hello is None and at >= 0:
            self._raw = begin + self._raw


class Hosts(StreamTest):
    def first(self):
        return self.stream(header={"stand": STAND})

    def test_the_next_host_takes_it_in_the_middle_of_what_the_last_one_says(self):
        first = self.first()
        pid = first.greeted()["pid"]
        kernel = self.kernel()["dir"]
        self.assertEqual(first.value(kernel, "x = 41\nx"), "41")
        first.write(first.frame(b"C", 9, b"x" * 1000)[:500])
        second = Visit(first)
        self.assertEqual(second.greeted()["pid"], pid)
        self.assertEqual(second.value(kernel, "x + 1"), "42")
        third = Visit(second, ahead=Stream.call_frame(second, "list")[1])
        self.assertEqual(len(third.answer(second._next)["kernels"]), 1)
        self.assertEqual(third.close(), 0)

    def test_what_the_last_host_waited_for_is_no_answer_to_the_next(self):
        first = self.first()
        kernel = self.kernel()["dir"]
        gate = os.path.join(self.far.root, "gate")
        waiting = first.run(kernel, "import os, time\nwhile not os.path.exists(%r): time.sleep(0.01)\n'late'" % gate)
        first.until(lambda: first.hello is not None)
        second = Visit(first)
        # A call with the same number as the one that nobody waits for any more.
        self.assertEqual(waiting, 1)
        probe = second.ok("probe", dir=kernel)
        self.assertTrue(probe["alive"])
        open(gate, "w").close()
        self.assertEqual(second.value(kernel, "'next'"), "'next'")
        self.assertEqual([number for kind, number, _ in second.frames if kind == b"J"], [1, 2])
        found = second.ok("wait", dir=kernel, number=1, wait={"hold_ms": 0})
        self.assertEqual(found["reply"]["result"]["text/plain"], "'late'")

    def test_a_host_of_another_kind_is_refused_and_none_of_its_calls_is_looked_at(self):
        first = self.first()
        first.greeted()
        for wrong in ({"runner": "0123456789abcdef"}, {"python": python_word("/opt/python")}):
            refused = Visit(first, ahead=Stream.call_frame(first, "sweep", older_than_s=0)[1], **wrong)
            refused.until(lambda: refused.hello is not None, what="a greeting")
            self.assertEqual((refused.hello["ok"], refused.hello["error"]["code"]), (False, "refused"))
            self.assertEqual(refused.frames, [])
        exact = Visit(first, python=STAND["python"])
        self.assertEqual(exact.ok("list")["kernels"], [])

    def test_a_host_without_a_greeting_is_followed_by_the_next(self):
        first = self.first()
        first.greeted()
        first.write(MARK + b"short")
        first.write(MARK + (WORD + " 100000 " + harness.HASH + " -\nbroken off in its greeting").encode())
        self.assertEqual(Visit(first).ok("list")["kernels"], [])

    def test_without_a_host_it_stays_until_the_pipe_ends(self):
        first = self.first()
        first.greeted()
        first.write(b"\xff" * 9)
        self.assertEqual(Visit(first).ok("list")["kernels"], [])
        self.assertEqual(first.close(), 0)


class Host:
    """What a host's words become, in their order."""

    hello = {"pid": 1}

    def __init__(self):
        self.events = []

    def left(self):
        self.events.append("left")

    def said(self, data):
        if self.events and isinstance(self.events[-1], bytes):
            self.events[-1] += data
        else:
            self.events.append(data)

    def told(self, text):
        self.events.append(text.split(b"\n")[0].decode("latin-1"))


class Words(unittest.TestCase):
    def test_however_the_stream_is_cut(self):
        line = MARK + b"n%d 3 run -\n"
        text = b"old" + line % 1 + b"xyznew" + line % 2 + b"xy" + line % 3 + b"xyzlast"
        mark = MARK.decode("latin-1")
        wanted = [b"old", "left", mark + "n1", b"new", "left", mark + "n2", "left", mark + "n3", b"last"]
        for size in range(1, len(text)):
            host = Host()
            stands = standing.Standing({"mark": WORD, "python": "p"}, "run", host)
            for at in range(0, len(text), size):
                stands.feed(text[at:at + size])
            self.assertEqual([event for event in map(self.own, host.events) if event], wanted, size)

    def own(self, event):
        """Without a piece of a mark behind it: where that came in pieces, the first ones go to the host that is just leaving."""
        for words in (b"old", b"new", b"last", b""):
            if isinstance(event, bytes) and event.startswith(words) and event[len(words):] in MARK:
                return words
        return event

    def test_a_host_that_was_given_up_hears_it_and_is_not_listened_to(self):
        host = Host()
        stands = standing.Standing({"mark": WORD, "python": "p"}, "run", host)
        stands.feed(b"a")
        stands.expire()
        stands.expire()
        stands.feed(b"again")
        self.assertEqual(host.events, [b"a", "left", MARK.decode("latin-1") + "-"])
        stands.feed(MARK + b"n 0 run -\nnow")
        self.assertEqual(host.events[3:], ["left", MARK.decode("latin-1") + "n", b"now"])

    def test_a_line_that_is_none_lets_nobody_in(self):
        for line in (b"\n", b"n\n", b"n x run -\n", b"n 0 run - more\n", b"x" * 5000):
            host = Host()
            stands = standing.Standing({"mark": WORD, "python": "p"}, "run", host)
            stands.feed(MARK + line + b"words")
            self.assertEqual(host.events, ["left"], line)
            stands.feed(MARK + b"n 0 run -\nnow")
            self.assertEqual(host.events[1:], ["left", MARK.decode("latin-1") + "n", b"now"], line)


if __name__ == "__main__":
    unittest.main()
