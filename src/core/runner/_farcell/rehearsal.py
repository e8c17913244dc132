"""A zygote goes once through all that its forks will do: they find caches filled, write to fewer pages, and share the others with it.

What it costs a fork to be the first that does something is not the doing: every page that it writes to is copied. Python fills its caches of
attributes, adapts its byte code and counts references in the objects that it touches; after a rehearsal much of that is there.
"""

import builtins
import gc
import linecache
import os
import signal
import sys
import time

from . import cell, files, interpreter, osdep, reply, shared_lane, streams, supervisor
from .file_port import FilePort
from .log import Log

_CELL_SECONDS = 2.0
_ID = "k-rehearsal"
_CODE = "x = 1\nprint(x)\nx"


def run(folder):
    # type: (str) -> None
    """`folder` is made, and is gone afterwards."""
    kept = _Kept()
    files.remove_tree(folder)  # of one that was killed in the middle
    try:
        os.mkdir(folder, 0o700)
        _supervise(folder)
        _interpret()
    finally:
        kept.put_back()
        files.remove_tree(folder)


def _supervise(folder):
    """A supervisor starts, runs a cell, and is forgotten."""
    spec = {"id": _ID, "cwd": None, "env": {}, "idle_ms": 60000, "limits": {}}
    lane = shared_lane.make(folder)
    first = supervisor.first_interpreter(spec, lane)
    started = supervisor.begin(spec, lambda log: FilePort(folder, spec, log, lane), Log(os.path.join(folder, "runner.log")), first)
    reply.encode({"ok": True, "kernel": started.record()})
    try:
        request = {"v": cell.VERSION, "id": "0" * 32, "code": _CODE, "timeout_ms": 60000, "max_output": 1 << 20, "echo": "last",
                   "cwd": None, "env": {}, "reset": False}
        files.atomic_write(files.cell_path(folder, "req", 1), files.to_json(request))
        started.rehearse(lambda: os.path.exists(files.cell_path(folder, "res", 1)), time.monotonic() + _CELL_SECONDS)
    finally:
        pid = started.record()["interpreter_pid"]
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


class _Interpreter(interpreter.Interpreter):
    """One that leaves nothing behind that cannot be undone."""

    def _close_when_forked(self):
        pass

    def _patch_modules(self, kept):
        pass


def _interpret():
    """An interpreter starts, and runs a cell."""
    ours, theirs = os.pipe(), os.pipe()
    rehearsing = _Interpreter().attach(ours[0], theirs[1], {"kernel": _ID, "generation": 1})
    rehearsing.serve_cell({"number": 1, "code": _CODE, "echo": "last", "env": {}, "cwd": None})


class _Kept(object):
    """What of this process is changed by being a kernel."""

    _STREAMS = tuple(streams.Streams.NAMES) + tuple("__%s__" % name for name in streams.Streams.NAMES) + ("displayhook",)
    _MODULES = ("__main__", "_farcell.__main__")
    _BUILTINS = ("display", "_")

    def __init__(self):
        self._fds = osdep.held_fds()
        self._signals = osdep.dispositions()
        self._sys = {name: getattr(sys, name) for name in self._STREAMS}
        self._lists = [(each, each[:]) for each in (sys.argv, sys.path, sys.meta_path)]
        self._dicts = [(each, dict(each)) for each in (linecache.cache, os.environ)]
        self._modules = {name: sys.modules.get(name) for name in self._MODULES}
        self._builtins = {name: vars(builtins).get(name) for name in self._BUILTINS}
        self._umask = os.umask(0o077)

    def put_back(self):
        osdep.set_wakeup_fd(-1)
        osdep.restore_dispositions(self._signals)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.umask(self._umask)
        os.chdir("/")
        for name, value in self._sys.items():
            setattr(sys, name, value)
        for each, content in self._lists:
            each[:] = content
        for each, content in self._dicts:
            for name in set(each) - set(content):
                del each[name]
        for target, content in ((sys.modules, self._modules), (vars(builtins), self._builtins)):
            for name, value in content.items():
                if value is None:
                    target.pop(name, None)
                else:
                    target[name] = value
        unfreeze = getattr(gc, "unfreeze", None)  # 3.7
        if unfreeze is not None:
            unfreeze()
        gc.collect()  # all of it, and streams before their descriptors are gone
        osdep.close_all_except(self._fds)
