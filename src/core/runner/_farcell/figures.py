"""matplotlib without a screen: figures become displays, at plt.show() and at the end of a cell."""

import binascii
import io
import os
import sys

from . import tracebacks
from .guarded import BUILTINS as __builtins__

_PYPLOT = 'matplotlib.pyplot'
_to_base64 = binascii.b2a_base64
_BytesIO = io.BytesIO


def choose_backend():
    """Before the user's own environment says something else."""
    os.environ.setdefault('MPLBACKEND', 'Agg')


def are_possible():
    # type: () -> bool
    return sys.modules.get(_PYPLOT) is not None


def publish_open(publish):
    """Sends every open figure and closes it."""
    pyplot = sys.modules.get(_PYPLOT)
    if pyplot is None:
        return
    try:
        numbers = list(pyplot.get_fignums())
    except Exception:            # still being imported, or something else of that name
        return
    for number in numbers:
        figure = pyplot.figure(number)
        try:
            bundle = _bundle(figure)
        finally:
            pyplot.close(figure)
        publish(bundle)


def _bundle(figure):
    try:
        text = '<%s size %dx%d with %d Axes>' % ((type(figure).__name__,) + _size(figure) + (len(figure.axes),))
    except Exception:
        text = '<Figure>'
    buffer = _BytesIO()
    try:
        figure.savefig(buffer, format='png', bbox_inches='tight')
    except Exception as error:
        return {'text/plain': '%s could not be drawn: %s: %s' % (
            text, tracebacks.type_name(type(error)), tracebacks.message(error))}
    return {'image/png': _to_base64(buffer.getvalue(), newline=False).decode('ascii'), 'text/plain': text}


def _size(figure):
    width, height = figure.get_size_inches() * figure.dpi
    return int(width), int(height)


def form(value):
    # type: (object) -> dict
    """The picture of a figure that is a value itself; it is closed, not to be shown again at the end of the cell."""
    module = sys.modules.get('matplotlib.figure')
    try:
        if module is None or not isinstance(value, module.Figure):
            return {}
        bundle = _bundle(value)
        if 'image/png' in bundle and _PYPLOT in sys.modules:
            sys.modules[_PYPLOT].close(value)
        return bundle
    except Exception:
        return {}


def patch(pyplot, publish):
    """plt.show() sends the figures at that point of the cell, and does not warn that there is no screen."""
    original = pyplot.show

    def show(*args, **kwargs):
        """Display all open figures."""
        if str(pyplot.get_backend()).lower() != 'agg':
            return original(*args, **kwargs)
        publish_open(publish)
        return None

    pyplot.show = show
    import warnings
    for text in ('.*is non-interactive, and thus cannot be shown', '.*non-GUI backend, so cannot show'):
        warnings.filterwarnings('ignore', message=text, category=UserWarning)     # figure.show()
