"""The interpreter as the supervisor holds it: a forked child, its pipes, and the ways to end it."""

import _signal
import os
import signal
import sys

from . import frames, gate, interpreter, loop, osdep, tool_call, wire

FRAME_LIMIT = 64 << 20  # the interpreter is not trusted; no honest result is larger
READ_SIZE = 256 * 1024
FRAME_READ = 16 * 1024  # allocated for every read, and far less than this is usual
# Pipe pages are counted per user, and past a limit (64 MiB as a rule) all new pipes of that user shrink to a page or two.
# So only the busiest pipe is enlarged, and not more than one read takes: 100 kernels must fit.
STDOUT_PIPE = 256 * 1024
SETUP_FAILED = 98
_IGNORED_BY_PYTHON = {getattr(signal, name, None) for name in ("SIGPIPE", "SIGXFSZ", "SIGXFZ")}
_DEFAULTS = {number: _signal.SIG_IGN if number in _IGNORED_BY_PYTHON else _signal.SIG_DFL for number in range(1, signal.NSIG)}
_DEFAULTS[signal.SIGINT] = signal.default_int_handler


class Interpreter(object):
    """One generation of the interpreter. `cells` counts what it was given, `results` what it brought to an end."""

    def __init__(self, generation, pid, in_fd, out_fd, stdout_fd, stderr_fd, calls):
        # type: (int, int, int, int, int, int, object) -> None
        self.generation = generation
        self.pid = pid
        self.in_fd = in_fd
        self.out_fd = out_fd
        self.stdout_fd = stdout_fd
        self.stderr_fd = stderr_fd
        self.calls = calls  # our end of the socket that calls of tools come by
        self.reader = frames.Reader(FRAME_LIMIT)
        self.status = None  # type: object
        self.more = False
        self.killed = False  # whether SIGKILL came from us
        self.cells = 0
        self.results = 0
        self.oom_before = osdep.oom_kills()
        for fd in (out_fd, stdout_fd, stderr_fd):
            os.set_blocking(fd, False)

    @classmethod
    def start(cls, spec, kernel, generation, lane=None, become=None):
        # type: (dict, str, int, object, object) -> Interpreter
        """Fork a new interpreter; OSError where the machine has no process or descriptor left.

        With `become` it waits for its name() and calls that with it: it is forked before anybody knows whose it will be.
        """
        pipes = []  # type: list
        calls = None
        try:
            for _ in range(4):
                pipes.append(os.pipe())
            to_child, from_child, stdout, stderr = pipes
            osdep.set_pipe_size(stdout[1], STDOUT_PIPE)
            calls, calls_fd = tool_call.pair()
            pipes.append((calls_fd,))
            parent = os.getpid()
            pid = os.fork()
        except OSError:
            for pair in pipes:
                for fd in pair:
                    os.close(fd)
            if calls is not None:
                calls.close()
            raise
        if pid == 0:
            hello = {"kernel": kernel, "generation": generation, "supervisor": parent, "cwd": None, "lane": lane, "calls": calls_fd}
            if become is not None:
                hello["become"] = lambda identity: _enter(become(identity))
            _become_interpreter(spec, hello, to_child[0], from_child[1], stdout[1], stderr[1])
        try:
            os.setpgid(pid, pid)  # here and in the child: whoever comes first, the group is there for both
        except OSError:
            pass
        for fd in (to_child[0], from_child[1], stdout[1], stderr[1], calls_fd):
            os.close(fd)
        return cls(generation, pid, to_child[1], from_child[0], stdout[0], stderr[0], calls)

    def name(self, identity):
        # type: (dict) -> None
        """Tell one that was started with `become` who it is. Nothing was sent to it before, so the pipe has room."""
        frames.write_all(self.in_fd, frames.pack(b"i", wire.encode(identity)))

    def read_frames(self):
        # type: () -> object
        """Frames that have come, None at the end of the pipe; ValueError for what is no frame. `more`: read on."""
        data = loop.read_some(self.out_fd, READ_SIZE if self.more else FRAME_READ)
        self.more = data is not None and len(data) >= FRAME_READ
        if data is None:
            return []
        return self.reader.feed(data) if data else None

    def signal(self, signum):
        # type: (int) -> None
        """Signal the whole group, and the interpreter also where it has left its group. Only while it is not reaped."""
        if self.status is not None:
            return
        if signum == signal.SIGKILL:
            self.killed = True
        try:
            led = os.getpgid(self.pid) == self.pid
        except OSError:
            led = True  # a zombie; its group may live
        try:
            os.killpg(self.pid, signum)
        except OSError:
            led = False
        if not led or signum == signal.SIGKILL:
            try:
                os.kill(self.pid, signum)
            except OSError:
                pass

    def nudge(self):
        # type: () -> None
        """Have it see to a SIGINT that it got in the moment before a system call that waits: Python notes a signal, and looks at its notes between two calls."""
        if self.status is None:
            try:
                os.kill(self.pid, gate.NUDGE)
            except OSError:
                pass

    def is_over(self):
        # type: () -> bool
        """Whether it has ended, reaped or not."""
        return self.status is not None or osdep.peek_child() == self.pid

    def oom_killed(self):
        # type: () -> bool
        """Whether the machine has killed for lack of memory since this interpreter was forked, and not we."""
        if self.killed or self.status is None or not os.WIFSIGNALED(self.status) or os.WTERMSIG(self.status) != signal.SIGKILL:
            return False
        return osdep.oom_kills() > self.oom_before >= 0

    def drain(self, feed, limit=4 << 20):
        # type: (object, int) -> None
        """Hand over what is left in the output pipes, at most `limit` bytes each: somebody may still be writing."""
        for kind, fd in ((b"o", self.stdout_fd), (b"e", self.stderr_fd)):
            left = limit
            while fd >= 0 and left > 0:
                data = loop.read_some(fd, READ_SIZE)
                if not data:
                    break
                left -= len(data)
                feed(kind, data)

    def close(self):
        # type: () -> None
        for fd in (self.in_fd, self.out_fd, self.stdout_fd, self.stderr_fd):
            if fd >= 0:
                os.close(fd)
        self.in_fd = self.out_fd = self.stdout_fd = self.stderr_fd = -1
        self.calls.close()


def _become_interpreter(spec, hello, read_fd, write_fd, stdout_fd, stderr_fd):
    """The forked child's way from the supervisor to the interpreter; never returns."""
    code = SETUP_FAILED
    try:
        # First of all, so that whatever fails later is told in the cell's stderr.
        os.dup2(stderr_fd, 2)
        os.dup2(stdout_fd, 1)
        osdep.null_on((0,))
        read_fd, write_fd = _above_standard(read_fd), _above_standard(write_fd)
        hello["calls"] = _above_standard(hello["calls"])
        lane = hello["lane"]
        osdep.close_all_except({0, 1, 2, read_fd, write_fd, hello["calls"]}.union((lane.take_fd, lane.answer_fd) if lane is not None else ()))
        try:
            os.setpgid(0, 0)
        except OSError:
            pass
        _default_signals()
        if "become" not in hello:
            os.environ.update(spec.get("env") or {})
            os.environ[osdep.MARK] = hello["kernel"]
            os.umask(spec.get("umask", 0o022))
            _enter(spec)
        _seed_anew()
        code = 97
        interpreter.serve(read_fd, write_fd, hello)
    except BaseException:  # nothing may run on into the supervisor's own code
        try:
            import traceback
            os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
        except BaseException:
            pass
    finally:
        os._exit(code)


def _enter(spec):
    """The place of a kernel, and its limits."""
    _go_to(spec.get("cwd"))
    osdep.apply_limits(spec.get("limits") or {})


def _above_standard(fd):
    """A close-on-exec descriptor that is none of 0, 1 and 2."""
    extra = []
    while fd <= 2:
        extra.append(fd)
        fd = os.dup(fd)
    return fd


def _default_signals():
    """What a Python that somebody started by hand would have: `&` and nohup leave signals ignored, the supervisor too."""
    osdep.set_wakeup_fd(-1)
    osdep.restore_dispositions(_DEFAULTS)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def _seed_anew():
    """Else all that are forked from one process would throw the same dice. Since 3.7 Python does the first by itself."""
    for name in ("random", "numpy.random"):
        module = sys.modules.get(name)
        if module is not None and (name != "random" or sys.version_info < (3, 7)):
            module.seed()


def _go_to(folder):
    """Enter the kernel's working directory. It was there when the kernel began; a Python without one breaks in odd places."""
    try:
        os.chdir(folder or "/")
        os.getcwd()
    except OSError as error:
        os.chdir("/")
        os.write(2, ("cannot enter %s (%s), using /\n" % (folder, error.strerror)).encode("utf-8", "backslashreplace"))
