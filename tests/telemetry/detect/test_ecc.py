"""An uncorrected ECC error is reported when the count rises, and only then."""

import json

import numpy as np
import pytest

from telemetry.blocks import FloatArray, Span
from telemetry.detect import find, uncorrected
from telemetry.detect.node_errors import counted, is_settled, rise
from tests.telemetry.detect.runs import inputs, steps_at


def counts(memory: FloatArray, sram: FloatArray | None = None) -> Span:
    """Return counts of two nodes with three devices at so many moments, ten minutes apart."""
    values = {"mem_ecc_uncorrected": memory}
    if sram is not None:
        values["sram_ecc_uncorrected"] = sram
    return Span("s", 600 * np.arange(len(memory)), ("steady", "hot"), values)


def test_counts_that_stay_are_history() -> None:
    assert uncorrected(counts(np.full((2, 2, 3), 7.0))) == []


def test_a_rise_names_node_and_device() -> None:
    memory = np.zeros((2, 2, 3))
    memory[1, 1, 2] = 4
    (finding,) = uncorrected(counts(memory), run="llama")
    assert (finding.rule, finding.cause) == ("ecc_uncorrected", "ecc_uncorrected")
    assert (finding.node, finding.device, finding.run) == ("hot", 2, "llama")
    assert finding.evidence["n_errors"] == 4
    assert json.loads(json.dumps(finding.evidence, allow_nan=False)) == finding.evidence


def test_one_node_is_one_finding_however_many_devices() -> None:
    memory, sram = np.zeros((2, 2, 3)), np.zeros((2, 2, 3))
    memory[1, 1] = [1, 0, 2]
    sram[1, 1] = [0, 0, 3]
    (finding,) = uncorrected(counts(memory, sram))
    assert finding.device == 2
    assert finding.evidence["devices"] == {"0": 1.0, "2": 5.0}
    assert finding.evidence["culprit"]["metric"] == "sram_ecc_uncorrected"


def test_a_count_of_the_whole_node_names_no_device() -> None:
    memory = np.full((2, 2, 3), np.nan)
    memory[:, 1, 0] = [1, 4]
    (finding,) = uncorrected(counts(memory))
    assert (finding.node, finding.device) == ("hot", None)
    assert (finding.evidence["n_errors"], finding.evidence["devices"]) == (3, {})
    (alone,) = uncorrected(counts(memory[:, :, :1]))
    assert alone.device == 0


def test_a_count_that_was_reset_counts_from_zero() -> None:
    memory = np.zeros((3, 2, 3))
    memory[:, 0, 0] = [9, 9, 0]
    assert uncorrected(counts(memory)) == []
    memory[:, 0, 0] = [9, 0, 2]
    assert uncorrected(counts(memory))[0].evidence["n_errors"] == 2


def test_a_moment_that_is_missing_hides_no_rise() -> None:
    memory = np.zeros((4, 2, 3))
    memory[:, 0, 1] = [1, np.nan, np.nan, 3]
    (finding,) = uncorrected(counts(memory))
    assert finding.evidence["n_errors"] == 2
    assert finding.onset_s == 1_800


def test_a_node_seen_for_the_first_time_has_no_news() -> None:
    memory = np.full((2, 2, 3), np.nan)
    memory[1] = 5
    assert uncorrected(counts(memory)) == []


def test_nodes_that_do_not_count_are_left_alone() -> None:
    assert uncorrected(Span("s", np.arange(2), ("steady",), {})) == []
    assert uncorrected(counts(np.ones((1, 2, 3)))) == []


def test_the_rise_is_the_literal_sum() -> None:
    rng = np.random.default_rng(8)
    count = np.cumsum(rng.poisson(0.3, (50, 4)), axis=0).astype(float)
    np.testing.assert_array_equal(rise(count).sum(axis=0), count[-1] - count[0])


def test_find_looks_at_the_counts_it_is_given() -> None:
    memory = np.zeros((2, 2, 3))
    memory[1, 0, 0] = 1
    (finding,) = find(inputs(steps_at([0.1] * 9), counts=counts(memory)))
    assert finding.rule == "ecc_uncorrected"


def evidence(before: float = 3) -> dict[str, float]:
    return {"count_before": before}


@pytest.mark.parametrize("gap_s", [0.006, 10, 600, 1_800])
def test_an_alert_outlives_the_gaps_between_errors(gap_s: float) -> None:
    lasted_s, n_errors = 20 * gap_s, 21
    count = 3.0 + n_errors
    assert not is_settled(evidence(), count, quiet_s=1.1 * gap_s, lasted_s=lasted_s)
    assert is_settled(evidence(), count, quiet_s=max(480, 3.1 * gap_s), lasted_s=lasted_s)


def test_the_gap_after_a_single_error_is_unknown_and_waited_for() -> None:
    assert not is_settled(evidence(), 4, quiet_s=6_000, lasted_s=0)
    assert is_settled(evidence(), 4, quiet_s=10_800, lasted_s=0)


def test_a_count_that_was_reset_ends_the_alert() -> None:
    assert is_settled(evidence(), 0, quiet_s=1, lasted_s=100)
    assert is_settled({}, 9, quiet_s=1, lasted_s=100)


def test_the_newest_count_that_was_reported_is_the_count() -> None:
    memory = np.full((3, 2, 3), np.nan)
    memory[:2, 0] = [[1, 0, 0], [1, 2, 0]]
    assert counted(counts(memory), "steady") == 3
    assert counted(counts(memory), "hot") is None
    assert counted(Span("s", np.arange(2), ("steady",), {}), "steady") is None


def test_its_evidence_remembers_what_had_been_counted_before() -> None:
    memory = np.full((2, 2, 3), 7.0)
    memory[1, 1, 2] = 9
    (finding,) = uncorrected(counts(memory))
    assert finding.evidence["count_before"] == 21
