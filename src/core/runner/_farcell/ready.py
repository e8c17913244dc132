"""A kernel of a pool: supervisor and interpreter that wait, and become those of whoever takes them. Nothing is run in them before."""

import _signal
import _socket
import os
import struct

from . import detach, figures, kinds, osdep, strict, supervisor
from .fault import Fault

OPTION = "--ready"
_MESSAGE_MAX = 1 << 20
_FDS = struct.Struct("2i")


class Person(object):
    """What makes a process that of one kernel, for both of its processes: each has its own copy, and takes on the same."""

    def __init__(self, title, arguments, environ):
        # type: (object, list, object) -> None
        self._title = title
        self._arguments = arguments
        self._environ = environ  # what the process was forked with, without its mark

    def wait(self, folder):
        # type: (str) -> None
        """Be shown as one that waits."""
        self._title.show("%s %s" % (OPTION, folder))

    def become(self, kernel, directory, environ):
        # type: (str, str, object) -> None
        """`environ` is null where it is the same."""
        self._title.become(kernel, directory)
        self._arguments[-1] = directory
        if environ is not None:
            self._change(environ)

    def _change(self, wanted):
        """What this process has been given by others than its caller stays."""
        before = self._environ or {}
        for name in set(before) - set(wanted):
            os.environb.pop(_raw(name), None)
        for name, value in wanted.items():
            if before.get(name) != value:
                os.environb[_raw(name)] = _raw(value)
        figures.choose_backend()


def enter(folder, link, person):
    # type: (str, object, Person) -> None
    """In a fork of a zygote, which has nothing of it open but this end of a connection. It does not return."""
    folder = os.path.join(folder, kinds.READY_PREFIX + str(os.getpid()))
    person.wait(folder)
    os.mkdir(folder, 0o700)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)  # how an interpreter ends counts here
    started, first = supervisor.stand_ready(folder, _in_interpreter(person))
    link.send(b"+")
    supervisor.hold(folder)  # now everybody may know
    message, fds = _receive(link) if started.wait_for(link.fileno()) else (b"", ())
    if not message or len(fds) != 2:
        os._exit(0)  # and so the interpreter does
    link.close()
    _take_over(folder, strict.decode(message), fds, person, started, first)


def _receive(link):
    message, ancillary, _flags, _address = link.recvmsg(_MESSAGE_MAX, _socket.CMSG_SPACE(_FDS.size), _socket.MSG_CMSG_CLOEXEC)
    return message, tuple(fd for _level, _kind, numbers in ancillary for fd in struct.unpack("%di" % (len(numbers) // 4), numbers))


def _take_over(folder, request, fds, person, started, first):
    answer, start_lock = fds
    directory, spec = request["directory"], request["spec"]
    spec["env"] = {}  # it is in the environment
    if request["notes"]:
        spec["note"] = "; ".join(request["notes"])
    person.become(spec["id"], directory, request["environ"])
    try:
        detach.enter(spec.get("cwd"), request["home"])
    except Fault as fault:
        detach.complain(answer, fault)
        os._exit(0)
    os.umask(request["umask"])
    supervisor.settle(spec)
    os.chdir("/")
    first.name({"kernel": spec["id"], "directory": directory, "cwd": spec["cwd"], "umask": spec["umask"], "environ": request["environ"],
                "limits": spec.get("limits") or {}})
    supervisor.main_taken(started, folder, directory, spec, answer, start_lock)


def _raw(text):
    return text.encode("utf-8", "surrogateescape")


def _in_interpreter(person):
    """What the interpreter does with the frame that tells who it is."""
    def become(identity):
        person.become(identity["kernel"], identity["directory"], identity["environ"])
        os.environ[osdep.MARK] = identity["kernel"]
        os.umask(identity["umask"])
        return identity
    return become
