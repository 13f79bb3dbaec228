"""Loss and other communication of a step: stored if reported, absent otherwise and in old data."""

from dataclasses import replace

import numpy as np
import pytest

from telemetry.blocks import FloatArray
from telemetry.steps import PHASES, REPORTED_NAN, StepBatch, is_reported
from telemetry.store import durable
from telemetry.store.chunks import (
    LOSS,
    N_COLUMNS,
    average_groups,
    chunk_of,
    decode_minutes,
    decode_steps,
    encode_steps,
)
from telemetry.store.history import run_steps
from telemetry.store.hot import HotStore
from telemetry.store.packing import CHECK_BYTES, pack_steps, unpack_steps
from tests.helpers import NOON_S

# Two steps and two minutes as the version before packed them, without any loss.
OLD_STEPS = bytes.fromhex(
    "0200000000000000070000000000000008aa9800000000002048cd010004030001005c004400000000d000d000"
    "9800808080c0cc804c0099000000c0c00000000045453f3f3d3e3e3e3e0000407f7f020080f008d002"
)
OLD_MINUTES = bytes.fromhex(
    "2090d50200f4030000000000001c4000448f4000b0f03f9a9999999999b9c93f333333333333d33f00f87f0020"
    "40000000000052f8d03fc03f0000000040000000000000f87f0b0040603030183835634bc0082e873b1364b992"
    "023459c111"
)
OLD_ROWS = np.array(
    [
        [7, 1000.5, 4096, 1.0, 0.1, 0.2, 0.3, 0, np.nan, np.nan, np.nan],
        [8, 1002.25, 4096, 1.5, 0.25, 0.125, 0, 2, np.nan, np.nan, np.nan],
    ]
)


def reported_losses(
    *losses: float, workers: tuple[str, ...] = ("a", "b"), first: int = 1
) -> StepBatch:
    """Return a step a second, each with its loss; without losses, three steps."""
    n = len(losses) or 3
    phases = dict.fromkeys(PHASES, np.full((n, len(workers)), 0.125))
    number = np.arange(first, first + n)
    loss: FloatArray | None = np.array(losses) if losses else None
    return StepBatch("llama", workers, number, NOON_S + 1.0 * number, phases, np.ones(n), loss)


def test_the_hot_tier_gives_the_loss_back_exactly(hot: HotStore) -> None:
    hot.append_steps(reported_losses(2.5, np.nan, 2.25))

    np.testing.assert_array_equal(hot.steps("llama", since_s=0).loss, [2.5, np.nan, 2.25])


def test_steps_with_and_without_a_loss_stand_side_by_side(hot: HotStore) -> None:
    hot.append_steps(reported_losses())
    hot.append_steps(reported_losses(2.0, 1.5, workers=("b", "c"), first=4))

    found = hot.steps("llama", since_s=0)

    np.testing.assert_array_equal(found.loss, [np.nan] * 3 + [2.0, 1.5])
    assert found.workers == ("b", "c", "a")
    np.testing.assert_array_equal(np.isnan(found.phases["wait_s"][:, 2]), [0, 0, 0, 1, 1])


def test_records_without_a_loss_have_no_room_for_one() -> None:
    digest, _, records = pack_steps(reported_losses())

    assert {len(record) - len(digest) - CHECK_BYTES for record in records} == {8 * (3 + 6 * 2)}
    assert unpack_steps("llama", records, lambda _: ("a", "b")).reported_loss is None


@pytest.mark.django_db
def test_the_durable_tier_keeps_it_to_a_hundredth_of_a_percent(hot: HotStore) -> None:
    durable.write_steps(reported_losses(2.345678, np.nan, 2.3))
    durable.write_steps(reported_losses(first=4))

    found = run_steps(hot, "llama", start_s=NOON_S, end_s=NOON_S + 60)

    np.testing.assert_allclose(found.loss, [2.345678, np.nan, 2.3, *[np.nan] * 3], rtol=1.3e-4)


def test_steps_packed_before_there_was_a_loss_are_read_as_they_were() -> None:
    np.testing.assert_allclose(decode_steps(OLD_STEPS), OLD_ROWS, rtol=1.3e-4)
    np.testing.assert_array_equal(decode_minutes(OLD_MINUTES), OLD_ROWS)


def test_steps_without_a_loss_are_packed_as_before() -> None:
    assert encode_steps(OLD_ROWS) == OLD_STEPS
    assert len(encode_steps(np.nan_to_num(OLD_ROWS, nan=1.0))) > len(OLD_STEPS)


def test_no_steps_are_packed_and_read() -> None:
    assert decode_steps(encode_steps(OLD_ROWS[:0])).shape == (0, N_COLUMNS)


@pytest.mark.django_db
def test_other_communication_is_kept_with_and_without_a_loss(hot: HotStore) -> None:
    other = replace(reported_losses(), reported_other_comm_s=np.array([0.5, np.nan, 0.25]))
    both = replace(
        reported_losses(2.0, 1.5, workers=("b", "c"), first=4),
        reported_other_comm_s=np.array([0.125, 0.0625]),
    )
    for batch in (other, both, reported_losses(1.25, first=6)):
        hot.append_steps(batch)
        durable.write_steps(batch)

    in_hot = hot.steps("llama", since_s=0)
    in_durable = run_steps(hot, "llama", start_s=NOON_S, end_s=NOON_S + 60)

    expected = [0.5, np.nan, 0.25, 0.125, 0.0625, np.nan]
    for found in (in_hot, in_durable):
        np.testing.assert_allclose(found.other_comm_s, expected, rtol=1.3e-4)
        np.testing.assert_allclose(found.loss, [np.nan] * 3 + [2.0, 1.5, 1.25], rtol=1.3e-4)
    np.testing.assert_allclose(in_hot[2:4].other_comm_s, expected[2:4])
    np.testing.assert_array_equal(np.isnan(in_hot.phases["wait_s"][:, 0]), [0, 0, 0, 1, 1, 0])


def kinds_of(loss: FloatArray) -> list[str]:
    """Name each loss: unknown, NaN, or its value."""
    named = np.where(is_reported(loss), "NaN", "unknown")
    found: list[str] = np.where(np.isnan(loss), named, loss.astype(str)).tolist()
    return found


DIVERGED = (2.5, np.nan, REPORTED_NAN, np.inf, -np.inf)
SHOWN = ["2.5", "unknown", "NaN", "inf", "-inf"]


def test_a_loss_of_nan_is_apart_from_an_unknown_one_in_both_tiers(hot: HotStore) -> None:
    hot.append_steps(reported_losses(*DIVERGED))

    hot_steps = hot.steps("llama", since_s=0)
    packed = decode_steps(encode_steps(chunk_of(hot_steps).steps))

    assert kinds_of(hot_steps.loss) == SHOWN
    assert kinds_of(packed[:, LOSS]) == SHOWN


def test_a_run_whose_every_loss_is_nan_reports_a_loss(hot: HotStore) -> None:
    hot.append_steps(reported_losses(REPORTED_NAN, REPORTED_NAN))

    found = hot.steps("llama", since_s=0)

    assert kinds_of(found.loss) == ["NaN", "NaN"]
    assert decode_steps(encode_steps(chunk_of(found).steps)).shape[1] == N_COLUMNS
    assert kinds_of(StepBatch.joined([found, found]).loss) == ["NaN"] * 4


def test_averages_are_of_finite_losses_and_nan_where_there_is_none() -> None:
    rows = chunk_of(reported_losses(2.0, REPORTED_NAN, 4.0, np.inf, REPORTED_NAN)).steps

    found = average_groups(rows, np.array([0, 0, 0, 1, 1]))

    assert kinds_of(found[:, LOSS]) == ["3.0", "NaN"]
