"""A set that forgets the oldest, for ids and numbers that must not come twice."""

from collections import deque

from .guarded import BUILTINS as __builtins__


class Recent(object):
    """The last things seen."""

    def __init__(self, limit=100000):
        # type: (int) -> None
        self._limit = limit
        self._order = deque()  # type: deque
        self._set = set()  # type: set

    def __contains__(self, item):
        return item in self._set

    def add(self, item):
        # type: (object) -> bool
        """False if it was here already."""
        if item in self._set:
            return False
        self._set.add(item)
        self._order.append(item)
        if len(self._order) > self._limit:
            self._set.discard(self._order.popleft())
        return True
