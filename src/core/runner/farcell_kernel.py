"""The program of a kernel: `farcell_kernel.py <kernel directory>`, or `--pipes <fd>` for a kernel over pipes whose header is read from that fd,
or `--zygote <directory>` for the process that kernels are forked from.

It is a program of its own, started without -S -E -s, because a user's cells want site-packages and the PYTHON* variables.
"""

import fcntl
import os
import sys

# What launch.py leaves open beside the three standard descriptors: the lock that says "a kernel is being started here".
START_LOCK_FD = 3


def import_ours(module):
    """Import a module of ours, with its byte code cached beside it whatever the user's variables say."""
    before = {name: getattr(sys, name) for name in ("dont_write_bytecode", "pycache_prefix") if hasattr(sys, name)}
    for name in before:
        setattr(sys, name, None)
    try:
        return getattr(__import__("_farcell." + module), module)
    finally:
        for name, value in before.items():
            setattr(sys, name, value)


def hold_base(base):
    """Share a lock on the base directory for life: systemd-tmpfiles leaves a locked directory, and all below it, alone."""
    try:
        fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        # It only guards against a cleaner; a kernel works without it.
        pass


def close_on_exec(fd):
    try:
        os.set_inheritable(fd, False)
    except OSError:
        pass


def read_header(fd):
    from _farcell import files
    with open(fd, "rb") as source:
        return files.fastjson.loads(source.read())


def main(argv):
    here = os.path.dirname(os.path.abspath(__file__))
    # Cells see what an interactive Python shows: the working directory first, and nothing of ours.
    if sys.path and os.path.abspath(sys.path[0] or ".") == here:
        del sys.path[0]
    sys.path.insert(0, here)
    if argv[1] == "--zygote":
        zygote = import_ours("zygote")
        sys.path[0] = ""
        zygote.main(argv[2])
    supervisor = import_ours("supervisor")
    sys.path[0] = ""
    if argv[1] == "--pipes":
        supervisor.main_pipes(read_header(int(argv[2])), 0, 1)
        return
    close_on_exec(START_LOCK_FD)
    hold_base(os.path.dirname(argv[1]))
    supervisor.main_detached(argv[1])


if __name__ == "__main__":
    main(sys.argv)
