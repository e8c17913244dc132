"""A bare interpreter in a forked process, as the supervisor would start it: for tests."""

import json
import os
import select
import signal
import struct
import sys
import threading
import time

RUNNER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if RUNNER not in sys.path:
    sys.path.insert(0, RUNNER)

from _farcell import frames, gate  # noqa: E402

PATIENCE = 60.0          # for one cell; other builds run on the same machine


class Drain(threading.Thread):
    """Reads a pipe to its end, as the supervisor does all the time."""

    def __init__(self, fd):
        threading.Thread.__init__(self)
        self.daemon = True
        self.fd = fd
        self.data = bytearray()
        self.start()

    def run(self):
        while True:
            part = os.read(self.fd, 65536)
            if not part:
                os.close(self.fd)
                return
            self.data += part

    def settled(self):
        """What has been printed: the pipe holds nothing that this thread has not taken over."""
        deadline = time.monotonic() + PATIENCE
        mark = b'\0%d\0' % id(object())
        os.write(self.end, mark)
        while mark not in self.data:
            if time.monotonic() > deadline:
                raise AssertionError('output does not end')
            select.select([], [], [], 0.0005)
        at = self.data.index(mark)
        text = bytes(self.data[:at])
        del self.data[:at + len(mark)]
        return text


class Kernel(object):
    """with Kernel() as kernel: kernel.run('1 + 1')"""

    def __init__(self, prepare=None, **hello):
        request, self.fd = os.pipe()
        self.answers, answer = os.pipe()
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        # No signal is to come before the handler: the interpreter unblocks it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setpgid(0, 0)
                null = os.open(os.devnull, os.O_RDONLY)
                for fd, place in ((null, 0), (out_end, 1), (err_end, 2)):
                    os.dup2(fd, place)
                for fd in (null, out_end, err_end, self.fd, self.answers, out, err):
                    os.close(fd)
                if prepare is not None:
                    prepare()
                from _farcell import interpreter
                interpreter.serve(request, answer, dict(hello, kernel='k-test', generation=1))
            finally:
                os._exit(99)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(request)
        os.close(answer)
        self.out, self.err = Drain(out), Drain(err)
        self.out.end, self.err.end = out_end, err_end
        self.number = 0
        self.status = None
        self.interrupted = False

    def send(self, code, **fields):
        self.number += 1
        fields.update(number=self.number, id='%032x' % self.number, code=code)
        frames.write_all(self.fd, frames.pack(b'X', json.dumps(fields).encode()))
        return self.number

    def frame(self):
        deadline = time.monotonic() + PATIENCE
        pause = 0.02
        while True:
            if select.select([self.answers], [], [], pause if self.interrupted else PATIENCE)[0]:
                return frames.read_frame(self.answers)
            if time.monotonic() > deadline:
                raise AssertionError('no answer in time')
            if self.interrupted:         # as the supervisor does
                os.kill(self.pid, gate.NUDGE)
                pause = min(pause * 2, 1.0)

    def reply(self):
        """The reply, with displays, stdout and stderr in it."""
        displays = []
        while True:
            frame = self.frame()
            if frame is None:
                raise AssertionError('the interpreter is gone: %r' % bytes(self.err.data))
            kind, payload = frame
            if kind == b'r':
                break
            assert kind == b'd', kind
            assert struct.unpack('>I', payload[:4])[0] == self.number
            displays.append(json.loads(payload[4:].decode()))
        self.interrupted = False
        reply = json.loads(payload.decode())
        assert reply['number'] == self.number, reply
        reply['displays'] = displays
        reply['stdout'] = self.out.settled().decode('utf-8', 'surrogateescape')
        reply['stderr'] = self.err.settled().decode('utf-8', 'surrogateescape')
        return reply

    def run(self, code, **fields):
        self.send(code, **fields)
        return self.reply()

    def value(self, code, **fields):
        """The text of the result of a cell that must succeed."""
        reply = self.run(code, **fields)
        if reply['status'] != 'ok':
            raise AssertionError('%s\n%s' % (reply['error'], reply['error']['traceback']))
        return reply['result'] and reply['result']['text/plain']

    def wait_for(self, text, stream=None):
        """Until the running cell has printed this."""
        deadline = time.monotonic() + PATIENCE
        stream = stream or self.out
        while text.encode() not in stream.data:
            if time.monotonic() > deadline:
                raise AssertionError('%r was not printed, but %r' % (text, bytes(stream.data)))
            select.select([], [], [], 0.0005)

    def interrupt(self):
        """As the supervisor does: the frame that tells that it is for the cell before it, then the signal."""
        self.interrupted = True
        frames.write_all(self.fd, frames.pack(b'I', b''))
        os.kill(self.pid, signal.SIGINT)

    def wait(self):
        """The interpreter's wait status, once it has ended."""
        deadline = time.monotonic() + PATIENCE
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
            elif time.monotonic() > deadline:
                raise AssertionError('the interpreter does not end')
            else:
                select.select([], [], [], 0.0005)
        return self.status

    def close(self):
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except OSError:
            pass
        self.wait()
        os.close(self.answers)
        for drain in (self.out, self.err):
            os.close(drain.end)
            drain.join(PATIENCE)
