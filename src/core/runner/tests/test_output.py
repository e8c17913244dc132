"""Head and tail of streams, and record files."""

import os
import random
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from _farcell.output import Capture, RecordFile, record  # noqa: E402


def captured(limit, *pieces):
    capture = Capture(limit)
    for piece in pieces:
        capture.feed(piece)
    return capture


class Captures(unittest.TestCase):
    def test_what_fits_is_there_in_full(self):
        for pieces in ([b"abc"], [b"ab", b"c"], [b"abcdefgh"], [b"abcd", b"efgh"], [b"a"] * 8):
            text, omitted = captured(8, *pieces).text()
            self.assertEqual((text.encode(), omitted), (b"".join(pieces), 0))

    def test_head_and_tail_with_exact_counts(self):
        capture = captured(10, b"0123456789abcdefghij")
        self.assertEqual(capture.text(), ("01234\n[\u2026 10 bytes omitted \u2026]\nfghij", 10))
        self.assertEqual(capture.total, 20)

    def test_any_cutting_into_pieces_gives_the_same(self):
        rng = random.Random(7)
        for _ in range(300):
            data = bytes(rng.randrange(256) for _ in range(rng.randrange(400)))
            limit = rng.randrange(200)
            capture = Capture(limit)
            at = 0
            while at < len(data):
                step = rng.randrange(1, 60)
                capture.feed(data[at:at + step])
                at += step
            whole = captured(limit, data)
            self.assertEqual(capture.text(), whole.text())
            self.assertEqual(capture.total, len(data))

    def test_cuts_fall_between_characters(self):
        for character in ("\u00e9", "\u20ac", "\U0001f600"):
            data = (character * 100).encode()
            for limit in range(0, 40):
                text, omitted = captured(limit, data).text()
                self.assertNotIn("\\x", text)
                kept = text.replace("\n[\u2026 %d bytes omitted \u2026]\n" % omitted, "").replace(
                    "[\u2026 %d bytes omitted \u2026]\n" % omitted, "")
                self.assertEqual(len(kept.encode()) + omitted, len(data))

    def test_invalid_bytes_are_shown(self):
        self.assertEqual(captured(100, b"a\xff\x80b").text(), ("a\\xff\\x80b", 0))

    def test_a_character_cut_by_the_edge_of_a_read_is_whole(self):
        euro = "\u20ac".encode()
        self.assertEqual(captured(100, euro[:1], euro[1:]).text(), ("\u20ac", 0))

    def test_memory_stays_bounded(self):
        capture = Capture(1 << 20)
        for _ in range(200000):
            capture.feed(b"x\n")
        for _ in range(100):
            capture.feed(b"y" * 262144)
        held = len(capture._head) + sum(len(each) for each in capture._tail)
        self.assertLess(held, (1 << 20) + 700000)
        self.assertLess(len(capture._tail), 20)
        self.assertEqual(capture.total, 400000 + 100 * 262144)

    def test_an_absorbed_capture_keeps_its_counts(self):
        late = captured(10, b"0123456789abcdefghij")
        capture = Capture(1000)
        capture.absorb(late)
        capture.feed(b"then")
        text, omitted = capture.text()
        self.assertEqual(text, "01234\n[\u2026 10 bytes omitted \u2026]\nfghijthen")
        self.assertEqual((capture.total, omitted), (24, 10))


class RecordFiles(unittest.TestCase):
    def setUp(self):
        self.fd, self.path = tempfile.mkstemp()
        self.addCleanup(os.unlink, self.path)

    def content(self):
        with open(self.path, "rb") as file:
            return file.read()

    def test_records_are_written_whole(self):
        records = RecordFile(lambda: self.fd, 1000)
        taken = records.add([(b"o", b"one"), (b"e", b"two")])
        self.assertEqual(taken, record(b"o", b"one") + record(b"e", b"two"))
        self.assertEqual(self.content(), taken)
        records.close()

    def test_the_bound_holds_and_a_stream_is_cut_to_fit(self):
        records = RecordFile(lambda: self.fd, 50)
        records.add([(b"o", b"a" * 30), (b"o", b"b" * 30)])
        self.assertEqual(self.content(), record(b"o", b"a" * 30) + record(b"o", b"b" * 10))
        self.assertTrue(records.full)
        self.assertEqual(records.add([(b"o", b"c")]), b"")
        records.close()

    def test_a_display_is_never_cut(self):
        records = RecordFile(lambda: self.fd, 50)
        records.add([(b"d", b"{" + b" " * 100 + b"}")])
        self.assertEqual(self.content(), b"")
        records.close()

    def test_small_outputs_need_no_file(self):
        def opener():
            raise AssertionError("opened")
        records = RecordFile(opener, 1000, in_memory=100)
        blob = records.add([(b"o", b"hello")])
        self.assertEqual(records.read(0, 100), blob)
        records.close()

    def test_memory_moves_to_the_file_when_it_grows(self):
        records = RecordFile(lambda: self.fd, 1000, in_memory=20)
        blob = records.add([(b"o", b"hello")]) + records.add([(b"o", b"x" * 50)])
        self.assertEqual(self.content(), blob)
        self.assertEqual(records.read(3, 10), blob[3:13])
        records.close()

    def test_a_file_that_cannot_be_made_is_no_disaster(self):
        def opener():
            raise OSError(28, "No space left on device")
        records = RecordFile(opener, 1000)
        self.assertEqual(records.add([(b"o", b"hello")]), b"")
        self.assertEqual(records.broken, "ENOSPC")
        os.close(self.fd)


if __name__ == "__main__":
    unittest.main()
