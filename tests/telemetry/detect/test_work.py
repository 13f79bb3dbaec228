"""Batches that hold other tokens in each step, as of sequences that are not packed."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from telemetry.detect.findings import Finding
from telemetry.detect.shares import SHARE
from telemetry.detect.slowdowns import RunWatch, find_slowdowns
from telemetry.steps import StepBatch
from tests.telemetry.detect.playing import (
    TOKENS,
    Change,
    from_step,
    inputs_of,
    steps_of,
    unchanged,
    untimed,
    watched,
)

N, AT = 420, 360


def varied(n_steps: int, change: Change = unchanged, *, scatter: float = 0.1) -> StepBatch:
    """Return steps that take as long as they have tokens."""
    share = 1.0 + scatter * np.random.default_rng(3).standard_normal(n_steps)

    def both(phases: dict[str, Any]) -> None:
        phases["compute_s"] *= share[:, None]
        change(phases)

    return replace(steps_of(n_steps, change=both), tokens=TOKENS * share)


def slow(findings: list[list[Finding]]) -> set[tuple[str, str | None]]:
    return {(each.cause, each.node) for looked in findings for each in looked}


def test_none_of_them_is_slow_for_its_tokens() -> None:
    assert slow(watched(varied(N))) == set()
    assert slow(watched(untimed(varied(N)))) == set()


def test_a_slow_worker_is_named() -> None:
    steps = varied(N, from_step(AT, "compute_s", 1.3, workers=[2]))
    assert slow(watched(steps)) == {("slow_compute", "n2")}


def test_a_slow_run_is_noticed_where_no_exchange_is_timed() -> None:
    steps = untimed(varied(N, from_step(AT, "compute_s", 1.4)))
    assert slow(watched(steps))


def test_a_share_above_its_limit_fires() -> None:
    steps = varied(N, from_step(AT, "transfer_s", 4.0))
    found = [{each.rule for each in looked} for looked in watched(steps, every=1, since=AT - 5)]
    assert SHARE in found[10]
    assert not any(SHARE in rules for rules in found[:5])


@pytest.mark.parametrize("pattern", [(1.0,), (1.0, 2.0), (1.0,) * 20 + (2.0,) * 100])
def test_one_batch_or_two_that_alternate_do_not_vary(pattern: tuple[float, ...]) -> None:
    steps = steps_of(120)
    steps = replace(steps, tokens=TOKENS * np.resize(pattern, 120))
    cache: dict[str, RunWatch] = {}
    for end in range(1, 121):
        find_slowdowns(inputs_of(steps[:end], cache))
        assert np.isnan(cache["r"].work.tokens)


def test_batches_that_are_equal_again_do_not_vary_any_more() -> None:
    steps = varied(60)
    tokens = np.where(np.arange(60) < 40, steps.tokens, TOKENS)
    cache: dict[str, RunWatch] = {}
    find_slowdowns(inputs_of(steps[:40], cache))
    assert cache["r"].work.tokens == pytest.approx(TOKENS, rel=0.1)
    find_slowdowns(inputs_of(replace(steps, tokens=tokens), cache))
    assert np.isnan(cache["r"].work.tokens)
