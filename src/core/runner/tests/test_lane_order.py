"""No cell overtakes another that was put or shipped before: each step on which one is in no file, in no pipe and not begun is held, and looked at from outside."""

import copy
import errno
import os
import signal
import tempfile
import unittest
from unittest import mock

from tests.lane_kit import Courier, FileLaneKernel
from tests.supervisor_kit import request
from tests.test_lane_files import needs_lane
from _farcell import cellfiles, file_port, files, lane_client, lane_page as page, shared_lane
from _farcell.adoption import Adoption
from _farcell.cell import Cell
from _farcell.file_port import FilePort
from _farcell.recent import Recent


class Loop:
    """Timers that nobody fires."""

    def __init__(self):
        self.timers = {}

    def at(self, name, _when, function):
        self.timers[name] = function

    def armed(self, name):
        return name in self.timers

    def cancel(self, name):
        self.timers.pop(name, None)

    def watch(self, _fd, _function):
        pass


class Generations:
    current = None


class Supervisor(Adoption):
    """What decides about order, without an interpreter's process."""

    def __init__(self, directory, lane):
        self._loop, self._lane, self._seen = Loop(), lane, Recent()
        self._port = FilePort(directory, {}, lambda *_: None, lane)
        self._port.open(self._loop, self)
        self.running, self.generations, self.settled = None, Generations(), []

    def _settle(self, cell, _outcome):
        self.settled.append(cell.number)
        self._port.settle(cell, b"{}", False)

    def begin(self):
        """The number of the cell that the conductor would begin now, or None."""
        cell = self._port.take() if self._is_ours() else None
        return cell and cell.number

    def end(self, number):
        self._settle(Cell(number, 0.0), None)

    def lose_interpreter(self):
        self._bury()


@needs_lane
class Order(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.directory = folder.name
        os.mkdir(self.directory + "/cells")
        with open(self.directory + "/cells/next", "w") as file:
            file.write("1\n")
        self.lane = shared_lane.make(self.directory)
        self.assertIsNotNone(self.lane)
        self.supervisor = Supervisor(self.directory, self.lane)
        self.port = self.supervisor._port
        self.first, self.second = [lane_client.Lane.open(self.directory, {"lane": self.lane.describe()}) for _ in range(2)]
        ours = copy.copy(self.lane)
        ours.take_fd, ours.answer_fd = os.dup(self.lane.take_fd), os.dup(self.lane.answer_fd)
        self.frames = []
        self.track = ours.track(os.dup, [], "k-1", 1, lambda *frame: self.frames.append(frame))

    def given_up(self):
        """Put into the lane by one who does not wait for it; gives the number."""
        self.assertTrue(self.first.offer(request("x += 1")))
        number, self.first.number = self.first.number, 0
        self.first._unlock()
        return number

    def shipped(self):
        return cellfiles.Shelf(self.directory).ship(request("x += 1"), False, 0)[0]

    def overtakes(self):
        """Whether another cell could be put into the lane now."""
        if not self.second.offer(request("x")):
            return False
        self.second.number = 0
        self.second._unlock()
        return True

    def watched(self, owner, name):
        """Gives what comes to be known of overtakes() whenever this is called, before and after it does anything."""
        seen, inner = [], getattr(owner, name)

        def step(*args, **kwargs):
            seen.append(self.overtakes())
            try:
                return inner(*args, **kwargs)
            finally:
                seen.append(self.overtakes())
        patch = mock.patch.object(owner, name, step)
        patch.start()
        self.addCleanup(patch.stop)
        return seen

    def has_request(self, number):
        return os.path.exists(files.cell_path(self.directory, "req", number))

    def goes_on_after(self, number):
        """One that is a file has its turn, and only then the lane is free."""
        self.assertTrue(self.has_request(number))
        self.assertFalse(self.overtakes())
        self.assertEqual(self.supervisor.begin(), number)
        self.assertFalse(self.overtakes())
        self.supervisor.end(number)
        self.assertEqual(self.supervisor.begin(), None)
        self.assertTrue(self.overtakes())

    def test_one_that_its_host_hands_over(self):
        number, seen = self.given_up(), self.watched(self.port, "_write")
        self.assertTrue(self.supervisor.find_out())
        self.assertEqual(seen, [False, False])
        self.goes_on_after(number)

    def test_one_that_the_supervisor_finds_by_itself(self):
        number, seen = self.given_up(), self.watched(self.port, "_write")
        self.port.look()
        self.assertEqual(seen, [False, False])
        self.goes_on_after(number)

    def test_one_that_has_just_left_the_pipe(self):
        number, seen = self.given_up(), self.watched(shared_lane.lane.wire, "decode")
        self.assertTrue(self.supervisor.find_out())
        self.assertEqual(seen, [False, False])
        self.goes_on_after(number)

    def give_back(self):
        """The interpreter meets the bar, which is lifted before the supervisor has heard of that."""
        number = self.given_up()
        self.lane.bar()
        seen = self.watched(self.track, "_send")
        self.assertIsNone(self.track.take())
        self.assertEqual(seen, [False, False])
        self.assertEqual([frame[0] for frame in self.frames], [b"q"])
        self.lane.unbar()
        self.assertFalse(self.overtakes())
        return number

    def test_one_that_is_given_back(self):
        number, seen = self.give_back(), self.watched(self.port, "_write")
        self.assertTrue(self.supervisor._of_lane(*self.frames[0]))
        self.assertEqual(seen, [False, False])
        self.goes_on_after(number)

    def test_one_that_is_given_back_is_not_forgotten(self):
        number = self.give_back()
        self.lane.clear()
        self.assertFalse(self.overtakes())
        self.supervisor.generations.current = self.supervisor
        self.assertFalse(self.supervisor.find_out())
        later = self.shipped()
        self.port._scan()
        self.assertEqual(self.supervisor.begin(), None)
        self.supervisor._of_lane(*self.frames[0])
        self.assertEqual([self.supervisor.begin() for _ in range(2)], [number, later])

    def test_one_that_is_given_back_by_an_interpreter_that_dies(self):
        number = self.give_back()
        seen = self.watched(self.supervisor, "_settle")
        self.supervisor.lose_interpreter()
        self.assertEqual(self.supervisor.settled, [number])
        self.assertEqual(seen, [False, True])
        self.supervisor.lose_interpreter()
        self.assertEqual(self.supervisor.settled, [number])

    def test_one_that_is_given_back_and_obeyed_runs_once_whoever_dies(self):
        number = self.give_back()
        self.supervisor._of_lane(*self.frames[0])
        self.supervisor.lose_interpreter()
        self.assertEqual(self.supervisor.settled, [])
        self.goes_on_after(number)

    def test_one_with_which_its_interpreter_dies(self):
        number = self.given_up()
        os.read(self.lane.take_fd, 8192)
        self.lane.words[page.STATE] = page.TAKING
        seen = self.watched(self.supervisor, "_settle")
        self.supervisor.lose_interpreter()
        self.assertEqual((self.supervisor.settled, seen), ([number], [False, True]))

    def test_one_that_no_interpreter_took(self):
        number = self.given_up()
        self.supervisor.lose_interpreter()
        self.assertEqual(self.supervisor.settled, [])
        self.assertFalse(self.overtakes())
        self.assertEqual(self.track.take()["number"], number)
        self.assertFalse(self.overtakes())

    def test_one_in_a_file_that_nobody_has_seen(self):
        number = self.shipped()
        self.assertFalse(self.overtakes())
        self.port._scan()
        self.goes_on_after(number)

    def test_one_in_a_file_that_came_as_another_ended(self):
        number = self.shipped()
        self.port._scan()
        self.assertEqual(self.supervisor.begin(), number)
        later = self.shipped()
        self.supervisor.end(number)
        self.assertFalse(self.overtakes())
        self.port._scan()
        self.goes_on_after(later)

    def test_numbers_without_a_cell_do_not_keep_the_lane(self):
        shelf = cellfiles.Shelf(self.directory)
        self.assertEqual([shelf.take_number() for _ in range(3)], [1, 2, 3])
        withdrawn, number = self.shipped(), self.shipped()
        self.assertTrue(cellfiles.withdraw(self.directory, withdrawn))
        self.assertFalse(self.overtakes())
        self.port._scan()
        self.assertEqual(self.supervisor.begin(), number)
        self.assertFalse(self.overtakes())
        self.assertTrue(cellfiles.withdraw(self.directory, self.shipped()))
        self.assertFalse(self.overtakes())
        self.supervisor.end(number)
        self.assertEqual(self.supervisor.begin(), None)
        self.assertTrue(self.overtakes())

    def test_one_whose_number_follows_none_waits_for_those_that_run(self):
        number = self.shipped()
        self.port._scan()
        self.assertEqual(self.supervisor.begin(), number)
        self.lane.unbar()
        self.assertFalse(self.overtakes())
        self.supervisor.end(number)
        self.assertTrue(self.overtakes())

    def test_a_number_that_does_not_fit_is_not_taken(self):
        number = self.shipped()
        self.assertFalse(self.overtakes())
        self.assertEqual(self.shipped(), number + 1)

    def test_one_that_was_withdrawn_does_not_keep_the_lane(self):
        number = self.given_up()
        self.supervisor.find_out()
        self.assertTrue(cellfiles.withdraw(self.directory, number))
        self.assertFalse(self.overtakes())
        self.port._scan()
        self.assertEqual(self.supervisor.begin(), None)
        self.assertTrue(self.overtakes())

    def test_one_for_which_there_is_no_room_is_waited_for(self):
        number, later = self.given_up(), self.shipped()
        with mock.patch.object(self.port, "_write", lambda *_: False):
            self.supervisor.find_out()
        self.port._scan()
        self.assertEqual(self.supervisor.begin(), None)
        self.assertFalse(self.overtakes())
        self.port._ship()
        self.assertEqual([self.supervisor.begin() for _ in range(2)], [number, later])

    def test_one_that_cannot_be_claimed_for_lack_of_room_is_waited_for(self):
        numbers = [self.shipped() for _ in range(2)]
        self.port._scan()
        with mock.patch.object(file_port.os, "rename", side_effect=OSError(errno.ENOSPC, "full")):
            self.assertEqual(self.supervisor.begin(), None)
        self.assertEqual(self.supervisor.begin(), None)
        self.supervisor._loop.timers.pop("claim")()
        self.assertEqual([self.supervisor.begin() for _ in range(2)], numbers)

    def test_a_word_that_a_cell_has_scribbled_holds_up_nobody(self):
        number = self.shipped()
        self.port._scan()
        self.lane.words[page.GIVEN] = 2 ** 64 - 1
        self.supervisor.generations.current = self.supervisor
        self.goes_on_after(number)

    def test_one_that_a_listing_has_missed(self):
        numbers = [self.shipped() for _ in range(3)]
        whole, missed = os.listdir, files.cell_path("", "req", numbers[0]).rpartition("/")[2]
        with mock.patch.object(file_port.os, "listdir", lambda path: [name for name in whole(path) if name != missed]):
            self.port._scan()
        self.assertEqual([self.supervisor.begin() for _ in range(3)], numbers)

    def test_a_listing_is_enough_where_numbers_follow_each_other(self):
        numbers = [self.shipped() for _ in range(3)]
        self.port._scan()
        with mock.patch.object(file_port.os, "listdir", side_effect=AssertionError):
            self.assertEqual([self.supervisor.begin() for _ in range(3)], numbers)


@needs_lane
class Kernels(unittest.TestCase):
    """The same with all that belongs to it."""

    def test_a_supervisor_that_sleeps_has_none_overtaken(self):
        kernel = FileLaneKernel()
        self.addCleanup(kernel.close)
        second = Courier(kernel)
        self.addCleanup(second.close)
        kernel.lane("x = []")
        for number in range(10):
            os.kill(kernel.pid, signal.SIGSTOP)
            try:
                first, later = request("x.append('a')"), request("x.append('b'); ''.join(x)")
                shipped = kernel.courier.ship(first)
                is_in_lane = second.lane.offer(later)
                follows = second.lane.number if is_in_lane else second.ship(later)
            finally:
                os.kill(kernel.pid, signal.SIGCONT)
            self.assertFalse(is_in_lane)
            reply = second.settle(follows, later["id"])
            self.assertEqual(reply["result"], {"text/plain": repr("ab" * (number + 1))})
            kernel.courier.settle(shipped, first["id"])


if __name__ == "__main__":
    unittest.main()
