"""What mitogen's contexts import from here."""

import contextlib
import io

NAMES = {"__name__": "__main__"}


def run(code):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        exec(code, NAMES)
    return text.getvalue()
