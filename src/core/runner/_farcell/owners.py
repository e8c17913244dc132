"""Whose a call of a tool is: a thread, a task or a piece of work belongs to the cell that started it, whichever cell runs by now."""

import _thread
import sys
from _functools import partial

from . import patches
from .guarded import BUILTINS as __builtins__

try:
    from _contextvars import Context, ContextVar  # novm
except ImportError:              # 3.6
    Context = ContextVar = None

_get_ident = _thread.get_ident
_STARTS = ('start_new_thread', 'start_new', 'start_joinable_thread')
_OTHER_INTERPRETERS = 'concurrent.futures.interpreter'   # its work is pickled


class Owner(object):
    """One cell, as those that call in its name carry it along."""

    __slots__ = ('token', 'offers')

    def __init__(self, token, offers):
        # type: (str, dict) -> None
        self.token = token           # empty where the cell has no tools
        self.offers = offers         # what it may call: name -> what tells one tool from another


class Owners(object):
    """Knows the owner of whatever runs in this process. Costs nothing before the first cell with tools."""

    def __init__(self):
        self.current = None  # type: object # of the cell that runs, or ran last
        self._main = 0
        self._variable = None  # type: object

    def begin(self, owner, enter):
        # type: (Owner, object) -> None
        """A cell starts in this thread; `enter` runs a function in the context that cells share."""
        if self._variable is None:
            self._main = _get_ident()
            self._variable = _Local(self) if ContextVar is None else ContextVar('farcell cell')
            self._patch()
        self.current = owner
        self._variable.set(owner)
        enter(self._variable.set, owner)

    def whose(self):
        # type: () -> object
        """The owner of what runs right here, or None where that is older than all cells with tools."""
        owner = self._variable.get(None)
        if owner is None and _get_ident() == self._main:
            return self.current      # in a context that somebody has made from nothing
        return owner

    # -- threads, and work for them --

    def _patch(self):
        for name in _STARTS:
            start = getattr(_thread, name, None)
            if start is not None:
                setattr(_thread, name, self._starting(start))
        actions = {'threading': self._patch_threading, 'concurrent.futures.thread': self._patch_executor}
        if ContextVar is None:
            actions['asyncio.base_events'] = self._variable.patch_tasks
        patches.Patches(actions).install()

    def _starting(self, start):
        def start_thread(function, *args, **options):
            owner = self.whose()
            if owner is None or not callable(function) or (args and type(args[0]) is not tuple):
                return start(function, *args, **options)
            function = self._belonging(function, owner)
            if not args:
                return start(function, **options)
            return start(function, *args, **options)

        start_thread.__name__ = start_thread.__qualname__ = start.__name__
        start_thread.__doc__ = start.__doc__
        return start_thread

    def _belonging(self, function, owner):
        """The function of a thread, to be run as this owner's. Without a frame of ours, which a traceback would show."""
        if Context is None:
            return self._variable.belonging(function, owner)
        inner = getattr(getattr(function, '__self__', None), '_context', None)
        if isinstance(inner, Context) and self._variable not in inner:
            inner.run(self._variable.set, owner)         # from 3.14 on a Thread runs in a context of its own
        context = Context()
        context.run(self._variable.set, owner)
        return partial(context.run, function)

    def _patch_threading(self, threading):
        for name in _STARTS:
            if hasattr(threading, '_' + name):
                setattr(threading, '_' + name, getattr(_thread, name))

    def _patch_executor(self, module):
        executor = module.ThreadPoolExecutor
        original = executor.submit

        def submit(self, *args, **options):
            if args and callable(args[0]) and type(self).__module__ != _OTHER_INTERPRETERS:
                owner = whose()
                if owner is not None:
                    args = (_Work(variable, owner, args[0]),) + args[1:]
            return original(self, *args, **options)

        whose, variable = self.whose, self._variable
        submit.__doc__ = original.__doc__
        submit.__wrapped__ = original
        executor.submit = submit


class _Work(object):
    """What somebody has given to a pool of threads."""

    def __init__(self, variable, owner, function):
        self._variable = variable
        self._owner = owner
        self._function = function

    def __call__(self, *args, **options):
        before = self._variable.set(self._owner)
        try:
            return self._function(*args, **options)
        finally:
            self._variable.reset(before)

    def __repr__(self):
        return repr(self._function)


class _Local(object):
    """What stands in for a context variable before Python 3.7."""

    def __init__(self, owners):
        import weakref
        self._owners = owners
        self._thread = _thread._local()
        self._tasks = weakref.WeakKeyDictionary()

    def get(self, default):
        owner = self._tasks.get(_current_task()) if self._tasks else None
        return owner or getattr(self._thread, 'owner', default)

    def set(self, owner):
        before, self._thread.owner = getattr(self._thread, 'owner', None), owner
        return before

    def reset(self, before):
        self._thread.owner = before

    def belonging(self, function, owner):
        def run(*args, **options):
            self._thread.owner = owner
            return function(*args, **options)
        return run

    def patch_tasks(self, module):
        original = module.BaseEventLoop.create_task

        def create_task(loop, coro):
            task = original(loop, coro)
            owner = self._owners.whose()
            if owner is not None:
                self._tasks[task] = owner
            return task

        create_task.__doc__ = original.__doc__
        module.BaseEventLoop.create_task = create_task


class _NoTask(object):
    """Can be looked up where there is no task."""


_no_task = _NoTask()


def _current_task():
    asyncio = sys.modules.get('asyncio')
    try:
        return asyncio.Task.current_task() or _no_task
    except Exception:                # no loop in this thread, or one of another kind
        return _no_task
