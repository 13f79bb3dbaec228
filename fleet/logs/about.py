"""What people say of a log where it is silent, checked before anything is read."""

import math
from dataclasses import dataclass
from datetime import datetime

from fleet.models import Run
from fleet.traces import NAME, NAME_RULE

MOST = 2_000_000_000
MOST_TOKENS = 10**18


@dataclass(frozen=True, slots=True)
class Told:
    """What people say of a run that a log leaves out; 0, empty or None where they don't."""

    run: str
    file: str
    model: str = ""
    instance: str = ""
    n_nodes: int = 0
    tp: int = 1
    pp: int = 1
    global_batch: int = 0
    seq_len: int = 0
    precision: str = ""
    optimizer: str = ""
    tokens_per_epoch: int = 0
    team: str = ""
    started_at: datetime | None = None


def checked(told: Told) -> Told:
    """Return what was said, where it can be."""
    check_name(told.run)
    whole = (
        ("--nodes", told.n_nodes, 0),
        ("--global-batch", told.global_batch, 0),
        ("--seq-len", told.seq_len, 0),
        ("--tp", told.tp, 1),
        ("--pp", told.pp, 1),
    )
    for option, value, least in whole:
        if not least <= value <= MOST:
            raise ValueError(f"{option}: {value} cannot be; give {least} or more")
    if not 0 <= told.tokens_per_epoch <= MOST_TOKENS:
        raise ValueError(f"--tokens-per-epoch: {told.tokens_per_epoch} cannot be")
    words = (
        ("--model", told.model, 60),
        ("--instance", told.instance, 40),
        ("--precision", told.precision, 10),
        ("--optimizer", told.optimizer, 40),
        ("--team", told.team, 40),
    )
    for option, text, longest in words:
        if len(text) > longest or not text.isprintable():
            raise ValueError(f"{option}: give at most {longest} printable characters")
    return told


def check_name(name: str) -> None:
    """Refuse a name that is none, or of a run that no log was read for.

    A log is not laid over what a job reported: it has no split of a step, and where both tell
    of a step nobody could say which of them a figure is from.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"--run: {name[:80]!r} is no name for a run: {NAME_RULE}")
    found = Run.objects.filter(name=name).select_related("log").first()
    if found is not None and found.heard_at is not None:
        reason = "reports its own steps, which tell more than its log"
        raise ValueError(f"--run: {name} {reason}; import the log as another run")
    if found is not None and not hasattr(found, "log"):
        raise ValueError(f"--run: {name} is a run that no log made; choose another name")


def known(value: int) -> float:
    """Return what was said, NaN where nothing was."""
    return float(value) if value else math.nan
