"""A kernel that was forked from a zygote cannot be told from one that was started, by nobody."""

import os
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests.link_harness import gone, until
from tests.warm_kit import WarmTest

from _farcell import osdep

# What a process can find out about itself; paths of its own directory are made alike.
FACTS = r"""
import builtins, os, resource, signal, socket, stat, subprocess, sys, threading
def facts():
    mark = os.environ['FARCELL_KERNEL']
    def alike(text):
        return text.replace(mark, 'KERNEL')
    def kind(fd):
        mode = os.fstat(fd).st_mode
        return 'fifo' if stat.S_ISFIFO(mode) else 'char' if stat.S_ISCHR(mode) else 'other'
    found = {}
    found['environment'] = {name: alike(value) for name, value in os.environ.items()}
    found['environment of a child'] = sorted(alike(line) for line in subprocess.check_output(['env', '-0']).decode().split('\0') if not line.startswith('_='))
    found['cwd'] = os.getcwd()
    mask = os.umask(0)
    os.umask(mask)
    found['umask'] = mask
    handlers = {number: signal.getsignal(number) for number in range(1, signal.NSIG)}
    found['signals'] = {number: getattr(handler, '__name__', str(handler)) for number, handler in handlers.items()}
    found['mask'] = sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))
    found['ignored'] = [line.split()[1] for line in open('/proc/self/status') if line.startswith(('SigIgn', 'SigBlk'))]
    found['leads its group, not its session'] = (os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid())
    found['terminal'] = open('/proc/self/stat').read().rsplit(')', 1)[1].split()[4]
    found['descriptors'] = {fd: kind(fd) for fd in range(3)}, len([fd for fd in map(int, os.listdir('/proc/self/fd')) if fd > 2])
    found['inheritable'] = [os.get_inheritable(fd) for fd in map(int, os.listdir('/proc/self/fd')) if fd < 3]
    found['argv'] = sys.argv, alike(str(getattr(sys, 'orig_argv', None)))
    found['command line'] = alike(open('/proc/self/cmdline').read().rstrip('\0'))
    found['supervisor'] = alike(open('/proc/%d/cmdline' % os.getppid()).read().rstrip('\0'))
    found['name'] = open('/proc/self/comm').read()
    found['marks'] = ['FARCELL_KERNEL=' + mark in open('/proc/%d/environ' % pid).read().split('\0') for pid in (os.getpid(), os.getppid())]
    main = sys.modules['__main__']
    found['main'] = sorted(vars(main)), main.__name__, hasattr(main, '__file__'), main.__builtins__ is builtins
    found['path'] = sys.path
    found['flags'] = str(sys.flags), sys.dont_write_bytecode, str(getattr(sys, 'pycache_prefix', None))
    found['builtins'] = sorted(vars(builtins))
    found['finders'] = [str(getattr(each, '__name__', type(each).__name__)) for each in sys.meta_path]
    found['hooks'] = sys.displayhook.__qualname__, sys.excepthook is sys.__excepthook__
    found['streams'] = [(each.name, each.mode, each.encoding, each.errors, each.line_buffering, each.seekable(), each.isatty(), each.fileno())
                        for each in (sys.stdin, sys.stdout, sys.stderr)]
    found['streams are the originals'] = sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__
    found['read'] = sys.stdin.read()
    found['threads'] = threading.active_count(), len(os.listdir('/proc/self/task'))
    found['limits'] = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith('RLIMIT_')}
    found['nice'] = os.nice(0)
    found['locale'] = __import__('locale').setlocale(0), sys.getfilesystemencoding()
    found['recursion'] = sys.getrecursionlimit()
    found['modules'] = sorted(name for name in sys.modules if name.partition('.')[0] in ('numpy', 'json', 'asyncio', 'socket'))
    return found
facts()
"""
LIMITS = {"memory_bytes": 2 << 30, "processes": 5000, "cpu_seconds": 300, "open_files": 300, "spill_bytes": 67108864}


class Alike(WarmTest):
    def compare(self, **spec):
        cold, first, second = self.spawn_cold(**spec), self.spawn(**spec), self.spawn(**spec)
        self.assertFalse(self.is_warm(cold))
        wanted = self.value(cold, FACTS)
        for kernel in (first, second):
            self.assertWarm(kernel)
            found = self.value(kernel, FACTS)
            self.assertEqual(sorted(found), sorted(wanted))
            for name in wanted:
                self.assertEqual(found[name], wanted[name], name)
            self.assertEqual(self.run_cell(kernel, "1")["kernel"], dict(self.run_cell(cold, "1")["kernel"], id=kernel["id"]))
        return wanted

    def test_a_process_finds_the_same_of_itself(self):
        self.compare()

    def test_with_a_directory_variables_and_limits(self):
        folder = os.path.join(self.far.root, "work")
        os.mkdir(folder)
        wanted = self.compare(cwd=folder, env={"COLOUR": "blue", "caf\u00e9": "\u20ac", "HOME": folder}, limits=LIMITS)
        self.assertEqual((wanted["cwd"], wanted["environment"]["COLOUR"], wanted["limits"]["RLIMIT_NOFILE"]), (folder, "blue", (300, 300)))

    def test_a_home_of_its_own_is_for_its_cells(self):
        self.assertEqual(self.compare(env={"HOME": self.far.root})["environment"]["HOME"], self.far.root)

    def test_what_the_caller_has_is_taken_over_and_not_what_the_first_caller_had(self):
        os.environ["FIRST"] = "1"
        before = os.umask(0o027)
        try:
            one = self.spawn()
            os.umask(0o002)
            del os.environ["FIRST"]
            os.environ["SECOND"] = "2"
            two = self.spawn()
        finally:
            os.umask(before)
        code = "import os; m = os.umask(0); os.umask(m); (os.environ.get('FIRST'), os.environ.get('SECOND'), m)"
        self.assertEqual(self.value(one, code), ("1", None, 0o027))
        self.assertEqual(self.value(two, code), (None, "2", 0o002))
        self.assertWarm(two)
        self.assertEqual(len(self.far.zygotes()), 1)
        with open("/proc/%d/environ" % self.zygote(), "rb") as file:
            self.assertNotIn(b"FIRST", file.read())

    def test_ignored_signals_of_the_caller_are_not_handed_down(self):
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            kernel = self.spawn()
        finally:
            signal.signal(signal.SIGHUP, before)
        self.assertEqual(self.value(kernel, "import signal; signal.getsignal(signal.SIGHUP) is signal.SIG_DFL"), True)

    def test_a_missing_working_directory_is_told_and_nothing_is_left(self):
        self.spawn()
        with self.assertRaises(Exception) as caught:
            self.spawn(cwd="/no/such/place")
        self.assertEqual((caught.exception.code, "/no/such/place" in caught.exception.message), ("spawn-failed", True))
        self.assertEqual(len([name for name in os.listdir(self.far.base) if name.startswith("k-")]), 1)

    def test_a_reset_gives_the_same_again(self):
        kernel = self.spawn(env={"COLOUR": "blue"})
        before = self.value(kernel, FACTS)
        self.assertEqual(self.run_cell(kernel, "import os; os._exit(3)")["status"], "died")
        after = self.value(kernel, FACTS)
        for name in before:
            self.assertEqual(after[name], before[name], name)

    def test_random_numbers_differ(self):
        for code in ("import random; random.random()", "import os; os.urandom(8)", "import uuid; str(uuid.uuid4())", "import tempfile; tempfile.mktemp()"):
            self.assertNotEqual(self.value(self.spawn(preload=["random"]), code), self.value(self.spawn(preload=["random"]), code))


class Siblings(WarmTest):
    def setUp(self):
        super().setUp()
        self.one, self.two = self.spawn(key="01"), self.spawn(key="02")
        self.assertWarm(self.one)
        self.assertWarm(self.two)
        self.value(self.two, "x = 42")

    def family(self, kernel):
        return {pid for pid, _start in osdep.pids_with_mark(osdep.MARK, kernel["id"])}

    def start_children(self, kernel):
        """A program in a session of its own, and a fork that never became one: [pids]."""
        return self.value(kernel, "import os, subprocess, time\n"
                                  "p = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
                                  "f = os.fork()\n"
                                  "if f == 0:\n    os.setsid(); time.sleep(600)\n"
                                  "[p.pid, f]")

    def check_two(self):
        self.assertEqual(self.value(self.two, "x"), 42)
        self.assertEqual(self.run_cell(self.two, "x")["kernel"]["state"], "kept")

    def check_gone(self, pids):
        for pid in pids:
            until(lambda: gone(pid), what="the end of %d" % pid)

    def test_all_processes_of_a_kernel_are_found_by_its_mark_and_no_others(self):
        children = self.start_children(self.one)
        self.assertEqual(self.family(self.one), {self.one["pid"], self.one["interpreter_pid"]}.union(children))
        self.assertEqual(self.family(self.two), {self.two["pid"], self.two["interpreter_pid"]})
        self.assertFalse(osdep.mark_of(self.zygote()).startswith("k-"))

    def test_stopping_one_leaves_the_other(self):
        pids = [self.one["interpreter_pid"]] + self.start_children(self.one)
        self.stop(self.one)
        self.check_gone(pids)
        self.check_two()

    def test_killing_a_supervisor_and_clearing_up_leaves_the_other(self):
        pids = self.start_children(self.one)
        os.kill(self.one["pid"], signal.SIGKILL)
        until(lambda: gone(self.one["pid"]), what="the end of the supervisor")
        self.remove(self.one)
        self.check_gone(pids + [self.one["interpreter_pid"]])
        self.check_two()

    def test_a_new_spawn_under_the_key_of_a_dead_one_leaves_the_other(self):
        pids = self.start_children(self.one)
        os.kill(self.one["pid"], signal.SIGKILL)
        until(lambda: gone(self.one["pid"]), what="the end of the supervisor")
        answer = self.spawn_answer(key="01")
        self.assertEqual((answer["reused"], answer["previous"]["id"]), (False, self.one["id"]))
        self.assertWarm(answer["kernel"])
        self.check_gone(pids + [self.one["interpreter_pid"]])
        self.check_two()

    def test_a_death_of_the_interpreter_leaves_the_other(self):
        pids = self.start_children(self.one)
        self.assertEqual(self.run_cell(self.one, "import os; os._exit(1)")["status"], "died")
        self.check_gone(pids)
        self.check_two()

    def test_kernels_outlive_their_zygote(self):
        os.kill(self.zygote(), signal.SIGKILL)
        until(lambda: not self.far.zygotes(), what="the zygote's end")
        self.check_two()
        self.assertEqual(self.value(self.one, "1 + 1"), 2)
        self.stop(self.one)
        self.check_two()

    def test_nobody_stays_a_zombie(self):
        zygote = self.zygote()
        self.stop(self.one)
        os.kill(self.two["pid"], signal.SIGKILL)
        until(lambda: not os.path.exists("/proc/%d" % self.one["pid"]) and not os.path.exists("/proc/%d" % self.two["pid"]), what="the end of both")
        left = subprocess.run(["ps", "-o", "pid=,stat=", "--ppid", str(zygote)], stdout=subprocess.PIPE).stdout
        self.assertEqual(left.split(), [])

    def test_the_record_tells_the_process_itself(self):
        for kernel in (self.one, self.two):
            self.assertEqual(kernel["start_time"], osdep.proc_start_time(kernel["pid"]))
            self.assertEqual(osdep.parent_of(kernel["interpreter_pid"]), kernel["pid"])
        self.assertNotEqual(self.one["pid"], self.two["pid"])


class Kinds(WarmTest):
    def test_what_python_reads_at_its_start_makes_another_kind(self):
        here = self.spawn()
        there = self.spawn(env={"TZ": "UTC+3", "PYTHONHASHSEED": "5"})
        again = self.spawn(env={"TZ": "UTC+3", "PYTHONHASHSEED": "5"})
        self.assertEqual(len(self.far.zygotes()), 2)
        code = "import time, sys; (time.timezone, sys.flags.hash_randomization, hash('a'))"
        self.assertEqual(self.value(there, code)[0], 3 * 3600)
        self.assertEqual(self.value(there, code), self.value(again, code))
        self.assertNotEqual(self.value(here, code)[0], 3 * 3600)
        for kernel in (here, there, again):
            self.assertWarm(kernel)

    def test_packages_of_the_users_are_found(self):
        folder = os.path.join(self.far.root, "lib")
        os.mkdir(folder)
        with open(os.path.join(folder, "my_module.py"), "w") as file:
            file.write("value = 7\n")
        kernel = self.spawn(env={"PYTHONPATH": folder})
        self.assertEqual(self.value(kernel, "import my_module; my_module.value"), 7)
        self.assertWarm(kernel)

    def test_limits_of_the_caller_make_another_kind(self):
        self.spawn()
        code = ("import resource, sys, os; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)); sys.path.insert(0, %r)\n"
                "from tests.warm_kit import WarmTest\n"
                "test = WarmTest('run'); test.setUp(); test.far.base = %r\n"
                "print(test.value(test.spawn(key='77'), 'import resource; resource.getrlimit(resource.RLIMIT_NOFILE)'))"
                % (os.path.dirname(os.path.dirname(os.path.abspath(__file__))), self.far.base))
        out = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=tempfile.gettempdir()).stdout
        self.assertEqual(out.decode().strip(), "(200, 200)")
        self.assertEqual(len(self.far.zygotes()), 2)


if __name__ == "__main__":
    unittest.main()
