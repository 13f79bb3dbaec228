"""Which lines are worth a look: most of a log is not, and is told apart by a few plain words."""

import re

ANY = re.compile(
    rb"loss|step_time|s/it|it/s|NEURON_|NCC_WRAPPER|Compiler status |"
    rb"elapsed time per iteration|'train|\"train|summary/|optimizer \.\.\."
)
# A line with one of these is of a known kind; where nothing can be read of it, it is damaged.
SURE = (
    b"step_time",
    b"step_loss",
    b"elapsed time per iteration",
    b"NEURON_CC_WRAPPER||",
    b"NEURON_HW_ERR=",
    b"{'loss'",
    b'{"loss"',
)


def may_matter(line: bytes) -> bool:
    """Whether any reader could know a line; every line of a log passes here."""
    return ANY.search(line) is not None


def is_known_kind(line: bytes) -> bool:
    """Whether a line is surely of a kind that is read."""
    return any(mark in line for mark in SURE)
