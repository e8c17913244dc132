"""Frames: every cut of the stream gives the same frames."""

import os
import random
import sys
import threading
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from _farcell import frames  # noqa: E402


class FramesTest(unittest.TestCase):
    def test_a_frame_is_length_kind_payload(self):
        self.assertEqual(frames.pack(b'X', b'abc'), b'\0\0\0\3Xabc')
        self.assertEqual(frames.pack(b'r', b''), b'\0\0\0\0r')

    def test_any_cut_gives_the_same_frames(self):
        dice = random.Random(7)
        sent = [(bytes([dice.randrange(256)]), os.urandom(dice.choice((0, 1, 5, 300, 70000)))) for _ in range(40)]
        stream = b''.join(frames.pack(kind, payload) for kind, payload in sent)
        for size in (1, 2, 3, 7, 4096, len(stream)):
            reader = frames.Reader()
            got = []
            for start in range(0, len(stream), size):
                got += reader.feed(stream[start:start + size])
            self.assertEqual(got, sent)

    def test_an_absurd_length_is_refused(self):
        with self.assertRaises(ValueError):
            frames.Reader().feed(b'\xff\xff\xff\xffX')
        with self.assertRaises(ValueError):
            frames.Reader(10).feed(frames.pack(b'X', b'01234567890'))
        self.assertEqual(frames.Reader(10).feed(frames.pack(b'X', b'0123456789')), [(b'X', b'0123456789')])

    def test_large_frames_through_a_pipe(self):
        read_fd, write_fd = os.pipe()
        payload = os.urandom(3 << 20)
        writer = threading.Thread(target=frames.write_all, args=(write_fd, frames.pack(b'd', payload)))
        writer.start()
        try:
            self.assertEqual(frames.read_frame(read_fd), (b'd', payload))
        finally:
            writer.join()
            os.close(write_fd)
        self.assertIsNone(frames.read_frame(read_fd))
        os.close(read_fd)

    def test_long_frames_among_short_ones_through_a_pipe(self):
        read_fd, write_fd = os.pipe()
        sent = [(b'a', b'1'), (b'b', os.urandom(1 << 20)), (b'c', b''), (b'd', os.urandom(frames.LONG)), (b'e', os.urandom(frames.LONG + 1)), (b'f', b'2')]
        writer = threading.Thread(target=frames.write_all, args=(write_fd, b''.join(frames.pack(*frame) for frame in sent)))
        writer.start()
        ahead, got = b'', []
        try:
            for _ in sent:
                frame, ahead = frames.read_next(read_fd, ahead)
                got.append(frame)
        finally:
            writer.join()
            os.close(write_fd)
        self.assertEqual(got, sent)
        self.assertEqual(frames.read_next(read_fd, ahead + frames.pack(b'g', b'x' * 100000)[:-1]), (None, b''))
        os.close(read_fd)

    def test_the_end_in_mid_frame_is_the_end(self):
        for data in (b'', b'\0\0', b'\0\0\0\5Xab'):
            read_fd, write_fd = os.pipe()
            os.write(write_fd, data)
            os.close(write_fd)
            self.assertIsNone(frames.read_frame(read_fd))
            os.close(read_fd)


if __name__ == '__main__':
    unittest.main()
