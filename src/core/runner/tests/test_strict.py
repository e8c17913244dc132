"""JSON that is not trusted."""

import os
import random
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from _farcell import strict  # noqa: E402

BAD = [b"", b" ", b"{", b"{]", b"[1,]", b"[1", b'"a', b'"\\u12"', b"nul", b"NaN", b"[Infinity]", b"-Infinity", b"{} {}", b"1 2", b"\xff", b"{'a':1}",
       b'{"a" 1}', b'{"a":1 "b":2}', b"[" * 200000, b'{"a":' * 200000, b"01", b"-", b'"\x01"', b"\xef\xbb\xbf{}"]
GOOD = [(b"{}", {}), (b' \n{"a": [1, 2.5, null, true, "x\\u20ac"]}\t\n', {"a": [1, 2.5, None, True, "x\u20ac"]}), (b"5", 5), (b'"\\ud800"', "\ud800")]

CHECK = """
import sys
sys.path.insert(0, %r)
from _farcell import strict
%s
for data in %r:
    try:
        strict.decode(data)
    except ValueError:
        continue
    raise SystemExit("took %%r" %% data[:20])
for data, value in %r:
    assert strict.decode(data) == value, data
"""


class Strict(unittest.TestCase):
    def check(self, before):
        code = CHECK % (os.path.dirname(os.path.dirname(os.path.abspath(__file__))), before, BAD, GOOD)
        # From a file: a list with 200,000 brackets is too long for an argument.
        process = subprocess.Popen([sys.executable, "-I", "-S", "-"], stdin=subprocess.PIPE)
        process.communicate(code.encode())
        self.assertEqual(process.returncode, 0)

    def test_whether_json_is_imported_or_not(self):
        self.check("")
        self.check("import json")

    def test_without_the_c_core(self):
        self.check("strict._json = None\nstrict._scan, strict.quote, strict.quote_ascii = strict._make()")

    def test_quotes(self):
        self.assertEqual(strict.quote('a"\n\u20ac'), '"a\\"\\n\u20ac"')
        self.assertEqual(strict.quote_ascii("\u20ac\ud800"), '"\\u20ac\\ud800"')

    def test_long_output_is_quoted_alike(self):
        pieces = [b"x", b"y" * 300, b"\n", b'"', b"\\", b"\t\r\b\f", b"\x1b[0m", b"\x00\x7f", "\u20ac\U0001f600".encode("utf-8"), b"\xff\xe2\x82"]
        for seed in range(200):
            dice = random.Random(seed)
            kinds = dice.sample(pieces, dice.randint(1, len(pieces)))
            data = b"".join(dice.choice([b"z" * dice.choice((1, 50, 200)), dice.choice(kinds)]) for _ in range(dice.choice((0, 3, 200))))
            text = data.decode("utf-8", "backslashreplace")
            quoted = b"".join(strict.quote_utf8(data))
            self.assertEqual(quoted, strict.quote(text).encode("utf-8"), seed)
            self.assertEqual(strict.decode(quoted), text, seed)


if __name__ == "__main__":
    unittest.main()
