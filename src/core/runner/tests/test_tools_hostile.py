"""What cells do with the way to their tools by hand: the supervisor lives, answers where it can, and the next call works."""

import os
import resource
import shutil
import tempfile
import unittest

from tests.supervisor_kit import until
from tests.tools_kit import IMPORT, FileHost, PipeHost, WithHost, bad, good

# Speaks for itself, past the functions that tools have.
RAW = IMPORT + """
import array, json, os, socket, struct
_tools = echo.__globals__['call'].__self__._tools
LINK, TOKEN = _tools.line._link, _tools._owners.current.token
def message(token=TOKEN, **fields):
    return json.dumps(dict({'v': 1, 'token': token, 'name': 'echo'}, **fields)).encode()
def raw(data, frame=b'', fds=1, what=None):
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    fds = [(theirs if what is None else what).fileno()] * fds
    LINK.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))] if fds else [])
    theirs.close()
    try:
        ours.sendall(frame)
    except OSError:
        pass
    return ours
def framed(data):
    return struct.pack('>I', len(data)) + data
def answer(ours):
    try:
        head = ours.recv(4, socket.MSG_WAITALL)
        return json.loads(ours.recv(struct.unpack('>I', head)[0], socket.MSG_WAITALL).decode()) if head else None
    except ConnectionResetError:
        return None
def why(ours):
    told = answer(ours)
    return told and told['error']['kind'] + ': ' + told['error']['message']
"""


class Hostile(WithHost):
    def setUp(self):
        super(Hostile, self).setUp()
        self.host.run("1")  # from here on it has all that it opens for itself

    def descriptors(self):
        return len(os.listdir("/proc/%d/fd" % self.host.kernel.pid))

    def printed(self, code, calls=1):
        """What a cell prints that makes so many good calls beside."""
        cell = self.host.start(RAW + code)
        cell.serve(calls)
        reply = cell.reply()
        self.assertEqual((reply["status"], reply["error"]), ("ok", None))
        return reply, reply["stdout"].splitlines()

    def test_a_call_by_hand(self):
        _, told = self.printed("print(answer(raw(message(), framed(b'{\"value\": 5}'))))")
        self.assertEqual(told, ["{'ok': True, 'value': 5}"])

    def test_a_wrong_token(self):
        reply, told = self.printed("for token in ('', 'x', '0' * 32, '\\ud800', TOKEN[:-1]):\n    print(why(raw(message(token), framed(b'{}'))))\necho(1)")
        self.assertEqual(told, ["refused: the call belongs to no cell that runs: what an earlier cell has left may not call tools"] * 5)
        self.assertEqual(reply["tools"], {"calls": 1, "errors": []})

    def test_what_is_no_call(self):
        code = ("for data in (b'', b'x', b'[]', b'null', b'{}', message(v=2), message(name=3), message(token=None), message(name='n' * 300), message() + b' ' * 1024, b'\\xff', b'[' * 1000):\n"
                "    print(why(raw(data, framed(b'{}'))))\necho(1)")
        self.assertEqual(self.printed(code)[1], ["refused: this is no call of a tool"] * 12)

    def test_no_descriptor_or_several(self):
        before = self.descriptors()
        self.assertEqual(self.printed("for count in (0, 2, 3, 8, 9, 50):\n    print(answer(raw(message(), fds=count)) if count else raw(message(), fds=0) and None)\necho(1)")[1], ["None"] * 6)
        until(lambda: self.descriptors() <= before, what="that all are closed")  # one more was open before, where the supervisor just wrote a file

    def test_a_descriptor_of_another_kind(self):
        before = self.descriptors()
        self.printed("read, write = os.pipe()\nfor what in (open('/dev/null'), open('/dev/zero', 'rb'), os.fdopen(write, 'w'), os.fdopen(read)):\n    raw(message(), what=what)\necho(1)")
        until(lambda: self.descriptors() <= before, what="that all are closed")  # one more was open before, where the supervisor just wrote a file

    def test_arguments_that_are_none(self):
        code = ("for data in (b'', b'x', b'[1]', b'5', b'{', b'{}{}', b'{\"a\": NaN}', b'{\"a\": \"\\xff\"}', b'{\"a\":' * 100000):\n    print(why(raw(message(), framed(data))))\necho(1)")
        reply, told = self.printed(code)
        self.assertEqual(told, ["refused: the arguments are no JSON object"] * 9)
        self.assertEqual((reply["tools"]["calls"], reply["tools"]["errors"][0]), (10, {"call": 0, "name": "echo", "kind": "refused", "message": "the arguments are no JSON object"}))

    def test_too_much(self):
        # Four of the five fit, whichever come first.
        code = ("import select\nprint(why(raw(message(), struct.pack('>I', (64 << 20) + 1))))\nclaims = [raw(message(), struct.pack('>I', 60 << 20)) for _ in range(5)]\n"
                "refused = select.select(claims, [], [], 60)[0]\nprint(len(refused), why(refused[0]))\necho(1)")
        self.assertEqual(self.printed(code)[1], [
            "refused: the arguments have more than 67108864 bytes", "1 refused: all arguments of the cell together would have more than 268435456 bytes"])

    def test_who_writes_slowly_or_never_holds_up_nobody(self):
        code = ("slow = [raw(message()) for _ in range(20)] + [raw(message(), struct.pack('>I', 1000) + b'{') for _ in range(20)]\necho(1)\n"
                "one = raw(message())\nfor byte in framed(b'{\"value\": 2}'):\n    one.sendall(bytes((byte,)))\nprint(answer(one))\n"
                "for each in slow:\n    each.close()\necho(3)")
        self.assertEqual(self.printed(code, 3)[1], ["{'ok': True, 'value': 2}"])

    def test_ends_that_are_closed_early(self):
        before = self.descriptors()
        reply, _ = self.printed("for frame in (b'', b'\\0', struct.pack('>I', 9), struct.pack('>I', 9) + b'{}'):\n    raw(message(), frame).close()\necho(1)")
        self.assertEqual(reply["tools"], {"calls": 5, "errors": []})
        until(lambda: self.descriptors() <= before, what="that all are closed")  # one more was open before, where the supervisor just wrote a file

    def test_what_follows_a_frame_is_ignored(self):
        self.assertEqual(self.printed("print(answer(raw(message(), framed(b'{\"value\": 2}') + b'more' * 20000)))")[1], ["{'ok': True, 'value': 2}"])

    def test_a_caller_that_does_not_read_its_answer(self):
        before = self.descriptors()
        cell = self.host.start(RAW + "deaf = raw(message(), framed(b'{\"value\": 1}'))\nprint(echo(2))\ndeaf.close()\necho(3)")
        cell.serve(3, lambda arguments: good("x" * 5000000 if arguments["value"] == 1 else arguments["value"]))
        self.assertEqual(cell.value(), "3")
        until(lambda: self.descriptors() <= before, what="that all are closed")  # one more was open before, where the supervisor just wrote a file

    def test_as_many_as_there_may_be_that_never_come_to_anything(self):
        code = "held = []\nLINK.setblocking(False)\ntry:\n    while len(held) < 150:\n        held.append(raw(message()))\nexcept BlockingIOError:\n    pass\nlen(held) > 64"
        self.assertEqual(self.host.start(RAW + code).reply()["result"], {"text/plain": "True"})
        cell = self.host.start(IMPORT + "held = LINK.setblocking(True)\necho(1)")
        cell.serve(1)
        self.assertEqual(cell.value(), "1")

    def test_a_supervisor_without_a_free_descriptor(self):
        pid, folder = self.host.kernel.pid, tempfile.mkdtemp(prefix="farcell-test-")
        self.addCleanup(shutil.rmtree, folder)
        path = os.path.join(folder, "go")
        os.mkfifo(path)
        cell = self.host.start(RAW + "print('here', flush=True)\nopen(%r).read()\nfor n in range(3):\n    try:\n        echo(n)\n    except ToolError as error:\n        told = error\nprint(told)\n"
                               "open(%r).read()\necho(4)" % (path, path))
        self.host.wait_printed(cell, b"here")
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        held = os.listdir("/proc/%d/fd" % pid)
        # What is open stays open, and nothing more can be.
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (next(fd for fd in range(len(held) + 1) if str(fd) not in held), before[1]))
        try:
            with open(path, "w"):
                pass
            self.host.wait_printed(cell, b"is free\n")
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        with open(path, "w"):
            pass
        cell.serve(1)
        self.assertEqual(cell.reply()["stdout"], "here\necho: the kernel did not take the call: its cell is over, or no descriptor is free\n")

    def test_a_supervisor_without_memory(self):
        pid = self.host.kernel.pid
        before = resource.prlimit(pid, resource.RLIMIT_AS)
        with open("/proc/%d/statm" % pid) as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.prlimit(pid, resource.RLIMIT_AS, (used + (20 << 20), before[1]))
        self.addCleanup(lambda: resource.prlimit(pid, resource.RLIMIT_AS, before))
        cell = self.host.start(IMPORT + "for n in range(3):\n    try:\n        echo('x' * 50000000)\n    except ToolError as error:\n        print(error.kind)\necho(1)")
        cell.serve(1)
        reply = cell.reply()
        self.assertEqual((reply["stdout"], reply["result"]), ("refused\n" * 3, {"text/plain": "1"}))

    def test_the_way_is_closed(self):
        cell = self.host.start(RAW + "os.close(LINK.fileno())\nkeep = [os.open('/dev/null', os.O_RDWR) for _ in range(300)]\nfor _ in range(2):\n    try:\n        echo(1)\n"
                               "    except ToolError as error:\n        print(error)\nfor fd in keep: os.close(fd)")
        reply = cell.reply()
        self.assertEqual(set(reply["stdout"].splitlines()), {"echo: code of this kernel has closed the descriptor that tools are called by; a reset makes a new one"})
        cell = self.host.start(IMPORT + "echo(1)", reset=True)
        cell.serve(1)
        self.assertEqual(cell.value(), "1")

    def test_no_descriptor_is_free_in_the_cell(self):
        code = ("import resource\nlimits = resource.getrlimit(resource.RLIMIT_NOFILE)\nresource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))\ntry:\n    echo(1)\nexcept ToolError as error:\n"
                "    print(error)\nfinally:\n    resource.setrlimit(resource.RLIMIT_NOFILE, limits)\necho(2)")
        self.assertEqual(self.printed(code)[1], ["echo: no call can be made: Too many open files"])

    def test_a_broken_pipe_signal_does_not_end_the_cell(self):
        cell = self.host.start(RAW + "import signal\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\nTOKEN = 'no'\n_tools._owners.current.token = 'no'\ntry:\n    echo('x' * 5000000)\nexcept ToolError as error:\n"
                               "    print(error.kind)\nsignal.signal(signal.SIGPIPE, signal.SIG_IGN)\n7")
        reply = cell.reply()
        self.assertEqual((reply["status"], reply["stdout"], reply["result"]), ("ok", "refused\n", {"text/plain": "7"}))

    def test_garbage_without_end(self):
        # A child that floods is only a nuisance: calls of the cell still come through, and the log stays short.
        code = ("child = os.fork()\nif child == 0:\n    while True:\n        try:\n            raw(b'garbage').close()\n        except OSError:\n            pass\n"
                "import signal\ntry:\n    got = [echo(n) for n in range(30)]\nfinally:\n    os.kill(child, signal.SIGKILL)\n    os.waitpid(child, 0)\nprint(got == list(range(30)))")
        self.assertEqual(self.printed(code, 30)[1], ["True"])
        self.printed("for _ in range(500):\n    LINK.send(b'x')\necho(1)")
        self.assertLess(self.host.log().count("was dropped"), 10)

    def test_the_bound_of_the_output_does_not_bound_calls(self):
        host = type(self).make(limits={"spill_bytes": 5000})
        self.addCleanup(host.close)
        cell = host.start(IMPORT + "print('x' * 20000)\necho('y' * 20000)\nprint('z' * 100)\necho(2)")
        self.assertEqual([len(str(call["arguments"]["value"])) for call in cell.serve(2)], [20000, 1])
        self.assertEqual(cell.reply()["stdout"], "x" * 20000 + "\n" + "z" * 100 + "\n")

    def test_an_answer_that_is_too_long(self):
        cell = self.host.start(IMPORT + "try:\n    echo(1)\nexcept ToolError as error:\n    print(error)\necho(2)")
        cell.answer(cell.call(), good("x" * (64 << 20)))
        cell.serve(1)
        self.assertEqual(cell.reply()["stdout"], "echo: the answer has more than 67108864 bytes\n")

    def test_errors_from_the_host_of_any_shape(self):
        cell = self.host.start(IMPORT + "for n in range(2):\n    try:\n        echo(n)\n    except ToolError as error:\n        print(error.kind)")
        cell.answer(cell.call(), bad("\udc80 lone", "den\u00efed"))
        cell.answer(cell.call(), {"ok": False, "error": {"kind": 5, "message": None}})
        self.assertEqual(cell.reply()["stdout"], "den\u00efed\n5\n")


class HostileOverPipes(Hostile, unittest.TestCase):
    make = PipeHost


class HostileOverFiles(Hostile, unittest.TestCase):
    make = FileHost
