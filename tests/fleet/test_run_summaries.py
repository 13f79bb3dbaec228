"""Run summaries: pace over a minute, share of the newest steps."""

import pytest
from django.utils import timezone

from fleet.models import Run
from fleet.runs.summaries import run_now, runs_now
from telemetry.store.hot import HotStore
from tests.helpers import NOON_S, steps

pytestmark = pytest.mark.django_db


def test_a_share_of_two_steps_ago_is_reported_whole(run: Run, hot: HotStore) -> None:
    now_s = timezone.now().timestamp()
    hot.append_steps(steps(n_steps=8, ended_at_s=now_s - 40, compute_s=3.6, transfer_s=0.4))
    hot.append_steps(steps(n_steps=2, first=9, ended_at_s=now_s - 6, compute_s=3.0, wait_s=3.0))

    now = runs_now(hot, [run], now_s=now_s)[0]

    assert now.share_ratio == pytest.approx(0.5)
    assert (now.wait_ratio, now.transfer_ratio) == pytest.approx((0.5, 0.0))
    assert now.step_s == pytest.approx((8 * 4.0 + 2 * 6.0) / 10)
    assert now.is_over_limit


def test_quick_steps_are_averaged_over_ten_seconds(run: Run, hot: HotStore) -> None:
    now_s = timezone.now().timestamp()
    hot.append_steps(steps(n_steps=20, ended_at_s=now_s - 24.5, compute_s=0.9, transfer_s=0.1))
    hot.append_steps(
        steps(n_steps=5, first=21, ended_at_s=now_s - 4.5, compute_s=0.7, transfer_s=0.3)
    )

    now = runs_now(hot, [run], now_s=now_s)[0]

    assert now.share_ratio == pytest.approx((5 * 0.1 + 5 * 0.3) / 10)


@pytest.mark.parametrize(
    ("phase", "is_stale"), [(Run.Phase.TRAINING, True), (Run.Phase.COMPILING, False)]
)
def test_who_states_that_it_compiles_owes_no_step(run: Run, phase: str, *, is_stale: bool) -> None:
    run.phase = phase
    reported = steps(ended_at_s=NOON_S, n_steps=10)

    assert run_now(run, reported, now_s=NOON_S + 120).is_stale is is_stale
    assert not run_now(run, reported, now_s=NOON_S + 1).is_stale
