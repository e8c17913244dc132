"""What /proc shows of a process, its arguments and its mark, rewritten in place: a fork keeps the text that its parent was started with."""

import os

from . import osdep

# The words that stand in the place of a kernel's directory, in the arguments of a zygote. They are overwritten in its children.
OPTION = "--zygote"
FILLER = "(kernels are forked from this process; it ends by itself)"
_ID_MAX = 64
SLOT = "." * _ID_MAX
_PROBE = b"farcell-probe"


class Title(object):
    """The two places in this process's memory that /proc/PID/cmdline and /proc/PID/environ show.

    The second one counts: by its mark all that belongs to a kernel is found after its supervisor was killed.
    """

    def __init__(self):
        import ctypes
        self._ctypes = ctypes
        # Where the system says that they are: field 48 and those that follow it in /proc/PID/stat.
        fields = osdep.stat_fields(os.getpid())[45:49]
        if len(fields) < 4 or b"0" in fields:
            raise OSError("the place of the arguments is not known")
        arg_start, arg_end, env_start, env_end = map(int, fields)
        self._argument = self._view(self._find(arg_start, arg_end, OPTION.encode("ascii") + b"\0"), arg_end - 1)
        start = self._find(env_start, env_end, self._marked(SLOT))
        self._mark = self._view(start, start + len(self._marked(SLOT)))
        self._check()

    def _find(self, start, end, words):
        """The address of words that begin a text of the block."""
        at = (b"\0" + self._ctypes.string_at(start, end - start)).find(b"\0" + words)
        if at < 0:
            raise OSError("the arguments are not where they should be")
        return start + at

    def _view(self, start, end):
        # Writing into a view is a copy and no more; a call through ctypes would touch, and so unshare, much of our memory in every child.
        return memoryview((self._ctypes.c_char * (end - start)).from_address(start)).cast("B")

    @staticmethod
    def _marked(value):
        return ("%s=%s" % (osdep.MARK, value)).encode("ascii")

    def _check(self):
        """Believed only after it was seen to work."""
        before = bytes(self._mark)
        _put(self._mark, _PROBE)
        with open("/proc/self/environ", "rb", 0) as file:
            seen = file.read(1 << 20).split(b"\0")
        self._mark[:] = before
        if _PROBE not in seen:
            raise OSError("the environment cannot be rewritten")

    def become(self, kernel, directory):
        # type: (str, str) -> None
        """Show the mark of a kernel, and its directory as the last argument."""
        _put(self._mark, self._marked(kernel))
        self.show(directory)

    def show(self, argument):
        # type: (str) -> None
        """Show this as the last argument."""
        text = os.fsencode(argument)
        if len(text) <= len(self._argument):  # else it is only for people to look at
            _put(self._argument, text)


def _put(view, text):
    view[:] = text + b"\0" * (len(view) - len(text))
