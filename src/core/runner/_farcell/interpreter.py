"""The process that runs user code: takes cells from the supervisor, one after the other, and answers each once."""

import _signal           # signal's own functions spend microseconds on making enums
import builtins
import gc
import os
import select
import struct
import sys
import types
from _thread import allocate_lock

# All of it before the fork: an interpreter that is replaced weeks later must not depend on files that may be gone.
from . import awaiting, display, execute, figures, frames, gate, osdep, patches, sources, streams, tools, tracebacks, wire
from .guarded import BUILTINS as __builtins__

_NUMBER = struct.Struct('>I')
_USUAL = {getattr(_signal, name): _signal.SIG_IGN for name in ('SIGPIPE', 'SIGXFSZ') if hasattr(_signal, name)}   # as Python itself does
_USUAL[_signal.SIGTERM] = _signal.SIG_DFL
_HELD = 16               # displays of threads between two cells that are kept for the next one
_exit = os._exit
_getpid = os.getpid
_chdir = os.chdir
_poll = select.poll


_made_before = None  # type: object


def make_beforehand():
    """What every interpreter that is forked from this process would make for itself."""
    global _made_before
    # On pipes, as it will be: streams ask what they stand on.
    before = [os.dup(fd) for fd in (1, 2)]
    pipe = os.pipe()
    for fd in (1, 2):
        os.dup2(pipe[1], fd)
    try:
        _made_before = Interpreter()
    finally:
        for fd, old in zip((1, 2), before):
            os.dup2(old, fd)
        for fd in before + list(pipe):
            os.close(fd)


def serve(read_fd, write_fd, hello):
    # type: (int, int, dict) -> None
    """Never returns: ends with the supervisor's pipe."""
    code = 70
    try:
        # A signal for a cell that is already in the pipe waits until there is a handler for it.
        _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGINT,))
        osdep.set_pdeathsig(_signal.SIGKILL)
        if os.getppid() != hello.get('supervisor', os.getppid()):
            _exit(0)             # it died before the kernel could be told to watch it
        interpreter = (_made_before or Interpreter()).attach(read_fd, write_fd, hello)
        if 'become' in hello:
            interpreter.wait_for_name(hello)
        interpreter.serve()
        code = 0
    except BaseException:        # ours, not a cell's
        _report()
    finally:
        _exit(code)


def _report():
    try:
        error = sys.exc_info()[1]
        text = ''.join(tracebacks.traceback.format_exception(type(error), error, error.__traceback__))
        os.write(2, ('farcell: the interpreter failed\n' + text).encode('utf-8', 'backslashreplace'))
    except BaseException:
        pass


class Channel(object):
    """The two pipes to the supervisor. A forked child has none."""

    def __init__(self, read_fd, write_fd):
        # type: (int, int) -> None
        self.pid = _getpid()
        self.read_fd = streams.move_high(read_fd)
        self.write_fd = streams.move_high(write_fd)
        os.close(read_fd)
        os.close(write_fd)
        self._lock = allocate_lock()
        self._ready = _poll()
        self._ready.register(self.read_fd, select.POLLIN)
        self._track = None
        self._ahead = b''            # read already, of a frame that comes after

    def receive(self):
        # A frame is one write of the supervisor's as a rule, and so one read here.
        frame, self._ahead = frames.read_next(self.read_fd, self._ahead)
        return frame

    def watch(self, track):
        """Wait for the lane, too."""
        self._track = track
        self._ready.register(track.read_fd, select.POLLIN)

    def wait(self):
        """Until there is a frame of the supervisor's (True) or, with nothing of it, a request in the lane (False)."""
        if self._ahead:
            return True
        for fd, events in self._ready.poll():
            if fd == self.read_fd:
                return True
            if not events & select.POLLIN:       # closed by a cell: the supervisor finds what comes there
                self._ready.unregister(fd)
        return False

    def readable(self):
        return bool(self._ahead or self._ready.poll(0))

    def send(self, kind, payload):
        # type: (bytes, bytes) -> None
        """One whole frame; threads may call it, signals do not cut it."""
        if _getpid() != self.pid:
            return
        with self._lock:
            frames.write_all(self.write_fd, frames.pack(kind, payload))

    def close(self):
        for name in ('read_fd', 'write_fd'):
            fd = getattr(self, name)
            setattr(self, name, -1)
            try:
                os.close(fd)
            except OSError:
                pass


class Interpreter(object):
    """Everything that lasts from cell to cell. A zygote makes one for all its kernels, which get on with attach()."""

    def __init__(self):
        self._channel = None  # type: object
        self._streams = streams.Streams()
        self._number = 0
        self._shown = False      # whether the cell has displayed something
        self._held = []
        self._track = None  # type: object
        self.gate = gate.Gate()
        self.gate.shield(Channel.send)
        self.gate.outside(serve)
        self._displays = display.Displays(self._publish)
        builtins.display = self._displays.display
        kept = sources.Sources()
        self._awaiting = awaiting.Awaiting(self.gate, self._readable)
        self._executor = execute.Executor(self.gate, _fresh_main(), kept, self._awaiting)
        self._tools = tools.Tools()
        self._patch_modules(kept)

    def attach(self, read_fd, write_fd, hello):
        # type: (int, int, dict) -> Interpreter
        """Become the interpreter of a kernel, in the process where it is to run."""
        self._channel = channel = Channel(read_fd, write_fd)
        self._streams.attach()
        if hello.get('lane') is not None:
            self._track = hello['lane'].track(streams.move_high, self._streams.saved[1:], hello['kernel'], hello['generation'], channel.send)
            channel.watch(self._track)
        if hello.get('calls') is not None:
            self._tools.attach(hello['calls'])
        self.gate.attach(channel.readable)
        self._reset_signals()
        figures.choose_backend()
        self._close_when_forked()
        if hello.get('cwd'):
            try:
                _chdir(hello['cwd'])
            except OSError:
                pass             # the supervisor has checked it; it may have gone since
        _freeze()
        return self

    def wait_for_name(self, hello):
        """Stand ready until the supervisor says which kernel's this is, before it sends anything else."""
        frame = self._channel.receive()
        if frame is None or frame[0] != b'i':
            _exit(0)
        identity = wire.decode(frame[1])
        hello['become'](identity)
        if self._track is not None:
            self._track.named(identity['kernel'], hello['generation'])

    def _readable(self):
        return self._channel.readable()

    def _patch_modules(self, kept):
        patches.Patches({
            'inspect': patches.classes_of_cells(kept),
            'multiprocessing.context': patches.fork_by_default,
            'matplotlib.pyplot': self._patch_pyplot,
        }).install()

    def _reset_signals(self):
        """A shell starts what it puts into the background with SIGINT ignored."""
        self.gate.install()
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        osdep.restore_dispositions(_USUAL)

    def _close_when_forked(self):
        register = getattr(os, 'register_at_fork', None)         # 3.7
        if register is not None:
            register(after_in_child=self._in_child)

    def _in_child(self):
        self._channel.close()
        if self._track is not None:
            self._track.close()
        for fd in self._streams.saved:
            try:
                os.close(fd)
            except OSError:
                pass

    def _patch_pyplot(self, pyplot):
        figures.patch(pyplot, self._displays.publish)

    def serve(self):
        """Cell after cell, until the supervisor's pipe ends."""
        channel, track = self._channel, self._track
        fds = (channel.read_fd,) if track is None else (channel.read_fd, track.read_fd)
        while True:
            self._awaiting.idle(*fds)
            if _getpid() != channel.pid:
                _exit(0)         # forked by a task between two cells
            if track is not None and not channel.wait():
                request = track.take()
                if request is not None:
                    reply = self.serve_cell(request)
                    if not track.answer(reply, self._shown):
                        channel.send(b'r', wire.encode(reply))
                    self._tidy()
                continue
            frame = channel.receive()
            if frame is None:
                return
            request = _request(*frame)
            frame = None         # it may be long
            if request is not None:
                if track is not None:
                    track.note(request['id'])
                channel.send(b'r', wire.encode(self.serve_cell(request)))
                self._tidy()

    def _tidy(self):
        """What the cell has left, put in order while nobody waits."""
        self._streams.restore_descriptors()
        self.gate.install()

    def serve_cell(self, request):
        """One cell and its answer, which is sent by whoever has brought it."""
        self._number = request['number']
        self._shown = False
        try:
            reply = self._cell(request)
        except BaseException as error:       # the cell has broken what this file stands on
            reply = _broken(error)
        self.gate.end()
        reply['number'] = self._number
        return reply

    def _cell(self, request):
        # type: (dict) -> dict
        self.gate.begin()
        self._streams.restore()
        self._displays.begin()
        self._send_held()
        reply = self._place(request)
        if reply is None:
            reply = self._executor.run(self._number, request['code'], request.get('echo', 'last'))
            self._finish()
        return reply

    def _place(self, request):
        """Environment and working directory; a reply if the cell cannot run there."""
        for name, value in (request.get('env') or {}).items():
            try:
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            except (OSError, ValueError) as error:
                return _refusal(error, 'cannot set the environment variable %r' % name)
        cwd = request.get('cwd')
        if cwd:
            try:
                _chdir(cwd)
            except (OSError, ValueError) as error:
                return _refusal(error, 'cannot change to the working directory %r' % cwd)
        try:
            self._tools.begin(request.get('tools'), self._executor.in_context)
        except ImportError as error:
            return _refusal(error, 'cannot have the tools')
        return None

    def _finish(self):
        """Figures and buffers; they may hang or fail as any code of the user's."""
        if figures.are_possible():
            self._run_step(self._publish_figures)
        if self._streams.are_plain():
            self._streams.flush_c()
        else:
            self._run_step(self._streams.flush)

    def _run_step(self, step):
        self.gate.pending = False        # too late: the code has come to its end
        try:
            self.gate.run(step)
        except BaseException:
            pass
        if _getpid() != self._channel.pid:
            _exit(0)

    def _publish_figures(self):
        figures.publish_open(self._displays.publish)

    def _publish(self, bundle):
        """Sends a display; one of a thread between two cells waits for the next."""
        if not self.gate.running:
            if len(self._held) < _HELD:
                self._held.append(bundle)
            return
        self._shown = True
        self._channel.send(b'd', _NUMBER.pack(self._number) + wire.encode(bundle))
        self.gate.release()

    def _send_held(self):
        held, self._held = self._held, []
        for bundle in held:
            self._shown = True
            self._channel.send(b'd', _NUMBER.pack(self._number) + wire.encode(bundle))


def _request(kind, payload):
    """The cell that a frame has us run, or None where it does not."""
    if kind == b'X':
        return wire.decode(payload)
    if kind == b'x':
        view, end = memoryview(payload), _NUMBER.size + _NUMBER.unpack_from(payload)[0]
        request = wire.decode(view[_NUMBER.size:end])
        request['code'] = str(view[end:], 'utf-8', 'surrogatepass')
        return request
    return None


def _broken(error):
    """The reply where our own code could not go on, say because the cell has replaced a builtin."""
    told = tracebacks.describe(error)
    return {'status': 'error', 'result': None, 'exit_code': 1, 'error': {
        'kind': 'protocol', 'name': told['name'], 'message': told['message'], 'traceback': told['traceback'],
        'hint': 'something that the interpreter itself needs was replaced; a reset makes a new one'}}


def _refusal(error, message):
    return {'status': 'error', 'result': None, 'exit_code': 1, 'error': {
        'kind': 'spawn', 'name': type(error).__name__, 'traceback': '',
        'message': '%s: %s' % (message, getattr(error, 'strerror', None) or error),
        'hint': 'the cell has not run'}}


_clean_path = []         # what clean_path() has left


def clean_path():
    """Cells find what an interactive Python finds: the working directory first, and nothing of ours."""
    here = globals().get('__file__')     # none where we came with a command
    ours = here and os.path.realpath(os.path.dirname(os.path.dirname(os.path.abspath(here))))
    sys.path[:] = [''] + [each for each in sys.path if each and os.path.realpath(each) != ours]
    _clean_path[:] = sys.path


def _fresh_main():
    """An empty __main__ as at the prompt, where pickle and multiprocessing look for what the cells define."""
    main = types.ModuleType('__main__')
    main.__builtins__ = builtins
    if sys.path != _clean_path:
        clean_path()
    sys.argv[:] = ['']
    # What belongs to the program that was __main__ so far lives as long as we do.
    sys.modules['_farcell.__main__'] = sys.modules.get('__main__', main)
    sys.modules['__main__'] = main
    return main


def _freeze():
    """What exists now is never garbage: keep the collector from walking, and so from unsharing, it."""
    if hasattr(gc, 'freeze'):        # 3.7
        gc.freeze()  # novm
