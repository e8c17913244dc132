"""What calls of tools add to the port of a kernel in a directory: answers are files, and who waits is told of a call at once."""

import errno
import os

from . import files
from .ports import Port

_HEAD_MAX = 4096
ANSWER_MAX = 65 << 20  # of an answer's file


class FileCalls(Port):
    """The part of a FilePort that has to do with tools."""

    _expecting = False

    def expect_answers(self):
        self._expecting = True
        try:
            os.mkdir(self._rpc, 0o700)
        except OSError as error:
            if error.errno != errno.EEXIST:
                self._log("cannot make rpc: %s", error)

    def expect_no_answers(self):
        self._expecting = False
        self._sweep_answers()

    def called(self, number, blob):
        self._loop.cancel("poke")
        self._poke(True)

    def is_waited_for(self):
        if self.wake != "fifo":
            return False  # nobody can be seen to wait
        try:
            names = os.listdir(self._waiters)
        except OSError:
            return False
        return any(name.startswith("w-") and files.has_reader(self._waiters + "/" + name) for name in names)

    def _take_answers(self):
        """Hand over the answers that have come. Each is read once, whatever is wrong with it."""
        if not self._kernel.awaits_answers():
            return
        try:
            names = os.listdir(self._rpc)
        except OSError:
            return
        for name in names:
            place = _place(name)
            if place is not None:
                self._take_answer(self._rpc + "/" + name, *place)

    def _take_answer(self, path, number, call):
        try:
            data = files.read_bytes(path) if os.lstat(path).st_size <= ANSWER_MAX else None
            files.remove(path)
        except OSError as error:
            self._log("cannot read the answer to a call: %s", error)
            return
        if data is None:
            self._log("what came as the answer to a call is none")
            return
        # The first line names the cell; what follows is passed on as it is.
        head, _line, text = data[:_HEAD_MAX].partition(b"\n")
        cell_id = head.decode("ascii", "replace").strip()
        if not self._kernel.answer_call(number, cell_id, call, data[len(head) + 1:]):
            self._log("the answer to call %d of cell %d came too late", call, number)

    def _sweep_answers(self):
        """What is left belongs to cells that are over."""
        try:
            names = os.listdir(self._rpc)
        except OSError:
            return
        for name in names:
            try:
                files.remove(self._rpc + "/" + name)
            except OSError:
                pass


def _place(name):
    """(number, call) of res_NNNNNN_<call>.json, or None."""
    words = name[:-5].split("_")
    if name.endswith(".json") and len(words) == 3 and words[0] == "res" and all(word.isdigit() and len(word) <= 18 for word in words[1:]):
        return int(words[1]), int(words[2])
    return None
