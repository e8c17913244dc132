"""The courier's quickest way: a small `run` whose cell goes through the lane and is over in a moment needs no call, no timer and no turn of the loop."""

from . import calls, duties, follow, in_lane


def attempt(courier, ref, header):
    # type: (object, int, dict) -> bool
    """Answer a `run`, or see to it that it is answered later; False, and nothing has been done, where it has to take the usual way."""
    kernel = courier.attendance.at_rest(header.get("dir"))
    if kernel is None or header.get("again") not in (None, False) or not courier.knows(header["base"]):
        return False
    request, options, acks = header.get("cell"), header.get("wait"), header.get("ack")
    if type(request) is not dict or type(options) is not dict or type(acks) is not list:
        return False
    hold, offset = options.get("hold_ms"), options.get("offset")
    if type(hold) is not int or hold < in_lane.HOLD_MIN or type(offset) is not int or offset < 0:
        return False
    for number in acks:
        if type(number) is not int or number <= 0:
            return False
    lane = kernel.lane()
    if lane is None or not lane.offer(request, acks, kernel.replies):
        return False
    number = lane.number
    if kernel.replies:
        kernel.delivered(acks)
    # Whatever else happens meanwhile ends this wait, and has its turn next.
    is_there = courier.is_at_rest() and lane.comes_soon() or courier.loop.wait_for(lane.reply_fd, in_lane.HAND_OVER_AFTER)
    raw = lane.take_reply() if is_there else None
    if raw is not None and lane.direct:
        body = in_lane.ANSWER % (number, request["id"].encode("ascii"), offset, raw)
        if not courier.sender.answer(ref, body):
            courier.answer(_call(courier, ref, header), body)
        return True
    call = _call(courier, ref, header)
    options = call.wait_options()
    if raw is not None:
        follow.Follow(courier, call, kernel, number, options, request["id"], True).begin(False)
    else:
        in_lane.InLane(courier, call, kernel, lane, options, request["id"])
    return True


def _call(courier, ref, header):
    call = calls.Call(courier, ref, header, duties.deadline(header))
    courier.accept(call)
    return call
