"""A courier that stands: it stays when its host goes, and the next one takes it, in the middle of whatever the last one has said."""

from . import channel, link
from .fault import Fault

# What begins a host's line, before the word that the place has for it. It is in no UTF-8 text.
MARK = b"\xfe"
ANY = b"-"
_LINE_MAX = 4096


class Standing(object):
    """What comes in from one host after the other: each one's own words for it, and the moments in between."""

    def __init__(self, stand, runner, host):
        # type: (dict, str, object) -> None
        self._mark = b"".join((MARK, stand["mark"].encode("ascii"), b" "))
        self._python = stand["python"].encode("ascii")
        self._runner = runner.encode("ascii")
        self._host = host
        self._tail = b""  # the last bytes, in which a mark may have begun
        self._line = None  # type: object  # what has come of a host's line
        self._skip = 0  # of its greeting, which is for the loader
        self._refused = False  # nobody has been let in since the last mark

    def expire(self):
        """The host has gone without a word. If it comes back it hears that it was given up."""
        if not self._refused:
            self._refused = True
            self._host.left()
            self._host.told(self._mark + b"-\n")

    def feed(self, data):
        # type: (bytes) -> None
        """Take what has come next. What may begin a mark is not held back: a host that lives has no such words, and of a dead one none counts."""
        mark = self._mark
        while True:
            before = len(self._tail)
            joined = self._tail + data
            at = joined.find(mark)
            if at < 0:
                self._tail = joined[1 - len(mark):]
                self._pass(data)
                return
            self._tail = b""
            self._pass(data[:max(0, at - before)])
            self._host.left()
            self._line, self._skip, self._refused = b"", 0, False
            data = joined[at + len(mark):]

    def _pass(self, data):
        if self._line is not None:
            line, end, data = (self._line + data).partition(b"\n")
            if not end:
                self._refused = len(line) > _LINE_MAX
                self._line = None if self._refused else line
                return
            self._line = None
            self._enter(line.split(b" "))
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        if data and not self._refused:
            self._host.said(data)

    def _enter(self, words):
        # type: (list) -> None
        if len(words) != 4 or not words[1].isdigit():
            self._refused = True
            return
        nonce, length, runner, python = words
        self._skip = int(length)
        why = None
        if runner != self._runner:
            why = "another version of farcell stands there"
        elif python not in (self._python, ANY):
            why = "the courier that stands there is of another Python"
        self._refused = why is not None
        text = link.body({"courier": self._host.hello}) if why is None else link.failure(Fault("refused", why))
        head = b"%s json %d\n" % (nonce, len(text))
        self._host.told(b"".join((self._mark, nonce, b"\n", head, text, b"\n")))


class Inlet(object):
    """The inlet of a courier that stands: it has the frames of whichever host is there taken apart."""

    def __init__(self, stand, runner, courier, hello):
        # type: (dict, str, object, dict) -> None
        self.hello = hello  # what a host is told of the courier first
        self._courier = courier
        self._frames = courier.frames()
        self._standing = Standing(stand, runner, self)
        self.feed = self._standing.feed
        self.expire = self._standing.expire
        self.told = courier.sender.say

    def left(self):
        """What comes next is of another host."""
        self._courier.drop_host()
        self._frames = self._courier.frames()

    def said(self, data):
        # type: (bytes) -> None
        try:
            self._frames.feed(data)
        except channel.Broken:
            # Up to the next mark there is no way back into frames.
            self._frames = _Nothing()


class _Nothing(object):
    def feed(self, data):
        # type: (bytes) -> None
        """Drop it."""
