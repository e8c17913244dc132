"""How long a warm `x += 1` takes through a courier over a pair of pipes, and what each process spends on it.

    python3 benches/courier_cells.py DIRECTORY [CELLS]

The kernel lives in a base directory below DIRECTORY (/dev/shm, or one on a disk), and is gone afterwards.
"""

import json
import os
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src", "core", "runner"))

from tests import courier_kit, link_harness

WARM_UP = 20
WAIT = {"hold_ms": 25000, "offset": 0, "stream": True, "lull_ms": 30, "tell": True}


def spent(pid):
    """Milliseconds of processor time."""
    with open("/proc/%d/stat" % pid) as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1000.0 / os.sysconf("SC_CLK_TCK")


def measure(far, cells):
    kernel = far.spawn()["kernel"]
    stream = courier_kit.Stream(far)
    pids = [stream.greeted()["pid"], kernel["pid"], kernel["interpreter_pid"]]
    stream.value(kernel["dir"], "x = 0")
    os.set_blocking(stream.output, True)
    times, acks = [], []
    for number in range(cells + WARM_UP):
        if number == WARM_UP:
            before = [spent(pid) for pid in pids]
        _call, frame = stream.call_frame("run", dir=kernel["dir"], cell=far.cell("x += 1"), wait=WAIT, ack=acks)
        began = time.perf_counter()
        os.write(stream.input, frame)
        data = os.read(stream.output, 65536)
        times.append(time.perf_counter() - began)
        answer = json.loads(data[9:].decode("utf-8"))
        if not answer["ok"] or answer["fate"] != "settled":
            raise SystemExit("no reply: %r" % answer)
        acks = [answer["number"]]
    cost = [(after - was) / cells for after, was in zip(map(spent, pids), before)]
    stream.close()
    return sorted(times[WARM_UP:]), cost


def main(directory, cells):
    tempfile.tempdir = directory
    far = link_harness.Far()
    try:
        times, cost = measure(far, cells)
    finally:
        far.close()
    part = [times[len(times) * share // 100] * 1000 for share in (0, 10, 50, 90)]
    print("%s: %d cells, min %.3f, p10 %.3f, p50 %.3f, p90 %.3f ms; processor time of a cell: courier %.2f, supervisor %.2f, interpreter %.2f ms"
          % ((directory, cells) + tuple(part) + tuple(cost)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 500)
