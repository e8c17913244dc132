"""Everything that depends on the platform, so that no other module has to ask which one it runs on."""

import _signal
import errno
import fcntl
import os
import select
import signal
import struct
import sys
import termios
import time

try:
    import resource
except ImportError:  # not every Python is built with it
    resource = None  # type: ignore

LINUX = sys.platform.startswith("linux")
MARK = "FARCELL_KERNEL"  # every process that a kernel starts carries this name with the kernel's id
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SYS_PIDFD_OPEN = 434
_F_SETPIPE_SZ = getattr(fcntl, "F_SETPIPE_SZ", 1031)
_F_GETPIPE_SZ = getattr(fcntl, "F_GETPIPE_SZ", 1032)


# -- this process ------------------------------------------------------------------------------------------------------

_libc = None  # type: object


def libc():
    """The C library, opened once; it raises where that cannot be: ctypes is missing, half built, or forbidden by a policy."""
    global _libc
    if _libc is None:
        import ctypes  # takes longer than all else that a supervisor does before it stands
        _libc = ctypes.CDLL(None)
        if LINUX:
            _libc.prctl.argtypes = (ctypes.c_int,) + (ctypes.c_ulong,) * 4
    return _libc


def _prctl(option, value):
    # type: (int, int) -> bool
    """One call of prctl(2); False where there is no such thing."""
    if not LINUX:
        return False
    try:
        return libc().prctl(option, value, 0, 0, 0) == 0
    except Exception:
        return False


def set_subreaper():
    # type: () -> bool
    """Orphans among our descendants become our children instead of those of pid 1."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_pdeathsig(signum):
    # type: (int) -> bool
    """Ask for `signum` when the thread that forked us ends."""
    return _prctl(_PR_SET_PDEATHSIG, signum)


def new_session():
    # type: () -> bool
    """Leave the caller's session, so that its terminal's signals do not reach us."""
    try:
        os.setsid()
        return True
    except OSError:  # we lead a group already, which is as good
        return False


def open_fds():
    # type: () -> list
    """The numbers of all open descriptors, and that of the listing, which is closed again."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return [int(name) for name in os.listdir(folder) if name.isdigit()]
        except OSError:
            continue
    try:
        limit = min(os.sysconf("SC_OPEN_MAX"), 65536)
    except (OSError, ValueError):
        limit = 4096
    return list(range(limit))


def held_fds():
    # type: () -> set
    """The numbers of all open descriptors, and no other."""
    held = set()
    for fd in open_fds():
        try:
            os.fstat(fd)
            held.add(fd)
        except OSError:
            pass
    return held


def close_all_except(keep):
    # type: (set) -> None
    """Close every descriptor that is not in `keep`."""
    for fd in open_fds():
        if fd not in keep:
            os.closerange(fd, fd + 1)  # unlike close() it does not mind that one of them is the listing's own


def null_on(fds):
    # type: (tuple) -> None
    """Put /dev/null on the given descriptors; the standard ones stay inheritable."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in fds:
        if fd != null:
            os.dup2(null, fd)
    if null not in fds:
        os.close(null)


def apply_limits(limits):
    # type: (dict) -> None
    """Set the resource limits of a spec; a wish above the hard limit becomes the hard limit."""
    if resource is None:
        return
    wanted = [("RLIMIT_CORE", 0), ("RLIMIT_AS", limits.get("memory_bytes")), ("RLIMIT_NPROC", limits.get("processes")),
              ("RLIMIT_CPU", limits.get("cpu_seconds")), ("RLIMIT_NOFILE", limits.get("open_files"))]
    for name, value in wanted:
        which = getattr(resource, name, None)
        if which is None or value is None:
            continue
        hard = resource.getrlimit(which)[1]
        soft = int(value)
        if hard != resource.RLIM_INFINITY:
            soft = min(soft, hard)
        if name == "RLIMIT_CPU" and (hard == resource.RLIM_INFINITY or hard > soft):
            top = soft + 1  # the soft limit sends SIGXCPU, which has a name; one second later comes SIGKILL
        else:
            top = soft
        resource.setrlimit(which, (soft, top))


def limit_hint(failure):
    # type: (BaseException) -> object
    """What an exception has to do with a limit of this process, in a sentence; None for nothing."""
    number = getattr(failure, "errno", None) if isinstance(failure, OSError) else None
    if isinstance(failure, MemoryError) or number == errno.ENOMEM:
        limit = _limit("RLIMIT_AS")
        return "out of memory%s" % ("" if limit is None else ": the limit memory_bytes of %d (%d MiB) was reached" % (limit, limit >> 20))
    if number == errno.EMFILE:
        return "too many files are open: the limit open_files is %s" % _limit("RLIMIT_NOFILE")
    if number == errno.EAGAIN or isinstance(failure, RuntimeError) and "start new thread" in str(failure):
        limit = _limit("RLIMIT_NPROC")
        if limit is not None:
            return "where this is about a new process or thread: the limit processes of %d was reached" % limit
    return None


def _limit(name):
    """The soft limit of this process; None where there is none."""
    which = getattr(resource, name, None)
    soft = None if which is None else resource.getrlimit(which)[0]
    return None if soft is None or soft == resource.RLIM_INFINITY else soft


def open_files_limit():
    # type: () -> object
    """How many descriptors this process may have; None where there is no such limit."""
    return _limit("RLIMIT_NOFILE")


# -- descriptors -------------------------------------------------------------------------------------------------------

_NOTHING = struct.pack("i", 0)


def bytes_available(fd):
    # type: (int) -> int
    """How many bytes a pipe holds right now."""
    try:
        return struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, _NOTHING))[0]
    except OSError:
        return 0


def set_pipe_size(fd, size):
    # type: (int, int) -> bool
    """Make a pipe larger or smaller; where that is not possible the usual size has to do."""
    if not LINUX:
        return False
    try:
        fcntl.fcntl(fd, _F_SETPIPE_SZ, size)
        return True
    except (OSError, ValueError):
        return False


def pipe_size(fd):
    # type: (int) -> int
    """How many bytes a pipe has room for; 0 where that cannot be known."""
    if not LINUX:
        return 0
    try:
        return fcntl.fcntl(fd, _F_GETPIPE_SZ)
    except (OSError, ValueError):
        return 0


def lock_exclusive(fd, seconds):
    # type: (int, float) -> bool
    """Take the exclusive lock; probes hold the shared one for an instant, so a refusal is tried again for a while."""
    end = time.monotonic() + seconds
    pause = select.poll()
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EINTR):
                raise
        if time.monotonic() >= end:
            return False
        pause.poll(5)


def unnamed_file(folder):
    # type: (str) -> int
    """A new file in `folder` that has no name there, and so needs nobody to remove it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    path = os.path.join(folder, ".farcell-%d-%s" % (os.getpid(), os.urandom(8).hex()))
    fd = os.open(path, flags, 0o600)
    os.unlink(path)
    return fd


def memory_file():
    # type: () -> int
    """A new file in memory, which needs no directory; OSError where there is no such thing."""
    create = getattr(os, "memfd_create", None)
    if create is not None:
        return create("farcell")
    try:
        fd = libc().memfd_create(b"farcell", 1)  # MFD_CLOEXEC
    except Exception:
        fd = -1
    if fd < 0:
        raise OSError(errno.ENOSYS, "no files in memory")
    return fd


def free_bytes(path):
    # type: (str) -> int
    """Free space of the file system that holds `path`; 0 where it cannot be told."""
    try:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize
    except OSError:
        return 0


def file_system(path):
    # type: (str) -> str
    """The type of the file system that holds `path`, as the kernel calls it; empty where it cannot be told."""
    try:
        device = os.stat(path).st_dev
        wanted = ("%d:%d" % (os.major(device), os.minor(device))).encode()
        with open("/proc/self/mountinfo", "rb") as file:
            for line in file:
                words = line.split()
                if len(words) > 6 and words[2] == wanted:
                    return words[words.index(b"-", 6) + 1].decode("ascii", "replace")
    except (OSError, ValueError, IndexError):
        pass
    return ""


def set_wakeup_fd(fd):
    # type: (int) -> None
    """Have the C part of Python's signal handling write each signal's number to `fd`."""
    quiet = {"warn_on_full_buffer": False} if sys.version_info >= (3, 7) else {}
    signal.set_wakeup_fd(fd, **quiet)


def dispositions():
    # type: () -> dict
    """What this process does on each signal, as restore_dispositions() takes it. Python keeps a table: no system call."""
    return {number: _signal.getsignal(number) for number in range(1, signal.NSIG)}


def restore_dispositions(wanted):
    # type: (dict) -> None
    """Change those that differ. signal's own functions would spend more time on making enums than all the rest takes."""
    for number, handler in wanted.items():
        if handler is not None and _signal.getsignal(number) != handler:
            try:
                _signal.signal(number, handler)
            except (OSError, ValueError):  # SIGKILL, and what the C library keeps for itself
                pass


# -- other processes ---------------------------------------------------------------------------------------------------

def _read_small(path, size=4096):
    # type: (str, int) -> bytes
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)


def stat_fields(pid):
    # type: (int) -> list
    """Fields of /proc/PID/stat from the third on (state, ppid, ...); empty where there is no such process."""
    try:
        data = _read_small("/proc/%d/stat" % pid)
    except OSError:
        return []
    return data[data.rfind(b")") + 2:].split()  # the name in brackets may hold anything, even brackets


def proc_start_time(pid):
    # type: (int) -> int
    """Field 22 of /proc/PID/stat; 0 where it cannot be told."""
    fields = stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else 0


_boot_id = None  # type: object


def boot_id():
    # type: () -> str
    """What tells one boot of this machine from the next; empty where there is no such thing."""
    global _boot_id
    if _boot_id is None:
        try:
            _boot_id = _read_small("/proc/sys/kernel/random/boot_id").decode("ascii").strip()
        except (OSError, ValueError):
            _boot_id = ""
    return _boot_id


def process_ids():
    # type: () -> list
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def descendants(root):
    # type: (int) -> list
    """All living descendants of `root` as (pid, start time); zombies are left out, but looked through."""
    children = {}  # type: dict
    facts = {}
    for pid in process_ids():
        fields = stat_fields(pid)
        if len(fields) > 19:
            children.setdefault(int(fields[1]), []).append(pid)
            facts[pid] = (fields[0], int(fields[19]))
    found = []
    todo = list(children.get(root, ()))
    while todo:
        pid = todo.pop()
        state, start = facts[pid]
        if state not in (b"Z", b"X"):
            found.append((pid, start))
        todo.extend(children.get(pid, ()))
    return found


def parent_of(pid):
    # type: (int) -> int
    """0 where there is no such process."""
    fields = stat_fields(pid)
    return int(fields[1]) if len(fields) > 1 else 0


def mark_of(pid):
    # type: (int) -> str
    """The kernel that a process was started by; empty where there is none, or it may not be asked."""
    try:
        data = _read_small("/proc/%d/environ" % pid, 1 << 17)
    except OSError:
        return ""
    prefix = (MARK + "=").encode("ascii")
    return next((entry[len(prefix):].decode("ascii", "replace") for entry in data.split(b"\0") if entry.startswith(prefix)), "")


def pids_with_mark(name, value):
    # type: (str, str) -> list
    """Processes of our user that were started with `name=value` in their environment, as (pid, start time); not ourselves."""
    needle = ("%s=%s" % (name, value)).encode()
    own, uid = os.getpid(), os.getuid()
    found = []
    for pid in process_ids():
        if pid == own:
            continue
        try:
            if os.stat("/proc/%d" % pid).st_uid != uid:
                continue
            with open("/proc/%d/environ" % pid, "rb") as file:
                marked = needle in file.read().split(b"\0")
        except OSError:
            continue
        if marked:
            fields = stat_fields(pid)
            if len(fields) > 19 and fields[0] not in (b"Z", b"X"):
                found.append((pid, int(fields[19])))
    return found


def kill_marked(kernel):
    # type: (str) -> None
    """End what is left of a kernel whose supervisor is dead and can no longer do it."""
    for pid, start_time in pids_with_mark(MARK, kernel):
        kill_exact(pid, start_time, signal.SIGKILL)


def kill_exact(pid, start_time, signum):
    # type: (int, int, int) -> bool
    """Signal the process with this pid and start time, and no other that may have got the pid since."""
    handle = -1
    opener, sender = getattr(os, "pidfd_open", None), getattr(signal, "pidfd_send_signal", None)
    if opener is not None and sender is not None:
        try:
            handle = opener(pid)
        except OSError as error:
            if error.errno == errno.ESRCH:
                return False
    try:
        if proc_start_time(pid) != start_time:
            return False
        if handle >= 0:
            sender(handle, signum)
        else:
            os.kill(pid, signum)
        return True
    except OSError:
        return False
    finally:
        if handle >= 0:
            os.close(handle)


def pidfd_open(pid):
    # type: (int) -> int
    """A descriptor that becomes readable when the process ends; -1 where there is none, or no such thing. Pythons before 3.9 have no name for it."""
    opener = getattr(os, "pidfd_open", None)
    try:
        if opener is not None:
            return opener(pid)
        if not LINUX or os.uname().machine == "alpha":
            return -1
        import ctypes
        fd = ctypes.CDLL(None, use_errno=True).syscall(_SYS_PIDFD_OPEN, pid, 0)  # it sets close-on-exec by itself
    except Exception:  # no such process; ctypes can be missing, half built, or forbidden to load by a policy
        return -1
    return fd if fd >= 0 else -1


def wake_word(fifo, pidfd):
    # type: (bool, bool) -> str
    """How those who wait for a kernel hear of what happens there."""
    if not fifo:
        return "poll"
    return "fifo+pidfd" if pidfd else "fifo"


def signal_name(number):
    # type: (int) -> str
    try:
        return signal.Signals(number).name
    except ValueError:
        return "SIG%d" % number


def peek_child():
    # type: () -> int
    """The pid of a child that has ended, left unreaped so that its pid and group cannot be anybody else's yet; 0 for none.

    -1 says that this system cannot tell without reaping."""
    waitid = getattr(os, "waitid", None)
    if waitid is None:
        return -1
    try:
        ended = waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    except OSError:
        return -1
    return ended.si_pid if ended is not None else 0


def reap_ended():
    # type: () -> None
    """Collect all children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] > 0:
            pass
    except ChildProcessError:
        pass


# -- the out-of-memory killer ------------------------------------------------------------------------------------------

def _oom_files():
    # type: () -> list
    """Where a count of processes killed for lack of memory may stand, the closest to us first."""
    files = []
    try:
        lines = _read_small("/proc/self/cgroup", 1 << 14).decode("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        if parts[0] == "0" and not parts[1]:
            files.append("/sys/fs/cgroup" + parts[2].rstrip("/") + "/memory.events")
            files.append("/sys/fs/cgroup/memory.events")
        elif "memory" in parts[1].split(","):
            files.append("/sys/fs/cgroup/memory" + parts[2].rstrip("/") + "/memory.oom_control")
            files.append("/sys/fs/cgroup/memory/memory.oom_control")
    files.append("/proc/vmstat")
    return files


_oom_file = ""  # where it stood the last time


def oom_kills():
    # type: () -> int
    """How many processes around us the out-of-memory killer has ended so far; -1 where it cannot be told."""
    global _oom_file
    count = _oom_count(_oom_file) if _oom_file else -1
    if count >= 0:
        return count
    for path in _oom_files():
        count = _oom_count(path)
        if count >= 0:
            _oom_file = path
            break
    return count


def _oom_count(path):
    try:
        for line in _read_small(path, 1 << 15).split(b"\n"):
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return -1
