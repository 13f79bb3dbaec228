"""Steps as neuronx-distributed's training examples print them, tensor-parallel and ZeRO-1."""

import math
import re

from telemetry.ingest.logs.figures import NUMBER, figure, positive, step_number, step_seconds
from telemetry.ingest.logs.records import Entry, Said

NAME = "neuronx-distributed"
FLAGS = re.ASCII | re.IGNORECASE
STEP = re.compile(r"\bstep[ :=]{1,4}(\d{1,12})\b", FLAGS)
EPOCH_AND_STEP = re.compile(r"\(\s{0,4}\d{1,9},\s{0,4}(\d{1,12})\)", FLAGS)
STEP_TIME = re.compile(rf"\bstep_time[ :=]{{1,4}}({NUMBER})\s?s\b", FLAGS)
THROUGHPUT = re.compile(rf"\bthroughput[ :=]{{1,4}}({NUMBER})\s?seq/s", FLAGS)
LOSS = re.compile(rf"\b(?:step[ _])?loss[ :=]{{1,4}}({NUMBER})", FLAGS)
RATE = re.compile(rf"\blearning_rate[ :=]{{1,4}}({NUMBER})", FLAGS)
NORM = re.compile(rf"\bgrad[ _-]norm[ :=]{{1,4}}({NUMBER})", FLAGS)


def read_neuronx(entry: Entry) -> Said | None:
    """Read one line; None where it is not whole."""
    text = entry.text
    number = EPOCH_AND_STEP.search(text) if "step_loss" in text else STEP.search(text)
    step = step_number(number[1]) if number else None
    throughput = positive(_found(THROUGHPUT, text))
    step_s = step_seconds(_found(STEP_TIME, text))
    if step is None or (math.isnan(throughput) and math.isnan(step_s)):
        return None
    return Said(
        step,
        at_s=entry.at_s,
        step_s=step_s,
        seq_per_s=throughput,
        loss=figure(_found(LOSS, text)),
        grad_norm=figure(_found(NORM, text)),
        learning_rate=figure(_found(RATE, text)),
    )


def _found(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[1] if match else None
