"""What a few standard modules must know about cells, told to them when (and only if) they are imported."""

import sys

from .guarded import BUILTINS as __builtins__


class Patches(object):
    """A finder that finds nothing itself: it calls a function with each named module once that has been imported."""

    def __init__(self, actions):
        # type: (dict) -> None
        self._actions = dict(actions)
        self._searching = False

    def install(self):
        for name in list(self._actions):
            if name in sys.modules:
                self.apply(sys.modules[name], name)
        sys.meta_path.insert(0, self)

    def find_spec(self, name, path=None, target=None):
        if name not in self._actions or self._searching:
            return None
        self._searching = True
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, 'find_spec', None) if finder is not self else None
                spec = find(name, path, target) if find is not None else None
                if spec is not None:
                    break
            else:
                return None
        finally:
            self._searching = False
        if hasattr(spec.loader, 'exec_module'):
            spec.loader = _Loader(spec.loader, self, name)
        return spec

    def apply(self, module, name):
        action = self._actions.pop(name, None)
        if action is not None:
            try:
                action(module)
            except Exception:    # a module of the user's that only has this name
                pass


class _Loader(object):
    """Loads as the real loader does, and leaves no trace of itself."""

    def __init__(self, loader, patches, name):
        self._loader = loader
        self._patches = patches
        self._name = name

    def create_module(self, spec):
        create = getattr(self._loader, 'create_module', None)
        return create(spec) if create is not None else None

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._patches.apply(module, self._name)

    def __getattr__(self, name):
        return getattr(self._loader, name)


def classes_of_cells(sources):
    """For inspect: it refuses classes of a __main__ without a file."""
    def patch(inspect):
        original = inspect.getfile

        def getfile(object):
            if isinstance(object, type) and getattr(object, '__module__', None) == '__main__':
                filename = sources.file_of_class(object)
                if filename is not None:
                    return filename
            return original(object)

        getfile.__doc__ = original.__doc__
        inspect.getfile = getfile
    return patch


def fork_by_default(context):
    """For multiprocessing.context: a fresh process could not import a cell's functions, there is no file (3.14 changed the default)."""
    default = context._default_context
    if sys.platform.startswith('linux') and default._default_context._name != 'fork':
        default._default_context = context._concrete_contexts['fork']
