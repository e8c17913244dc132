"""The pipe that is larger while much is written."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from _farcell import loop, osdep, widening  # noqa: E402


@unittest.skipUnless(osdep.LINUX, "pipes have a size on Linux")
class Widening(unittest.TestCase):
    def setUp(self):
        self.loop = loop.Loop()
        self.reader, self.writer = os.pipe()
        self.addCleanup(os.close, self.reader)
        self.addCleanup(os.close, self.writer)
        self.usual = osdep.pipe_size(self.writer)
        self.width = widening.Widening(self.loop, self.writer)

    def is_wide(self):
        return osdep.pipe_size(self.writer) > self.usual

    def turn_until(self, done):
        for _ in range(1000):
            if done():
                return
            self.loop.turn()
        self.fail("it did not come to that")

    def test_it_is_wide_for_a_moment(self):
        self.assertEqual(self.usual, 65536)
        self.width.widen()
        self.width.widen()
        self.assertTrue(self.is_wide())
        self.turn_until(lambda: not self.is_wide())
        self.assertEqual(osdep.pipe_size(self.writer), self.usual)
        self.assertFalse(self.loop.armed(self.width))

    def test_it_stays_wide_as_long_as_it_holds_more(self):
        self.width.widen()
        os.write(self.writer, b"x" * (self.usual * 2))
        turns = []
        self.turn_until(lambda: turns.append(1) or len(turns) == 3)
        self.assertTrue(self.is_wide())
        self.assertTrue(self.loop.armed(self.width))
        os.read(self.reader, self.usual * 2)
        self.turn_until(lambda: not self.is_wide())

    def test_what_is_no_pipe_is_left_alone(self):
        with open(os.devnull, "wb") as file:
            width = widening.Widening(self.loop, file.fileno())
            width.widen()
            self.assertFalse(self.loop.armed(width))

    def test_a_large_push_widens_the_pipe_to_the_host_and_a_small_one_does_not(self):
        outbox = loop.Outbox(self.loop, self.writer, self.fail, watch_peer=True)
        outbox.push(b"small")
        self.assertFalse(self.is_wide())
        outbox.push(b"x" * widening.LARGE)
        self.assertTrue(self.is_wide())
        self.assertEqual(outbox.pending, 0)
        outbox.close()
        self.assertFalse(self.loop.armed(outbox._width))

    def test_pieces_arrive_in_order_however_little_the_pipe_takes(self):
        outbox = loop.Outbox(self.loop, self.writer, self.fail, watch_peer=True)
        pieces = [b"head", b"1" * 900000, b"", b"2" * 900000, memoryview(b"3" * 300000), b"end"]
        outbox.push_all(pieces)
        self.assertGreater(outbox.pending, 0)
        outbox.push_all([b"more", b"4" * 200000])
        os.set_blocking(self.reader, False)
        got, whole = b"", b"".join(pieces) + b"more" + b"4" * 200000
        while len(got) < len(whole):
            got += loop.read_some(self.reader, 100000) or b""
            self.loop.at("now", 0, lambda: None)
            self.loop.turn()
        self.assertTrue(got == whole)
        self.assertEqual(outbox.pending, 0)
        outbox.close()

    def test_pieces_for_nobody_are_told_once(self):
        broken = []
        outbox = loop.Outbox(self.loop, self.writer, lambda: broken.append(1), watch_peer=True)
        with open(os.devnull) as null:
            os.dup2(null.fileno(), self.reader)
        outbox.push_all([b"a", b"b" * 200000])
        self.assertEqual(broken, [1])


if __name__ == "__main__":
    unittest.main()
