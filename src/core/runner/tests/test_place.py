"""Choosing and checking the base directory; what another user planted is refused by name."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from _farcell import files, kernels, place
from _farcell.fault import Fault

NOBODY = 65534
needs_root = unittest.skipIf(os.geteuid() != 0, "needs root to be two users")


def as_user(uid, function):
    """Run a function in a child as another user; gives its value (JSON), or the fault as a dict."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            try:
                value = function()
            except Fault as fault:
                value = fault.as_json()
            except BaseException as error:  # pylint: disable=broad-except
                value = {"raised": repr(error)}
            files.write_all(write, json.dumps(value).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        data = file.read()
    os.waitpid(pid, 0)
    return json.loads(data.decode())


class Base(unittest.TestCase):
    def setUp(self):
        place._chosen.clear()
        self.root = os.path.realpath(tempfile.mkdtemp())
        os.chmod(self.root, 0o755)
        self.addCleanup(shutil.rmtree, self.root, True)
        # Nothing of this machine's, unless a test says so.
        for patch in (mock.patch.object(place, "SHARED_MEMORY", self.path("no-shm")),
                      mock.patch.object(place, "FIXED_PARENTS", ()),
                      mock.patch.dict(os.environ, {"TMPDIR": self.path("tmp")}),
                      mock.patch.object(os, "getcwd", lambda: self.path("cwd"))):
            patch.start()
            self.addCleanup(patch.stop)
        os.environ.pop("HOME", None)

    def path(self, *parts):
        return os.path.join(self.root, *parts)

    def folder(self, name, mode=0o700, owner=None):
        os.mkdir(self.path(name))
        os.chmod(self.path(name), mode)
        if owner is not None:
            os.chown(self.path(name), owner, owner)
        return self.path(name)

    def base_in(self, name):
        return self.path(name, "farcell-%d" % os.geteuid())


class Choosing(Base):
    def test_the_first_usable_candidate_is_taken(self):
        self.folder("tmp")
        base, refused = place.choose({})
        self.assertEqual(base, self.base_in("tmp"))
        self.assertEqual(stat.S_IMODE(os.stat(base).st_mode), 0o700)
        self.assertEqual([entry["dir"] for entry in refused], [self.path("no-shm")])
        self.assertEqual(os.listdir(base), [])

    def test_a_relative_a_missing_and_an_open_tmpdir_are_passed_over(self):
        self.folder("cwd")
        for value, why in (("tmp", "absolute"), (self.path("none"), "does not exist"), (self.folder("open", 0o777), "sticky")):
            with mock.patch.dict(os.environ, {"TMPDIR": value}):
                base, refused = place.choose({})
            self.assertEqual(base, self.base_in("cwd"))
            self.assertIn(why, refused[1]["why"])

    def test_an_ancestor_that_others_can_write_to_is_not_usable(self):
        self.folder("open", 0o777)
        self.folder("open/tmp")
        self.assertIn("others can write to " + self.path("open"), place.parent_problem(self.path("open/tmp")))
        os.chmod(self.path("open"), 0o1777)
        self.assertIsNone(place.parent_problem(self.path("open/tmp")))

    def test_home_is_used_and_its_cache_made(self):
        self.folder("home")
        with mock.patch.dict(os.environ, {"HOME": self.path("home")}):
            self.assertEqual(place.choose({})[0], self.base_in("home/.cache"))

    def test_nothing_usable_is_told_with_every_reason(self):
        os.environ.pop("TMPDIR")
        with self.assertRaises(Fault) as caught:
            place.choose({})
        self.assertEqual(caught.exception.code, "no-place")
        for part in (self.path("no-shm"), self.path("cwd")):
            self.assertIn(part + ": it does not exist", caught.exception.message)

    def test_an_own_readable_base_is_made_private(self):
        self.folder("tmp")
        self.folder("tmp/farcell-%d" % os.geteuid(), 0o755)
        base = place.choose({})[0]
        self.assertEqual(stat.S_IMODE(os.stat(base).st_mode), 0o700)

    def test_an_own_base_that_others_can_write_to_is_refused(self):
        self.folder("tmp")
        self.folder("cwd")
        self.folder("tmp/farcell-%d" % os.geteuid(), 0o770)
        base, refused = place.choose({})
        self.assertEqual(base, self.base_in("cwd"))
        self.assertIn("others can write to it (mode 0770)", refused[-1]["why"])

    def test_a_link_in_the_place_of_the_base_is_refused(self):
        self.folder("tmp")
        self.folder("cwd")
        os.symlink(self.folder("elsewhere"), self.base_in("tmp"))
        base, refused = place.choose({})
        self.assertEqual(base, self.base_in("cwd"))
        self.assertIn("symbolic link", refused[-1]["why"])
        self.assertEqual(os.listdir(self.path("elsewhere")), [])

    @needs_root
    def test_a_base_that_another_user_planted_is_refused(self):
        self.folder("tmp", 0o1777)
        self.folder("tmp/farcell-0", 0o700, NOBODY)
        with self.assertRaises(Fault) as caught:
            place.choose({})
        self.assertIn("it belongs to nobody", caught.exception.message)
        with self.assertRaises(Fault) as caught:
            place.choose({"base": self.path("tmp/farcell-0")})
        self.assertEqual(caught.exception.code, "unsafe-directory")
        self.assertIn(self.path("tmp/farcell-0"), caught.exception.message)
        self.assertIn("nobody", caught.exception.message)

    @needs_root
    def test_a_directory_that_cannot_be_written_is_passed_over(self):
        self.folder("tmp", 0o755)
        self.folder("cwd", 0o700, NOBODY)
        value = as_user(NOBODY, lambda: place.choose({}))
        self.assertEqual(value[0], self.path("cwd/farcell-%d" % NOBODY))
        self.assertIn("permission denied", value[1][-1]["why"])

    @needs_root
    def test_a_user_without_an_entry_works(self):
        self.folder("tmp", 0o1777)
        self.assertEqual(as_user(54321, lambda: place.choose({}))[0], self.path("tmp/farcell-54321"))
        self.assertEqual(place.owner_name(54321), "uid 54321")

    @needs_root
    def test_a_full_disk_is_passed_over(self):
        self.folder("tmp")
        self.folder("cwd")
        if subprocess.call(["mount", "-t", "tmpfs", "-o", "size=16k,mode=700", "none", self.path("tmp")], stderr=subprocess.DEVNULL):
            self.skipTest("no mounts here")
        try:
            with open(self.path("tmp/fill"), "wb", 0) as file, self.assertRaises(OSError):
                while True:
                    file.write(b"x" * 4096)
            base, refused = place.choose({})
            self.assertEqual(base, self.base_in("cwd"))
            self.assertIn("no space left", refused[-1]["why"])
        finally:
            subprocess.call(["umount", self.path("tmp")])

    def test_a_key_with_a_home_keeps_it(self):
        self.folder("tmp")
        self.folder("cwd")
        with mock.patch.dict(os.environ, {"TMPDIR": self.path("none")}):
            base = place.choose({})[0]
        os.mkdir(os.path.join(base, "keys"))
        files.atomic_write(os.path.join(base, "keys", "aa"), b"k-1")
        self.assertEqual(place.choose({}, "aa")[0], base)
        self.assertEqual(place.choose({}, "bb")[0], self.base_in("tmp"))


class Wishes(Base):
    def wish(self, path):
        return place.choose({"place": {"dir": path}})[0]

    def test_a_named_directory_is_used_as_it_is_and_made_if_missing(self):
        self.assertEqual(self.wish(self.path("mine")), self.path("mine"))
        self.assertEqual(stat.S_IMODE(os.stat(self.path("mine")).st_mode), 0o700)
        self.folder("there", 0o755)
        self.assertEqual(self.wish(self.path("there") + "/"), self.path("there"))
        self.assertEqual(stat.S_IMODE(os.stat(self.path("there")).st_mode), 0o755)

    def test_a_wrong_one_is_refused_by_name_without_another_try(self):
        self.folder("tmp")
        os.symlink(self.folder("t"), self.path("link"))
        for path, code in ((self.folder("open", 0o777), "unsafe-directory"), (self.path("link"), "unsafe-directory"),
                           (self.path("none/none"), "no-directory"), ("relative", "bad-request"), (self.path("a\0b"), "bad-request"), (7, "bad-request")):
            with self.assertRaises(Fault) as caught:
                self.wish(path)
            self.assertEqual(caught.exception.code, code)
            if isinstance(path, str) and code != "bad-request":
                self.assertIn(path, caught.exception.message)
        self.assertEqual(os.listdir(self.path("tmp")), [])


class Remembering(Base):
    def setUp(self):
        super().setUp()
        self.wish = {"base": self.folder("mine")}
        self.assertEqual(place.choose(self.wish)[0], self.path("mine"))

    def test_a_process_looks_closely_once_a_minute(self):
        with mock.patch.object(place, "_probe", side_effect=AssertionError):
            self.assertEqual(place.choose(self.wish), (self.path("mine"), []))
            with mock.patch.object(place.time, "monotonic", lambda: 1e12):
                self.assertRaises(AssertionError, place.choose, self.wish)

    def test_but_never_trusts_what_has_changed(self):
        os.chmod(self.path("mine"), 0o777)
        self.assertRaises(Fault, place.choose, self.wish)
        os.chmod(self.path("mine"), 0o700)
        os.rename(self.path("mine"), self.path("other"))
        os.symlink(self.path("other"), self.path("mine"))
        self.assertRaises(Fault, place.choose, self.wish)
        os.unlink(self.path("mine"))
        os.mkdir(self.path("mine"), 0o700)
        with mock.patch.object(place, "_probe", return_value="it was looked at") as probe:
            self.assertRaises(Fault, place.choose, self.wish)
        probe.assert_called_once()


class SharedMemory(Base):
    def problem(self, uid, logind, linger=False, container=False, free=1 << 30):
        self.path("shm")
        with mock.patch.object(place, "SHARED_MEMORY", self.root), mock.patch.object(place, "has_logind", lambda: logind), \
                mock.patch.object(place, "is_lingering", lambda: linger), mock.patch.object(place, "in_container", lambda: container), \
                mock.patch.object(os, "geteuid", lambda: uid), mock.patch.object(place, "free_bytes", lambda path: free):
            return place.memory_problem()

    def test_it_is_taken_only_where_logind_cannot_empty_it(self):
        self.assertIsNone(self.problem(1000, logind=False))
        self.assertIsNone(self.problem(1000, logind=True, linger=True))
        self.assertIsNone(self.problem(1000, logind=True, container=True))
        self.assertIsNone(self.problem(999, logind=True))
        self.assertIn("logind", self.problem(1000, logind=True))
        self.assertIn("logind", self.problem(65534, logind=True))

    def test_a_small_one_is_passed_over(self):
        self.assertIn("free", self.problem(0, logind=False, free=1 << 20))


class Installing(Base):
    MODULES = {"__init__.py": "", "link.py": "x = 1\n", "farcell_kernel.py": "y = 2\n"}

    def test_modules_are_written_checked_and_repaired(self):
        base = self.wish_base()
        place.install(base, "abc1", self.MODULES)
        top = os.path.join(base, "runner-abc1")
        self.assertTrue(place.is_complete(base, "abc1"))
        self.assertEqual(sorted(os.listdir(top)), ["_farcell", "farcell_kernel.py", "manifest.json"])
        before = os.stat(os.path.join(top, "_farcell", "link.py")).st_mtime_ns
        os.unlink(os.path.join(top, "_farcell", "__init__.py"))
        self.assertFalse(place.is_complete(base, "abc1"))
        files.atomic_write(os.path.join(top, "farcell_kernel.py"), b"y = 3\n")
        place.install(base, "abc1", self.MODULES)
        self.assertTrue(place.is_complete(base, "abc1"))
        self.assertEqual(files.read_bytes(os.path.join(top, "farcell_kernel.py")), b"y = 2\n")
        self.assertEqual(os.stat(os.path.join(top, "_farcell", "link.py")).st_mtime_ns, before)

    def wish_base(self):
        return place.choose({"place": {"dir": self.path("base")}})[0]

    def test_a_name_that_leads_elsewhere_is_refused(self):
        base = self.wish_base()
        for name in ("../x.py", "a/b.py", ".py", "x.txt", "/tmp/x.py", ""):
            with self.assertRaises(Fault):
                place.install(base, "abc1", {name: ""})
        for runner in ("../x", "", "a/b", None, "x" * 65):
            with self.assertRaises(Fault):
                place.install(base, runner, self.MODULES)

    @needs_root
    def test_a_planted_runner_is_refused(self):
        base = self.wish_base()
        for plant in (lambda path: os.symlink(self.root, path), lambda path: (os.mkdir(path), os.chown(path, NOBODY, NOBODY))):
            plant(os.path.join(base, "runner-abc1"))
            with self.assertRaises(Fault) as caught:
                place.install(base, "abc1", self.MODULES)
            self.assertEqual(caught.exception.code, "unsafe-directory")
            files.remove_tree(os.path.join(base, "runner-abc1"))


class KernelDirectories(Base):
    def kernel(self, name="k-1"):
        base = place.choose({"place": {"dir": self.path("base")}})[0]
        os.mkdir(os.path.join(base, name), 0o700)
        return os.path.join(base, name)

    def code(self, path):
        try:
            kernels.checked_dir(path)
            return None
        except Fault as fault:
            return fault.code

    def test_only_kernels_in_a_base_of_ours_are_touched(self):
        path = self.kernel()
        self.assertIsNone(self.code(path))
        for bad in (path + "/", path + "/../k-1", "k-1", self.path("base"), "/", self.path("base/k-"), self.path("base/k-A"), None, 5, path + "\0"):
            self.assertEqual(self.code(bad), "bad-request", bad)
        self.assertEqual(self.code(self.path("base/k-2")), "no-kernel")

    def test_a_link_is_refused(self):
        path = self.kernel()
        os.symlink(path, self.path("base/k-2"))
        self.assertEqual(self.code(self.path("base/k-2")), "unsafe-directory")
        os.symlink(self.path("base"), self.path("other"))
        self.assertEqual(self.code(self.path("other/k-1")), "unsafe-directory")

    @needs_root
    def test_what_belongs_to_another_user_is_refused(self):
        path = self.kernel()
        os.chown(path, NOBODY, NOBODY)
        self.assertEqual(self.code(path), "unsafe-directory")
        os.chown(path, 0, 0)
        os.chmod(path, 0o770)
        self.assertEqual(self.code(path), "unsafe-directory")
        os.chmod(path, 0o700)
        os.chown(self.path("base"), NOBODY, NOBODY)
        self.assertEqual(self.code(path), "unsafe-directory")


if __name__ == "__main__":
    unittest.main()
