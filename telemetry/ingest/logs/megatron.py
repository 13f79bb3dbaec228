"""Steps as Megatron prints them: fields between bars, times in milliseconds."""

import re

from telemetry.ingest.logs.figures import (
    LONGEST_STEP_S,
    NUMBER,
    figure,
    positive,
    step_number,
)
from telemetry.ingest.logs.records import Entry, Said

NAME = "Megatron"
MS = 1e3
FLAGS = re.ASCII | re.IGNORECASE
ITERATION = re.compile(r"\biteration\s{1,12}(\d{1,12})\s{0,4}/", FLAGS)
ELAPSED = re.compile(rf"elapsed time per iteration \((ms|s)\):\s{{0,8}}({NUMBER})", FLAGS)
OPTIMIZER = re.compile(r"optimizer \.{3,60} ([A-Za-z0-9_.-]{1,40})", re.ASCII)
VALUE = re.compile(NUMBER, FLAGS)
LOSSES = ("lm loss", "loss", "lm_loss", "train loss")


def read_megatron(entry: Entry) -> Said | None:
    """Read one line; None where it is not whole.

    The time is the mean over the iterations since the last line. Throughput is told in FLOP/s
    per device, which is no count of tokens, and left alone.
    """
    number, elapsed = ITERATION.search(entry.text), ELAPSED.search(entry.text)
    step = step_number(number[1]) if number else None
    if step is None or elapsed is None:
        return None
    told = positive(elapsed[2])
    step_s = told / MS if elapsed[1].lower() == "ms" else told
    fields = fields_of(entry.text)
    loss = next((fields[name] for name in LOSSES if name in fields), None)
    return Said(
        step,
        at_s=entry.at_s,
        step_s=step_s if step_s <= LONGEST_STEP_S else float("nan"),
        loss=figure(loss),
        grad_norm=figure(fields.get("grad norm")),
        learning_rate=figure(fields.get("learning rate")),
        global_batch=positive(fields.get("global batch size")),
        consumed=positive(fields.get("consumed samples")),
    )


def optimizer_of(text: str) -> str:
    """Return the optimizer that a line of Megatron's printed arguments names; empty: none."""
    found = OPTIMIZER.fullmatch(text.strip())
    return found[1] if found else ""


def fields_of(text: str) -> dict[str, str]:
    """Return the figures between the bars of a line, by name."""
    parts = (part.partition(":") for part in text.split("|"))
    named = ((name.strip().lower(), value.strip()) for name, _, value in parts)
    return {name: value for name, value in named if VALUE.fullmatch(value)}
