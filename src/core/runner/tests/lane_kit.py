"""A courier for the tests of lanes in a directory: what it does with a cell, and what a host asks by commands."""

import json
import os
import select
import time

from tests.supervisor_kit import PATIENCE, FileKernel, request, until
from _farcell import cellfiles, files, lane_client, link

OPTIONS = {"hold_ms": 60000, "offset": 0, "stream": False, "lull_ms": 30, "tell": False}
DIRECT, VIA = "direct", "via"


class Answer:
    """Takes the place of a command's stdout."""

    def __init__(self):
        self.out = b""

    def send(self, _kind, payload):
        self.out += payload


def command(directory, op, **fields):
    """One operation as a command does it, in this process: the answer's fields."""
    header = dict(fields, op=op, dir=directory, deadline_ms=60000, base=None, runner="00")
    result = getattr(link, "op_" + op)(link.Call(header, None, None, Answer()))
    if isinstance(result, tuple):
        fields, raw = result
        result = dict(fields, reply=json.loads(raw.decode())) if raw is not None else fields
    return result


class Courier:
    """Hands cells to one kernel, by the lane where that can be."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.lane = lane_client.Lane.open(kernel.dir, kernel.record)
        assert self.lane is not None, "there is no lane"
        self.acks = []

    def put(self, value, acks=()):
        """Into the lane, as soon as it is free: a reply in a file can be seen a moment before."""
        until(lambda: self.lane.offer(value, acks), what="a free lane")

    def ship(self, value):
        return cellfiles.submit(self.kernel.dir, value, False)[0]

    def outcome(self, number, cell_id, patience=0.002):
        """(reply, which way it came) of a cell that was offered, as a courier waits for it."""
        poll = select.poll()
        poll.register(self.lane.reply_fd, select.POLLIN)
        end = time.monotonic() + (PATIENCE if patience is None else patience)
        while time.monotonic() < end and not self.lane.ended:
            if poll.poll(max(0, end - time.monotonic()) * 1000):
                data = self.lane.take_reply()
                if data is not None:
                    return self.heard(json.loads(data.decode())), DIRECT if self.lane.direct else VIA
        handed = self.lane.hand_over()
        assert handed.number == number
        while not handed.arrived() and files.is_locked(self.kernel.dir):
            poll.poll(1)
        return self.settle(number, cell_id), VIA

    def settle(self, number, cell_id):
        """The reply of a cell with files."""
        answer = command(self.kernel.dir, "wait", number=number, id=cell_id, wait=OPTIONS)
        assert answer["fate"] in ("settled", "dead"), answer
        return self.heard(answer["reply"])

    def heard(self, reply):
        self.acks = [reply["cell"]["number"]]
        return reply

    def run(self, code, patience=0.002, **fields):
        """(reply, way)"""
        value = request(code, **fields)
        acks, self.acks = self.acks, []
        if self.lane.offer(value, acks):
            return self.outcome(self.lane.number, value["id"], patience)
        cellfiles.acknowledge(self.kernel.dir, acks)
        return self.settle(self.ship(value), value["id"]), VIA

    def close(self):
        self.lane.close()


class FileLaneKernel(FileKernel):
    """With the words of test_lane.LaneKernel, so that the same rules can be asked of it."""

    def __init__(self, **fields):
        FileKernel.__init__(self, **fields)
        self.courier = Courier(self)

    def put(self, code, **fields):
        value = request(code, **fields)
        self.courier.put(value)
        return value["id"], self.courier.lane.number

    def lane(self, code, patience=0.002, **fields):
        return self.courier.run(code, patience, **fields)

    def outcome(self, cell, patience=0.002):
        if self.courier.lane.number:
            return self.courier.outcome(cell[1], cell[0], patience)
        return self.courier.settle(cell[1], cell[0]), VIA

    def hand_over(self, cell):
        if self.courier.lane.number:
            self.courier.lane.hand_over()

    def started(self, cell):
        until(lambda: cellfiles.look(self.dir, cell[1]).fate in ("running", "settled"), what="the start of cell %d" % cell[1])

    def control(self, do, **fields):
        return {"kernel": self.record} if do == "probe" else FileKernel.control(self, do, **fields)

    def run(self, code, **fields):
        value = request(code, **fields)
        return self.courier.settle(self.courier.ship(value), value["id"])

    def files_of(self, number):
        return [kind for kind in ("req", "run", "out", "res") if os.path.exists(self.cell_path(kind, number))]

    def close(self):
        self.courier.close()
        FileKernel.close(self)
