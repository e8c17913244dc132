"""Brings what only the page of a lane knows into files, so that whoever looks for a cell finds it there."""

import fcntl
import os
import sys
import time

from . import files
from .fault import Fault
from .lane_page import ACKED, ID, KEPT, LENGTH, LIMIT, NAME, NUMBER, PUT, PUT_ID, REPLY, REPLY_AT, REPLY_MAX, SETTLED, SIZE, STARTED, WORDS

# How long a courier that holds the lock is waited for by those who ask for just that cell. It holds it for a cell of milliseconds at most.
_LOCK_SECONDS = 0.2
_AGE = 0.05  # a courier that has left a cell alone for so long has been stopped
_ANSWER_SECONDS = 2.0
_LIMIT = 1 << 20
_HEX = frozenset(b"0123456789abcdef")


class Pending(Exception):
    """A cell is under way in the lane, and only somebody who can wait may ask the supervisor what became of it."""


# False in a process that must never wait, as the courier is; its helpers may.
may_wait = True


class Page:
    """One reading of the page through its file. It is read, not mapped: whoever does so lives for milliseconds only."""

    def __init__(self, fd):
        self.fd = fd
        data = os.pread(fd, WORDS * 8, 0)
        self._words = [int.from_bytes(data[at:at + 8], sys.byteorder) for at in range(0, len(data), 8)]
        self._data = data

    def __getitem__(self, word):
        return self._words[word]

    def __setitem__(self, word, value):
        os.pwrite(self.fd, value.to_bytes(8, sys.byteorder), word * 8)
        self._words[word] = value

    def cell_id(self, word):
        """The id that stands in four words, or an empty text."""
        name = self._data[word * 8:word * 8 + 32]
        return name.decode("ascii") if _HEX.issuperset(name) else ""

    def has_reply(self):
        """Whether there is a reply that nobody has acknowledged, and that is nowhere else."""
        return self[REPLY] not in (0, self[ACKED], self[KEPT])

    def is_over(self):
        """Whether the cell that was last put into the lane has its reply, here or in a file, or never came."""
        return self[PUT] in (0, self[REPLY]) or self[SETTLED] >= self[PUT]

    def reply(self):
        """The bytes of the reply, or None if it is no longer that one."""
        data = os.pread(self.fd, min(self[LENGTH], REPLY_MAX), REPLY_AT)
        return data if Page(self.fd)[REPLY] == self[REPLY] else None


def _open(directory):
    """A descriptor of the page, or -1 where there is no lane."""
    try:
        fd = os.open(os.path.join(directory, NAME), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return -1
    if os.fstat(fd).st_size == SIZE:
        return fd
    os.close(fd)  # cut off: a disk that was full, or a cell's doing
    return -1


def flush(directory):
    """Write a reply that is nowhere else to its file; False where somebody else has the lock, and will."""
    return _with_page(directory, lambda fd: _flush_locked(directory, fd, 0.0), True)


def sync(directory, cell_id=None, number=None):
    """Have the cell that is asked for (or any) found in files if it is in the lane; True if it has to be looked for again."""
    return _with_page(directory, lambda fd: _sync(directory, fd, cell_id, number), False)


def acknowledge(directory, number):
    """The host has this reply, which is in no file."""
    return _with_page(directory, lambda fd: _acknowledge(directory, fd, number), False)


def last(directory):
    """The highest number that was taken for a cell of the lane, or 0."""
    return _with_page(directory, lambda fd: Page(fd)[PUT], 0)


def buried(directory, number):
    """The kernel is dead, and this cell has a reply that says so."""
    _with_page(directory, lambda fd: _settled(Page(fd), number), None)


def _settled(page, number):
    if page[PUT] == number:
        page[SETTLED] = number


def _with_page(directory, function, default):
    fd = _open(directory)
    if fd < 0:
        return default
    try:
        return function(fd)
    finally:
        os.close(fd)


def _acknowledge(directory, fd, number):
    page = Page(fd)
    if page[REPLY] != number:
        return False
    page[ACKED] = number
    # Somebody may have put it into a file in the meantime; then the mark was too late for them to see.
    files.remove(files.cell_path(directory, "res", number))
    return True


def _flush_locked(directory, fd, seconds):
    try:
        files.lock(fd, seconds)
    except files.LockTimeout:
        return False
    keep(directory, Page(fd))
    return True


def keep(directory, page):
    """Put the reply in the page into its file, if it is nowhere else. Doing it twice, or two at once, comes to the same."""
    data = page.reply() if page.has_reply() else None
    if data is None:
        return
    number = page[REPLY]
    path = files.cell_path(directory, "res", number)
    if not os.path.lexists(path):
        files.atomic_write(path, data)
    page[KEPT] = number
    if Page(page.fd)[ACKED] == number:
        files.remove(path)


def _sync(directory, fd, cell_id, number):
    page = Page(fd)
    wanted = number == page[PUT] if number is not None else cell_id is None or cell_id == page.cell_id(PUT_ID)
    asked = cell_id is not None or number is not None
    if wanted and not page.is_over():
        _ask(directory, fd, asked)
        page = Page(fd)
    if page.has_reply() and (not asked or number == page[REPLY] or cell_id == page.cell_id(ID)):
        if not _flush_locked(directory, fd, _LOCK_SECONDS if asked and may_wait else 0.0) and asked:
            keep(directory, Page(fd))  # whoever has the lock is stopped, and it is safe without
    return True


def _ask(directory, fd, asked):
    """The cell in the lane is under way: have the supervisor turn it into one with files, or do it if there is none any more."""
    if files.is_locked(directory):
        if not asked and not _is_free(fd) and _age(Page(fd)) < _AGE:
            return  # its courier sees to it
        if not may_wait:
            raise Pending()
        from . import watch
        try:
            done, detail = watch.control(directory, {"v": 1, "do": "lane"}, _ANSWER_SECONDS, time.monotonic() + 2 * _ANSWER_SECONDS)
            if not done and asked:
                raise Fault("busy", "the cell may be about to run, but %s" % (detail or "nothing is known of it"), "ask again")
            return
        except Fault as fault:
            if fault.code != "kernel-dead":
                raise
    if not may_wait:
        raise Pending()
    _lay_out(directory, fd)


def _age(page):
    """For how long the cell that was last put into the lane has been running."""
    return time.monotonic() - page[STARTED] / 1e9 if page[NUMBER] == page[PUT] else 0.0


def _is_free(fd):
    """Whether nobody has the lock; it is not kept."""
    if not files.try_lock(fd):
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


def _lay_out(directory, fd):
    """The supervisor is dead: the cell gets the file that it should have had, from which its reply will be made."""
    from . import osdep
    osdep.kill_marked(os.path.basename(directory))
    try:
        files.lock(fd, _LOCK_SECONDS)
    except files.LockTimeout:
        pass  # a courier that is stopped
    page = Page(fd)
    if page.is_over():
        return
    number, began = page[PUT], page[NUMBER] == page[PUT]
    kinds = ("req", "run", "res")
    if not any(os.path.lexists(files.cell_path(directory, kind, number)) for kind in kinds):
        request = {"v": 1, "id": page.cell_id(ID if began else PUT_ID), "max_output": page[LIMIT] if began else _LIMIT}
        files.atomic_write(files.cell_path(directory, "run" if began else "req", number), files.to_json(request))
    _settled(page, number)
