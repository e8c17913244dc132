"""What can end an operation early: a fault, which becomes an answer, or a host that has gone."""


class Fault(Exception):
    """A refusal or failure that has a code of the protocol; `hint` says what to do about it."""

    def __init__(self, code, message, hint=None):
        Exception.__init__(self, message)
        self.code = code
        self.message = message
        self.hint = hint

    def as_json(self):
        return {"code": self.code, "message": self.message, "hint": self.hint}


class HostGone(Exception):
    """Nobody reads our answer any more, so nobody needs it."""


def reason(error):
    """An OSError in a few words, without the number and the path that the sentence around it has already."""
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
