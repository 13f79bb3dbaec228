"""What was refused of each node, run and token within the last minute: how much, and why."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from telemetry.store.connection import Command, Connection

# Counted in slots of ten seconds, over the last six whole ones and the one under way.
SLOT_S, N_SLOTS = 10, 6
KEEP_S = SLOT_S * (N_SLOTS + 1)
# Names are a sender's: only so many of the newest are kept.
MAX_NAMES = 500
MAX_REASON = 200
RECENT, REASON, COUNT = "refused:recent", "refused:reason:", "refused:count:"
# A refused line may be no JSON, and its name of a run too long, or no name.
RUN_IN_LINE = re.compile(rb'"run"\s*:\s*"([^"\\\x00-\x1f]{1,80})')


@dataclass(frozen=True, slots=True)
class RefusedReports:
    """How many reports were refused in the last minute, and why the newest was."""

    n: int
    per_s: float
    reason: str

    def __str__(self) -> str:
        if (per_s := round(self.per_s)) > 1:
            return f"{per_s:,} reports a second refused: {self.reason}"
        reports = "report" if self.n == 1 else "reports"
        return f"{self.n:,} {reports} refused within a minute: {self.reason}"


def note_refused(
    hot: Connection, kind: str, refused: Iterable[tuple[str, int, str]], *, now_s: float
) -> None:
    """Count refused reports, given as (name, how many, reason).

    ``kind`` is node, run, or token where reports name neither.
    """
    slot = int(now_s // SLOT_S)
    counts: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for name, n, reason in refused:
        if name and n:
            counts[name] += n
            reasons[name] = reason
    commands: list[Command] = []
    for name, n in counts.items():
        subject = f"{kind}:{name}"
        key = f"{COUNT}{subject}:{slot}"
        commands += [("INCRBY", key, n), ("EXPIRE", key, KEEP_S)]
        commands.append(("SET", REASON + subject, reasons[name][:MAX_REASON], "EX", KEEP_S))
        commands.append(("ZADD", RECENT, now_s, subject))
    if commands:
        commands.append(("ZREMRANGEBYRANK", RECENT, 0, -1 - MAX_NAMES))
        hot.execute_all([*commands, ("EXPIRE", RECENT, KEEP_S)])


def read_refused(
    hot: Connection, subjects: Iterable[str], *, now_s: float
) -> Mapping[str, RefusedReports]:
    """Return what was refused of ``node:<name>`` and ``run:<name>``, where anything was."""
    asked, slot = list(dict.fromkeys(subjects)), int(now_s // SLOT_S)
    if not asked:
        return {}
    slots = range(slot - N_SLOTS, slot + 1)
    keys = [f"{COUNT}{subject}:{each}" for subject in asked for each in slots]
    answers: list[bytes | None] = hot.execute("MGET", *keys, *(REASON + each for each in asked))
    refused = {}
    for i, subject in enumerate(asked):
        counts = answers[i * len(slots) : (i + 1) * len(slots)]
        n, reason = sum(int(count or 0) for count in counts), answers[len(keys) + i]
        if n and reason is not None:
            over_s = N_SLOTS * SLOT_S + now_s % SLOT_S
            refused[subject] = RefusedReports(n, n / over_s, reason.decode())
    return refused


def read_all_refused(hot: Connection, *, now_s: float) -> Mapping[str, RefusedReports]:
    recent: list[bytes] = hot.execute("ZRANGE", RECENT, 0, -1)
    return read_refused(hot, sorted(each.decode() for each in recent), now_s=now_s)
