"""The courier's channel taken apart: frames in, frames out by turns, and record files read piece by piece."""

import os
import random
import struct
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from _farcell import channel, loop, osdep, records

HEAD = struct.Struct(">IBI")


def record(payload, kind=b"o"):
    return struct.pack(">cI", kind, len(payload)) + payload


class Tapes(unittest.TestCase):
    def setUp(self):
        fd, self.path = tempfile.mkstemp()
        self.addCleanup(os.unlink, self.path)
        self.addCleanup(os.close, fd)
        self.fd = fd

    def tape(self, offset=0):
        tape = records.Tape(self.path, offset)
        self.addCleanup(tape.close)
        return tape

    def test_pieces_of_any_size_are_whole_records_together(self):
        chance = random.Random(4)
        data = b"".join(record(bytes(chance.randrange(256) for _ in range(chance.choice((0, 1, 4, 5, 6, 300))))) for _ in range(200))
        os.write(self.fd, data + record(b"cut off")[:-1])
        for sizes in ((1,), (2, 3), (5,), (6, 1), (64, 7), (1 << 16,)):
            tape, got = self.tape(), b""
            while tape.more():
                piece = tape.take(chance.choice(sizes))
                self.assertTrue(piece)
                got += piece
                self.assertLessEqual(tape.whole, len(got))
                self.assertEqual(records._whole(got[:tape.whole]), tape.whole)
            self.assertEqual((got, tape.whole, tape.take(10)), (data, len(data), b""))

    def test_a_record_is_not_begun_before_it_is_there_wholly(self):
        whole = record(b"x" * 100)
        tape = self.tape()
        for at in range(len(whole)):
            self.assertFalse(tape.more())
            self.assertEqual(tape.take(50), b"")
            os.write(self.fd, whole[at:at + 1])
        self.assertTrue(tape.more())
        self.assertEqual((tape.take(50), tape.whole), (whole[:50], 0))
        self.assertEqual((tape.take(500), tape.whole), (whole[50:], len(whole)))

    def test_one_that_is_stopped_ends_with_its_record(self):
        one, two = record(b"1" * 100000), record(b"2" * 100000)
        os.write(self.fd, one + two * 5)
        tape = self.tape()
        self.assertEqual(tape.take(10), one[:10])
        tape.stop()
        got = 10
        while tape.more():
            got += len(tape.take(10000))
        self.assertEqual((got, tape.whole, tape.left()), (len(one), len(one), True))
        fresh = self.tape(len(one))
        fresh.stop()
        got = 0
        while fresh.more():
            got += len(fresh.take(65536))
        self.assertEqual((got, fresh.left()), (5 * len(two), False))

    def test_a_file_that_is_not_there_or_was_emptied_has_nothing(self):
        self.assertEqual((records.Tape(self.path + ".none", 0).take(9), records.Tape(self.path + ".none", 0).more()), (b"", False))
        os.write(self.fd, record(b"x" * 1000))
        tape = self.tape()
        tape.take(500)
        os.ftruncate(self.fd, 0)
        self.assertEqual(tape.take(500), b"")


class Call(channel.Outgoing):
    def __init__(self, number, source=None, body=None):
        channel.Outgoing.__init__(self, number)
        self.source = source
        self.body = body
        self.done = False
        if source is None:
            self.put(body)

    def ended(self):
        return self.body

    def failed(self, error):
        return b"failed: " + str(error).encode()

    def over(self):
        self.done = True


class Broken(records.Given):
    def take(self, limit):
        raise OSError("the disk is gone")


class Sending(unittest.TestCase):
    WIDE = (1 << 20) // 65536  # how many pieces a wide pipe holds

    def setUp(self):
        self.reader, self.writer = os.pipe()
        self.addCleanup(os.close, self.writer)
        self.addCleanup(lambda: self.reader < 0 or os.close(self.reader))
        self.loop = loop.Loop()
        self.broken = []
        self.sender = channel.Sender(self.loop, self.writer, lambda: self.broken.append(1))
        self.raw = b""

    def frames(self, turns=1000):
        """All that is sent, with the pipe emptied whenever the sender waits for it."""
        os.set_blocking(self.reader, False)
        for _ in range(turns):
            data = loop.read_some(self.reader, 1 << 20)
            if data is None:
                break
            self.raw += data
            self.loop.at("end", 0, lambda: None)
            self.loop.turn()
        found = []
        while len(self.raw) >= 9:
            length, kind, number = HEAD.unpack_from(self.raw)
            if len(self.raw) < 5 + length:
                break
            found.append((bytes((kind,)), number, self.raw[9:5 + length]))
            self.raw = self.raw[5 + length:]
        return found

    def test_a_small_answer_is_one_write(self):
        with mock.patch.object(channel.os, "write", wraps=os.write) as write:
            self.assertTrue(self.sender.answer(7, b"{}"))
        self.assertEqual(write.call_count, 1)
        self.assertEqual(self.frames(), [(b"J", 7, b"{}")])

    def test_small_records_and_their_answer_are_one_write(self):
        with mock.patch.object(channel.os, "write", wraps=os.write) as write:
            self.sender.enlist(Call(1, records.Given(b"records"), b"{}"))
        self.assertEqual(write.call_count, 1)
        self.assertEqual(self.frames(), [(b"O", 1, b"records"), (b"J", 1, b"{}")])

    def test_calls_take_turns_piece_by_piece(self):
        floods = [Call(number, None, b"%d" % number * 3000000) for number in (1, 2, 3)]
        for flood in floods:
            self.sender.enlist(flood)
        self.assertFalse(self.sender.answer(4, b"small"))
        self.sender.enlist(Call(4, None, b"small"))
        self.sender.pong()
        frames = self.frames()
        at = frames.index((b"J", 4, b"small"))
        # What was handed to the pipe before, when the first was alone, the pong, and one piece of each.
        self.assertLessEqual(at, self.WIDE + 3 + len(floods))
        self.assertLessEqual(frames.index((b"p", 0, b"")), at)
        self.assertLessEqual(max(len(payload) for _kind, _number, payload in frames), 65536)
        numbers = [number for _kind, number, _payload in frames[at + 1:at + 31] if number]
        self.assertEqual(numbers, [numbers[0], numbers[1], numbers[2]] * 10)
        for flood in floods:
            pieces = [(kind, payload) for kind, number, payload in frames if number == flood.ref]
            self.assertEqual(b"".join(payload for _kind, payload in pieces), flood.body)
            self.assertEqual([kind for kind, _payload in pieces], [b"j"] * (len(pieces) - 1) + [b"J"])
            self.assertTrue(flood.done)

    def test_records_stop_where_the_credit_ends_and_the_answer_waits_for_them(self):
        data = os.urandom(channel.WINDOW + 100000)
        call = Call(1, records.Given(data), b"{}")
        self.sender.enlist(call)
        frames = self.frames()
        self.assertEqual(b"".join(payload for _kind, _number, payload in frames), data[:channel.WINDOW])
        self.assertEqual({kind for kind, _number, _payload in frames}, {b"O"})
        self.assertTrue(self.sender.answer(2, b"other"))
        call.credit += 100000
        self.sender.enlist(call)
        frames = self.frames()
        self.assertEqual(frames[0], (b"J", 2, b"other"))
        self.assertEqual(b"".join(payload for _kind, _number, payload in frames[1:-1]), data[channel.WINDOW:])
        # Exactly as much as was granted: an answer needs no credit.
        self.assertEqual((frames[-1], call.credit), ((b"J", 1, b"{}"), 0))

    def test_records_that_cannot_be_read_are_an_answer(self):
        self.sender.enlist(Call(1, Broken(b"x"), b"{}"))
        self.assertEqual(self.frames(), [(b"J", 1, b"failed: the disk is gone")])

    def test_a_call_that_is_forgotten_sends_no_more_but_ends_its_frame(self):
        call = Call(1, None, b"1" * 1000000)
        self.sender.enlist(call)
        self.sender.forget(call)
        self.sender.enlist(Call(2, None, b"2"))
        frames = self.frames()
        self.assertLess(len(frames), self.WIDE + 4)
        self.assertEqual(frames[-1], (b"J", 2, b"2"))

    def test_what_is_alone_has_a_wide_pipe_and_what_takes_turns_a_narrow_one(self):
        usual = osdep.pipe_size(self.writer)
        self.sender.enlist(Call(1, None, b"1" * 4000000))
        alone = osdep.pipe_size(self.writer)
        self.assertEqual(alone > usual, osdep.LINUX)
        self.sender.enlist(Call(2, None, b"2" * 4000000))
        os.set_blocking(self.reader, False)
        data = b""
        while osdep.pipe_size(self.writer) > usual:
            data += loop.read_some(self.reader, usual) or b""
            self.loop.turn()
            self.assertLess(len(data), 1 << 20)  # nothing is added while it is to become narrow
        self.raw = data
        numbers = [number for _kind, number, _payload in self.frames()]
        self.assertEqual(numbers[self.WIDE + 1:self.WIDE + 61], [2, 1] * 30)
        self.assertEqual((numbers.count(1), numbers.count(2)), (62, 62))

    def test_a_reader_that_is_gone_is_told(self):
        os.close(self.reader)
        self.reader = -1
        self.loop.turn()
        self.assertEqual(self.broken, [1])


class Incoming(unittest.TestCase):
    def test_frames_cut_anywhere_are_the_same_calls(self):
        sent = [(b"C", 1, b"{}"), (b"c", 2, b"x" * 5000), (b"X", 1, b""), (b"?", 3, b"nobody knows this kind"), (b"C", 2, b"yz")]
        data = b"".join(HEAD.pack(len(payload) + 4, kind[0], number) + payload for kind, number, payload in sent)
        for size in (1, 2, 3, 8, 9, 10, 100, 6000):
            got = []
            inlet = channel.Inlet({kind[0]: (lambda number, payload, kind=kind: got.append((kind, number, payload))) for kind in (b"C", b"c", b"X")})
            for at in range(0, len(data), size):
                inlet.feed(data[at:at + size])
            self.assertEqual(got, [frame for frame in sent if frame[0] != b"?"], size)

    def test_what_is_no_frame_breaks_the_stream(self):
        for length in (0, 3, channel.FRAME_MAX + 1, 1 << 31):
            with self.assertRaises(channel.Broken):
                channel.Inlet({}).feed(struct.pack(">IB", length, 67))


if __name__ == "__main__":
    unittest.main()
