"""One call of a tool as the supervisor reads it."""

import os
import select
import socket
import struct
import sys
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from _farcell import tool_call


class Reading(unittest.TestCase):
    def read_in_passes(self, text, size):
        """The arguments, read as the loop does: whenever something is there, so many bytes at once."""
        theirs, ours = socket.socketpair()
        with theirs:
            call = tool_call.Call(ours.detach(), "echo")
            try:
                theirs.sendall(struct.pack(">I", len(text)) + text)
                ready = select.poll()
                ready.register(call.fd, select.POLLIN)
                with mock.patch.object(tool_call, "_PASS", size):
                    while ready.poll(0):
                        arguments = call.read(lambda length: None)
                        if arguments is not None:
                            return bytes(arguments)
            finally:
                call.close()
        return None

    def test_what_ends_with_a_pass_is_complete(self):
        for size in range(1, 20):
            self.assertEqual(self.read_in_passes(b'{"value":1}', size), b'{"value":1}', size)

    def test_nothing_at_all_is_complete_too(self):
        self.assertEqual(self.read_in_passes(b"", 4), b"")


if __name__ == "__main__":
    unittest.main()
