"""Activity of a producer's thread, read from its stack."""

from __future__ import annotations

from types import FrameType

from fastfeed.core.status import IDLE, INPUT, MAKING, RANKS, ROOM
from fastfeed.core.user_code import is_own, is_users

# functions of fastfeed in which a producer waits; in any other it works for the user
WAIT_STATES = {
    ("buffer.py", "_wait_for_room"): ROOM,
    ("epoch_gate.py", "admit"): IDLE,
    ("base.py", "open"): INPUT,
    ("job_claims.py", "_after_others"): RANKS,
}
MAX_WAIT_FRAMES = 60


def activity_of(frame: FrameType | None) -> tuple[int, str]:
    """Return the state of a producer's thread, and the innermost line of the user's code, as
    "decode data.py:41"."""
    inner = own = ""
    for _ in range(MAX_WAIT_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        path = code.co_filename
        if is_own(path):
            state = WAIT_STATES.get((path[path.rfind("/") + 1 :], code.co_name), MAKING)
            return state, (own or inner) if state == MAKING else ""
        if not own:
            text = f"{code.co_name} {path[path.rfind('/') + 1 :]}:{frame.f_lineno}"
            inner = inner or text
            own = text if is_users(path, code.co_name) else ""
        frame = frame.f_back
    return MAKING, own or inner
