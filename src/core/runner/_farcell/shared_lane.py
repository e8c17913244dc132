"""The lane of a kernel in a directory: its page is a file there, so that any process of this user can hand a cell to the interpreter, and no death loses a reply.

Who may put a cell in is settled among those who do (lane_client.py). Here it is settled whether the interpreter runs it: not while the supervisor
has cells of its own under way, and no id twice.

What makes the order certain: a cell is put in only under the number that follows one which is over, and a cell that came as a file is begun only when
the one that was put before is over or a file, too. Over is what has its reply in the page or in a file; to have left the pipe (SEQ) is not enough.
"""

import os

from . import files, lane, osdep, wire
from .lane_page import (
    BARRED, COUNT, FRAME_MAX, GIVEN, KIND, LENGTH, NAME, PASSED, PUT, PUT_ID, REPLY, REPLY_AT, REPLY_MAX, SENT, SEQ, SETTLED, SIZE, STATE, TAKING, VERSION)
from .recent import Recent
from .guarded import BUILTINS as __builtins__

_IDS = 512               # that the supervisor may be behind; it is woken at half of that
_ID_SIZE = 32
_BELL = b'!'
# Where a page that is mapped has its place for good. Elsewhere (btrfs, zfs, a network) a full disk or a lost server would be a SIGBUS.
_FILE_SYSTEMS = frozenset(('tmpfs', 'ramfs', 'ext2', 'ext3', 'ext4', 'xfs', 'overlay'))
_HEX = frozenset(b'0123456789abcdef')
_write = os.write


def make(directory):
    # type: (str) -> object
    """The supervisor's side, or None where there can be none."""
    if not lane.possible() or osdep.file_system(directory) not in _FILE_SYSTEMS:
        return None
    path = os.path.join(directory, NAME)
    fd = -1
    try:
        files.remove(path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        # Written, not only stretched: a page that finds no room when it is touched is a SIGBUS, too.
        files.write_all(fd, b'\0' * SIZE)
        memory = lane.mmap.mmap(fd, SIZE)
        ids = lane.mmap.mmap(-1, _IDS * _ID_SIZE)
        made = SharedLane(memory, lane.pipes(FRAME_MAX), ids, path)
        made.words[VERSION] = KIND
        return made
    except (OSError, ValueError):
        return None
    finally:
        if fd >= 0:
            os.close(fd)


class SharedLane(lane.Lane):
    """The supervisor's side."""

    shared = True
    _count = 'number'

    def __init__(self, memory, fds, ids, path):
        # type: (object, list, object, str) -> None
        lane.Lane.__init__(self, memory, fds)
        self.seen = Recent()
        self.ids = ids
        self._path = path
        self._absorbed = 0

    def track(self, *args):
        return SharedTrack(self, *args)

    def moved(self, directory):
        # type: (str) -> None
        """The kernel's directory has another name now."""
        self._path = os.path.join(directory, NAME)

    def bar(self):
        self.words[BARRED] = 1
        osdep.bytes_available(self.take_fd)  # a system call with a lock: our word is out before the other's is read
        return self.words[STATE] != TAKING

    def unbar(self):
        self.words[BARRED] = 0

    def steal(self):
        # An empty pipe is not to look like that of a cell which never came, as long as ours is not the word that it was taken.
        self.words[BARRED] = 1
        return lane.Lane.steal(self)

    def is_on_its_way(self):
        # type: () -> bool
        """Whether the interpreter takes something just now, or has given something back (`q`) that has not been obeyed. In this order."""
        words = self.words
        return words[STATE] == TAKING or words[SEQ] < words[GIVEN] == words[PUT]

    def absorb(self, seen):
        count = self.words[COUNT]
        if count == self._absorbed:
            return
        for at in range(max(self._absorbed, count - _IDS), count):
            at = at % _IDS * _ID_SIZE
            name = self.ids[at:at + _ID_SIZE]
            if _HEX.issuperset(name):
                seen.add(name.decode('ascii'))
        self._absorbed = count

    def settled(self, number):
        words = self.words
        words[PASSED] = max(words[PASSED], number)
        self.withdrawn(number)

    def withdrawn(self, number):
        # type: (int) -> None
        """A cell that was in the lane needs no turn any more."""
        if self.words[PUT] == number:
            self.words[SETTLED] = number
            self.ring()

    def ring(self):
        # type: () -> None
        """Wake who waits at the end of the lane."""
        try:
            _write(self.answer_fd, _BELL)
        except OSError:
            pass  # nobody has heard those before

    def lost(self):
        words = self.words
        if words[STATE] != TAKING and words[GIVEN] != words[PUT] or words[SEQ] >= words[PUT] or osdep.bytes_available(self.take_fd):
            return None
        name = self.memory[PUT_ID * 8:PUT_ID * 8 + _ID_SIZE]
        return (words[PUT], name.decode('ascii')) if _HEX.issuperset(name) else None

    def clear(self):
        # type: () -> None
        """Forget a cell that was announced and never put, where its courier has died in between."""
        words = self.words
        if words[SEQ] >= words[PUT] or words[GIVEN] == words[PUT]:
            return
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return
        try:
            # With the lock nobody puts anything. In this order: whoever takes a cell says so first, and then what it has taken.
            if files.try_lock(fd) and not osdep.bytes_available(self.take_fd) and words[STATE] != TAKING and words[GIVEN] < words[PUT] and words[SEQ] < words[PUT]:
                words[SETTLED] = words[SEQ] = words[PUT]
        except OSError:
            pass
        finally:
            os.close(fd)


class SharedTrack(lane.Track):
    """The interpreter's side."""

    def __init__(self, lane_, *args):
        # type: (SharedLane, *object) -> None
        lane.Track.__init__(self, lane_, *args)
        self._seen = lane_.seen
        self._ids = lane_.ids

    def note(self, cell_id):
        self._seen.add(cell_id)

    def _accept(self, payload):
        request = wire.decode(payload)
        words, number = self._words, request['number']
        if words[BARRED] or not self._seen.add(request['id']):
            self._send(b'q', payload)
            words[GIVEN] = number    # and not SEQ: that it has left the pipe is said by who has obeyed
            return None
        self._enter(request, number, number)
        count = words[COUNT]
        at = count % _IDS * _ID_SIZE
        self._ids[at:at + _ID_SIZE] = self._last
        words[COUNT] = count + 1
        return request

    def _tell(self, reply):
        size = len(reply)
        if size > REPLY_MAX:
            return False
        words = self._words
        words[REPLY] = 0         # who reads it meanwhile, without the lock, is not to take a part of it for the whole
        self._memory[REPLY_AT:REPLY_AT + size] = reply
        words[LENGTH] = size
        words[REPLY] = self._number
        words[STATE] = SENT
        try:
            _write(self._write_fd, _BELL)
        except OSError:
            pass                 # full of bells that nobody has heard
        if not words[COUNT] & (_IDS // 2 - 1):
            self._send(b'n', b'')
        return True
