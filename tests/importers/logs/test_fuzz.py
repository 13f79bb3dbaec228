"""Any bytes: reading ends, and every line is counted."""

import io

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from importers.logs import complete_steps
from importers.logs.steps import COLUMNS
from tests.importers.logs.log_lines import (
    NAN,
    bar,
    call,
    done,
    hit,
    megatron,
    neuronx,
    nxdt,
    read,
    trainer,
    zero1,
)
from tests.importers.logs.test_families import SAMPLES

VALID = (
    neuronx(3),
    zero1(4, seconds=1),
    megatron(5),
    nxdt(6, extra=", throughput=54.1"),
    bar(7),
    trainer(),
    call("MODULE_1+2"),
    done("MODULE_1+2"),
    hit("MODULE_1+2"),
    "Compiler status PASS",
    "NEURON_HW_ERR=DMA_ERROR nd-id=1",
    "{'train_runtime': 1, 'train_samples_per_second': 2, 'train_steps_per_second': 0}",
    *(line for sample in SAMPLES.values() for line in sample["text"].splitlines()),
)
SPICE = st.sampled_from(
    ["step 1 ", "step_time", "seq/s", "||", "[rank1]: ", "%|", "s/it", "{'loss': ", "nan", "1e999",
     "9" * 40, "\x1b[31m", "\r", "\n", "NEURON_HW_ERR=", "٣", "\x00", " | ", "MODULE_", "-"]
)  # fmt: skip
BROKEN = st.builds(
    lambda line, i, j, extra: line[:i] + extra + line[j:],
    st.sampled_from(VALID),
    st.integers(0, 200),
    st.integers(0, 200),
    SPICE,
)
LINES = st.one_of(st.sampled_from(VALID), BROKEN, SPICE, st.text(max_size=60)).map(str.encode)
DATA = st.lists(st.one_of(LINES.map(bytes), st.binary(max_size=60)), max_size=20).map(b"\n".join)


def survives(data: bytes) -> None:
    log = read(data)
    lines = list(io.BytesIO(data))
    steps = complete_steps(log.steps, global_batch=NAN, seq_len=4096.0)

    assert log.n_lines == len(lines)
    assert log.n_other + log.n_damaged <= log.n_lines
    assert (np.diff(steps.step) > 0).all()
    assert not (np.diff(steps.at_s[np.isfinite(steps.at_s)]) < 0).any()
    assert not (steps.step_s <= 0).any()
    assert all(not np.isinf(log.steps.columns()[name]).any() for name in COLUMNS)
    assert all(event.seconds >= 0 or np.isnan(event.seconds) for event in log.compiles)


@given(DATA)
@settings(max_examples=150)
def test_any_mixture_of_valid_and_broken_lines_is_read(data: bytes) -> None:
    survives(data)


@given(st.binary(max_size=400))
@settings(max_examples=100)
def test_any_bytes_are_read(data: bytes) -> None:
    survives(data)


@given(st.permutations(range(24)))
@settings(max_examples=25)
def test_ranks_may_come_in_any_order(order: list[int]) -> None:
    lines = [f"[rank{i % 4}]: {neuronx(i // 4)}" for i in order]

    assert read("\n".join(lines)).steps.columns()["step"].tolist() == list(range(6))
