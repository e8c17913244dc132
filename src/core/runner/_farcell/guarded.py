"""A copy of the builtins for our own modules: a cell that replaces one must not break what runs between the cells.

`from .guarded import BUILTINS as __builtins__` at the top of a module is all: its functions look names up there.
"""

import builtins

BUILTINS = dict(vars(builtins))
