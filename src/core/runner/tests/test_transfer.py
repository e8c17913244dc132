"""Files that are put and got: the steps by commands, as the engine asks for them, and through a courier."""

import hashlib
import json
import os
import stat
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests import link_harness as harness
from tests.courier_kit import StreamTest
from _farcell import channel

BLOCK = 1 << 20


def sha(data):
    return hashlib.sha256(data).hexdigest()


class Files(harness.FarTest):
    def setUp(self):
        harness.FarTest.setUp(self)
        self.there = os.path.join(self.far.root, "there")
        os.mkdir(self.there)

    def path(self, name):
        return os.path.join(self.there, name)

    def put(self, do, data=None, **fields):
        """One step by a command, with bytes behind its header."""
        header = dict({"op": "put", "do": do, "base": None, "place": {"dir": self.far.base}}, **fields)
        if data is not None:
            header["bytes"] = len(data)
        nonce, text = harness.request(header)
        process = harness.start(env=fields.pop("env", None))
        out, err = process.communicate(text + (data or b""), timeout=60)
        return harness.Reply(out, err, process.returncode, nonce)

    def open(self, at, content, data=None, **fields):
        full = dict({"path": self.path(at), "name": "n", "size": len(content), "sha256": sha(content), "mode": 0o640}, **fields)
        return self.put("open", data, **full)

    def get(self, do, **fields):
        return harness.send(dict({"op": "get", "do": do, "base": None, "place": {"dir": self.far.base}}, **fields))

    def names(self):
        return sorted(os.listdir(self.there))

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def write(self, name, data=b"x"):
        with open(self.path(name), "wb") as file:
            file.write(data)
        return self.path(name)


class Put(Files):
    def test_a_small_file_comes_with_its_first_step(self):
        content = b"a\0b\n" * 100
        opened = self.open("f", content, content).json
        self.assertEqual((opened["ok"], opened["done"], opened["path"]), (True, True, self.path("f")))
        self.assertEqual((self.read("f"), stat.S_IMODE(os.stat(self.path("f")).st_mode), self.names()), (content, 0o640, ["f"]))
        # Once more, as after a lost answer.
        self.assertTrue(self.open("f", content, content).json["done"])

    def test_pieces_in_any_order_and_twice_are_the_file_in_the_end(self):
        content = os.urandom(2 * BLOCK + 5)
        opened = self.open("f", content).json
        self.assertEqual((opened["done"], opened["have"], self.names()), (False, 0, [os.path.basename(opened["part"])]))
        self.assertEqual(stat.S_IMODE(os.stat(opened["part"]).st_mode), 0o600)
        for offset in (2 * BLOCK, 0, BLOCK, 0):
            self.assertTrue(self.put("piece", content[offset:offset + BLOCK], part=opened["part"], offset=offset).json["ok"])
        finish = {"part": opened["part"], "path": opened["path"], "size": len(content), "sha256": sha(content), "mode": 0o755}
        for _time in range(2):
            self.assertEqual(self.put("finish", **finish).json, {"ok": True, "path": self.path("f")})
        self.assertEqual((self.read("f") == content, self.names(), stat.S_IMODE(os.stat(self.path("f")).st_mode)), (True, ["f"], 0o755))

    def test_what_is_there_of_the_same_content_is_told_with_checksums(self):
        content = os.urandom(2 * BLOCK)
        opened = self.open("f", content).json
        self.put("piece", content[:BLOCK + 7], part=opened["part"], offset=0)
        again = self.open("f", content).json
        self.assertEqual((again["part"], again["have"]), (opened["part"], BLOCK + 7))
        self.assertNotEqual(self.open("f", content[:-1]).json["part"], opened["part"])
        blocks = self.put("check", part=opened["part"], offset=0, count=1).json["blocks"]
        self.assertEqual(blocks, [sha(content[:BLOCK])])
        self.assertTrue(self.put("drop", part=opened["part"]).json["ok"])
        self.assertEqual(self.put("piece", b"x", part=opened["part"], offset=0).code, "gone")

    def test_what_is_not_what_was_sent_is_removed_and_the_old_file_stays(self):
        self.write("f", b"old")
        content = b"new" * 1000
        self.assertEqual(self.open("f", content, content[:-1] + b"!").code, "checksum")
        opened = self.open("f", content).json
        self.put("piece", content[:-1], part=opened["part"], offset=0)
        finish = self.put("finish", part=opened["part"], path=opened["path"], size=len(content), sha256=sha(content), mode=0o600)
        self.assertEqual((finish.code, self.read("f"), self.names()), ("checksum", b"old", ["f"]))

    def test_a_part_that_was_planted_is_not_written_to(self):
        content = b"secret"
        part = os.path.basename(self.open("f", content).json["part"])
        victim = self.write("victim", b"mine")
        for plant in (lambda: os.symlink(victim, self.path(part)), lambda: os.link(victim, self.path(part)), lambda: os.mkfifo(self.path(part))):
            os.unlink(self.path(part))
            plant()
            opened = self.open("f", content).json
            self.assertEqual(opened["have"], 0)
            self.assertTrue(stat.S_ISREG(os.lstat(opened["part"]).st_mode))
            # Planted behind our back, between two steps.
            os.unlink(opened["part"])
            plant()
            self.assertEqual(self.put("piece", content, part=opened["part"], offset=0).code, "gone")
            self.assertEqual(self.put("finish", part=opened["part"], path=opened["path"], size=6, sha256=sha(content), mode=0o600).code, "gone")
            self.assertEqual(self.read("victim"), b"mine")

    def test_only_parts_of_ours_can_be_written(self):
        victim = self.write("victim", b"mine")
        for step in ("piece", "check", "finish", "drop"):
            fields = {"path": victim, "size": 1, "sha256": sha(b"x"), "offset": 0, "count": 1, "part": victim}
            self.assertEqual(self.put(step, b"x", **fields).code, "bad-request", step)
        self.assertEqual(self.read("victim"), b"mine")

    def test_an_input_that_is_cut_writes_what_came_and_answers_nothing(self):
        content = os.urandom(1000)
        opened = self.open("f", content).json
        header = {"op": "put", "do": "piece", "part": opened["part"], "offset": 0, "bytes": 1000, "base": None, "place": {"dir": self.far.base}}
        nonce, text = harness.request(header)
        process = harness.start()
        out, err = process.communicate(text + content[:300], timeout=60)
        self.assertIsNone(harness.Reply(out, err, process.returncode, nonce).json)
        self.assertEqual(self.open("f", content).json["have"], 300)

    def test_where_a_file_goes_and_where_it_does_not(self):
        os.mkdir(self.path("d"))
        os.mkdir(self.path("d/n"))
        os.mkdir(self.path("e"))
        os.mkfifo(self.path("fifo"))
        self.write("plain")
        for name, more, expected in (("e", {}, self.path("e/n")), ("e/", {}, self.path("e/n")), ("x/y", {"parents": True}, self.path("x/y")),
                                     ("z/", {"parents": True}, self.path("z/n")), ("w", {"parents": True, "into": True}, self.path("w/n"))):
            self.assertEqual(self.open(name, b"1", b"1", **more).json.get("path"), expected, name)
        for name, more, code in (("d", {}, "is-directory"), ("fifo", {}, "not-a-file"), ("u/v", {}, "no-file"), ("u/", {}, "no-file"), ("u", {"into": True}, "no-file"),
                                 ("plain/", {}, "not-a-directory"), ("plain", {"into": True}, "not-a-directory"), ("plain/x", {"parents": True}, "not-a-directory"),
                                 ("f", {"name": "../x"}, "bad-request"), ("f", {"name": ".."}, "bad-request"), ("f", {"sha256": "x"}, "bad-request"), ("f", {"size": -1}, "bad-request"),
                                 ("n" * 300, {}, "bad-request"), ("a\0b", {}, "bad-request"), ("\ud800", {}, "bad-request")):
            reply = self.open(name, b"1", b"1", **more)
            self.assertEqual(reply.code, code, (name, more, reply.json))
        self.assertTrue(stat.S_ISFIFO(os.lstat(self.path("fifo")).st_mode))

    def test_home_and_working_directory(self):
        os.mkdir(self.path("home"))
        os.mkdir(self.path("cwd"))
        env = dict(os.environ, HOME=self.path("home"))
        for path, cwd, expected in (("a", None, "home/a"), ("~/b", self.path("cwd"), "home/b"), ("c", self.path("cwd"), "cwd/c"), ("~", None, "home/n"), ("d", "~/", "home/d"), ("~x", None, "home/~x")):
            header = {"path": path, "cwd": cwd, "env": env}
            nonce, text = harness.request({"op": "put", "do": "open", "path": path, "cwd": cwd, "name": "n", "size": 1, "sha256": sha(b"1"), "mode": 0o600, "bytes": 1, "place": {"dir": self.far.base}})
            process = harness.start(env=env)
            out, err = process.communicate(text + b"1", timeout=60)
            self.assertEqual(harness.Reply(out, err, process.returncode, nonce).json["path"], self.path(expected), header)

    def test_a_locale_that_knows_only_ascii_is_no_trouble(self):
        env = dict(os.environ, LC_ALL="POSIX", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
        nonce, text = harness.request({"op": "put", "do": "open", "path": self.path("\u00fc\u20ac"), "name": "n", "size": 1, "sha256": sha(b"1"), "mode": 0o600, "bytes": 1, "place": {"dir": self.far.base}})
        process = harness.start(env=env)
        out, err = process.communicate(text + b"1", timeout=60)
        self.assertTrue(harness.Reply(out, err, process.returncode, nonce).json["ok"])
        self.assertEqual([os.fsencode(name) for name in self.names()], ["\u00fc\u20ac".encode("utf-8")])

    def test_leftovers_go_after_a_day(self):
        old, new, other = ".farcell-0123456789abcdef.part", ".farcell-fedcba9876543210.part", ".farcell-x.other"
        day = time.time() - 25 * 3600
        for name in (old, new, other):
            os.utime(self.write(name), (day, day) if name != new else None)
        os.symlink(self.path(other), self.path(".farcell-1.part"))
        self.open("f", b"1", b"1")
        self.assertEqual(self.names(), sorted([new, other, "f", ".farcell-1.part"]))

    def test_a_full_disk_is_told_before_anything_is_sent(self):
        huge = 1 << 60
        reply = self.put("open", path=self.path("f"), name="n", size=huge, sha256=sha(b""), mode=0o600)
        self.assertEqual((reply.code, self.names()), ("disk-full", []))
        self.assertIn("are free", reply.json["error"]["message"])

    @unittest.skipUnless(os.path.exists("/dev/full"), "needs /dev/full")
    def test_devices_are_neither_read_nor_replaced(self):
        self.assertEqual(self.put("open", b"1", path="/dev/full", name="n", size=1, sha256=sha(b"1"), mode=0o600).code, "not-a-file")
        self.assertEqual(self.get("open", path="/dev/full", max=10).code, "not-a-file")
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/full").st_mode))

    @unittest.skipUnless(os.path.exists("/proc/self/status"), "needs /proc")
    def test_a_directory_that_takes_no_files_is_named(self):
        reply = self.put("open", b"1", path="/proc/farcell", name="n", size=1, sha256=sha(b"1"), mode=0o600)
        self.assertEqual(reply.code, "denied")
        self.assertIn("in /proc", reply.json["error"]["message"])

    @harness.needs_root
    def test_permissions_are_those_of_the_user(self):
        os.chmod(self.far.root, 0o755)
        secret = self.write("secret", b"1")
        os.chmod(secret, 0o600)
        words = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/bin/sh", "-c")
        base = os.path.join(self.far.root, "theirs")
        os.mkdir(base, 0o700)
        os.chown(base, 65534, 65534)
        for header in ({"op": "get", "do": "open", "path": secret, "max": 10}, {"op": "put", "do": "open", "path": self.path("f"), "name": "n", "size": 1, "sha256": sha(b"1"), "mode": 0o600}):
            reply = harness.send(dict(header, place={"dir": base}), shell=words, python="/usr/bin/python3", cwd="/")
            self.assertEqual(reply.code, "denied", (reply.json, reply.stderr))
            self.assertIn("permission denied", reply.json["error"]["message"])


class Get(Files):
    def test_a_small_file_comes_with_the_first_answer(self):
        content = os.urandom(5000)
        os.chmod(self.write("f", content), 0o751)
        opened = self.get("open", path=self.path("f"), max=5000)
        self.assertEqual(opened.out, content)
        answer = opened.json
        self.assertEqual((answer["size"], answer["sha256"], answer["mode"], answer["path"]), (5000, sha(content), 0o751, self.path("f")))
        self.assertNotIn("sha256", self.get("open", path=self.path("f"), max=4999).json)

    def test_pieces_checksums_and_what_was_changed(self):
        content = os.urandom(2 * BLOCK + 5)
        path = self.write("f", content)
        stamp = self.get("open", path=path, max=10).json["stamp"]
        piece = self.get("piece", path=path, stamp=stamp, offset=BLOCK, max=BLOCK + 5)
        self.assertEqual(piece.out == content[BLOCK:], True)
        self.assertEqual(self.get("digest", path=path, stamp=stamp, size=len(content)).json["sha256"], sha(content))
        blocks = self.get("check", path=path, stamp=stamp, offset=BLOCK, count=2).json["blocks"]
        self.assertEqual(blocks, [sha(content[BLOCK:2 * BLOCK]), sha(content[2 * BLOCK:])])
        self.assertEqual(self.get("piece", path=path, stamp=stamp, offset=BLOCK, max=2 * BLOCK).code, "changed")
        os.rename(self.write("g", content), path)
        for step, more in (("piece", {"offset": 0, "max": 1}), ("check", {"offset": 0, "count": 1}), ("digest", {"size": 1})):
            self.assertEqual(self.get(step, path=path, stamp=stamp, **more).code, "changed", step)

    def test_only_plain_files_are_opened(self):
        os.mkfifo(self.path("fifo"))
        os.symlink("f", self.path("link"))
        self.write("f", b"here")
        self.assertEqual(self.get("open", path=self.path("link"), max=10).out, b"here")
        for path, code in (("fifo", "not-a-file"), ("", "is-directory"), ("none", "no-file"), ("f/x", "no-file")):
            reply = self.get("open", path=self.path(path), max=10)
            self.assertEqual(reply.code, code, (path, reply.json))

    def test_a_file_of_proc_is_one_although_it_has_no_length(self):
        reply = self.get("open", path="/proc/self/status", max=1 << 20)
        self.assertIn(b"Pid:", reply.out)
        self.assertEqual((reply.json["size"], reply.json["sha256"]), (len(reply.out), sha(reply.out)))
        self.assertEqual(self.get("open", path="/proc/self/status", max=10).code, "not-a-file")

    def test_a_base_with_the_runner_is_named(self):
        path = self.write("f", b"1")
        self.assertIsNone(self.get("open", path=path, max=10).json["base"])
        self.kernel()
        self.assertEqual(self.get("open", path=path, max=10).json["base"], self.far.base)


class Streams(StreamTest):
    def data(self, stream, data, **fields):
        """A step with bytes behind its header; gives its number."""
        stream._next += 1
        header = dict({"op": "put", "deadline_ms": 60000, "bytes": len(data)}, **fields)
        body = json.dumps(header).encode("ascii") + b"\n" + data
        pieces = [body[at:at + 65536] for at in range(0, len(body), 65536)]
        for piece in pieces[:-1]:
            stream.write(stream.frame(b"d", stream._next, piece))
        stream.write(stream.frame(b"D", stream._next, pieces[-1]))
        return stream._next

    def test_files_go_through_a_stream_both_ways(self):
        stream = self.stream()
        content = os.urandom(3 * BLOCK + 11)
        path = os.path.join(self.far.root, "f")
        opened = stream.ok("put", do="open", path=path, name="n", size=len(content), sha256=sha(content), mode=0o644)
        calls = [self.data(stream, content[at:at + BLOCK], do="piece", part=opened["part"], offset=at) for at in range(0, len(content), BLOCK)]
        for call in calls:
            stream.answer(call)
        stream.ok("put", do="finish", part=opened["part"], path=path, size=len(content), sha256=sha(content), mode=0o644)
        with open(path, "rb") as file:
            self.assertEqual(file.read() == content, True)
        opened = stream.ok("get", do="open", path=path, max=10)
        offsets = range(0, len(content), BLOCK)
        calls = [stream.call("get", do="piece", path=path, stamp=opened["stamp"], offset=at, max=min(BLOCK, len(content) - at)) for at in offsets]
        for call in calls:
            stream.answer(call)
        self.assertEqual(b"".join(bytes(stream.records[call]) for call in calls) == content, True)

    def test_a_piece_larger_than_the_window_comes_as_it_is_taken(self):
        stream = self.stream()
        content = os.urandom(4 * BLOCK)
        path = os.path.join(self.far.root, "f")
        with open(path, "wb") as file:
            file.write(content)
        stamp = stream.ok("get", do="open", path=path, max=10)["stamp"]
        calls = [stream.call("get", do="piece", path=path, stamp=stamp, offset=0, max=len(content)) for _time in range(2)]
        for call in calls:
            stream.answer(call)
            self.assertEqual(bytes(stream.records[call]) == content, True)

    def test_answers_with_bytes_take_one_turn_together(self):
        kernel = self.kernel()
        stream = self.stream()
        path = os.path.join(self.far.root, "f")
        with open(path, "wb") as file:
            file.write(os.urandom(8 * BLOCK))
        stamp = stream.ok("get", do="open", path=path, max=10)["stamp"]
        calls = [stream.call("get", do="piece", path=path, stamp=stamp, offset=at * BLOCK, max=BLOCK) for at in range(8)]
        stream.until(lambda: len(stream.frames) > 1, what="the first of it")
        small = stream.call("probe", dir=kernel["dir"])
        del stream.frames[:]
        for call in calls + [small]:
            stream.answer(call)
        numbers = [number for _kind, number, _size in stream.frames]
        pieces = [number for number in numbers if number in calls]
        turns = [number for at, number in enumerate(pieces) if at == 0 or pieces[at - 1] != number]
        self.assertEqual(sorted(turns), calls)  # one after the other
        # What is in the pipe already, and what the courier sends in one turn before it looks for calls again; each may cut a frame.
        pipe = 1 << 20  # widened for so much
        self.assertLessEqual(numbers.index(small), pipe // channel.PIECE + channel.TURN_MAX // channel.PIECE + 2, numbers)

    def test_a_step_that_nobody_waits_for_any_more_is_dropped(self):
        stream = self.stream()
        path = os.path.join(self.far.root, "f")
        with open(path, "wb") as file:
            file.write(os.urandom(2 * BLOCK))
        stamp = stream.ok("get", do="open", path=path, max=10)["stamp"]
        stream.credit = False
        first = stream.call("get", do="piece", path=path, stamp=stamp, offset=0, max=2 * BLOCK)
        stream.until(lambda: len(stream.records.get(first, b"")) == BLOCK, what="the window")
        stream.write(stream.frame(b"X", first))
        stream.credit = True
        second = stream.call("get", do="piece", path=path, stamp=stamp, offset=0, max=BLOCK)
        stream.answer(second)
        self.assertEqual(len(stream.records[first]), BLOCK)

    def test_what_does_not_fit_is_refused_by_name(self):
        stream = self.stream()
        for header, part in (({"op": "run"}, "put or get"), ({"do": "dance"}, "do must be"), ({"do": "piece", "part": "/etc/passwd", "offset": 0}, "not one of ours")):
            answer = stream.result(self.data(stream, b"x" * 10, **header))
            self.assertEqual((answer["error"]["code"], part in answer["error"]["message"]), ("bad-request", True), answer)
        stream._next += 1
        stream.write(stream.frame(b"D", stream._next, b"no json\nxxx"))
        self.assertEqual(stream.result(stream._next)["error"]["code"], "bad-request")


if __name__ == "__main__":
    unittest.main()
