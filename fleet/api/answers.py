"""What a call says about its lines, and what it is told became of them."""

import math

from fleet.intake.arrivals import NAME, NAME_RULE
from fleet.problem import ProblemError

RETRY_AFTER_S = 5
MAX_LINES = 10_000


def unavailable() -> ProblemError:
    """Return the answer while Redis or the database is away: nothing was stored, try again."""
    return ProblemError(
        503,
        "The store is away; nothing of this was taken. Send it again.",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def too_often(limit: int) -> ProblemError:
    """Return the answer to a token that sends too many requests."""
    detail = f"More than {limit:,} requests in a minute with this token. Send more lines in each."
    return ProblemError(429, detail, headers={"Retry-After": "60"})


def check_node(node: str | None) -> str | None:
    """Return the node that a call names, None where it names none."""
    if node is None:
        return None
    if not NAME.fullmatch(node):
        raise ProblemError(400, f"{node[:80]!r} is no name for a node: {NAME_RULE}.", field="node")
    return node


def check_sent(header: str | None) -> float | None:
    """Return when a call says it was sent, by its own clock."""
    return _seconds("X-Trnwatch-At", "the Unix time in seconds", header)


def check_up(header: str | None) -> float | None:
    """Return how long a call says its machine has been up, seconds."""
    return _seconds("X-Trnwatch-Up", "the seconds since boot", header)


def _seconds(name: str, meaning: str, header: str | None) -> float | None:
    """Return the seconds in a header, None where it is not there."""
    if header is None:
        return None
    try:
        told_s = float(header)
    except ValueError:
        told_s = math.nan
    if not 0 <= told_s <= 1e11:
        raise ProblemError(400, f"{name} is {meaning}, not {header[:40]!r}.", field=name)
    return told_s


def split_lines(body: bytes) -> list[bytes]:
    """Return the lines of a body; refuse one that is blank or has too many."""
    if body.count(b"\n") > MAX_LINES:
        detail = f"The body has more than {MAX_LINES:,} lines. Send fewer reports at a time."
        raise ProblemError(413, detail, limit_lines=MAX_LINES)
    if not body.strip():
        raise ProblemError(400, "The body is empty. Send a line for each report.", field="body")
    return body.split(b"\n")
