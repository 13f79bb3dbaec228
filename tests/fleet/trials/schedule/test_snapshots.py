"""Cached run observations: renewed after five minutes, deleted with their trial."""

from datetime import timedelta

from fleet.models import ObservedRun, Run, Trial
from fleet.trials.observed import observe
from fleet.trials.schedule import stored_observations, update_observed_runs
from fleet.trials.services import end
from telemetry.store.hot import HotStore
from tests.fleet.trials.conftest import made
from tests.fleet.trials.schedule.conftest import LATER


def test_the_runs_of_a_trial_are_looked_at_and_no_others(
    hot: HotStore, trained: Trial, p5: Run
) -> None:
    made("of-no-trial", "trn1.2xlarge", 1.0)

    assert update_observed_runs(hot, now=LATER) == 2
    assert stored_observations([p5])[p5.pk] == (observe(hot, p5, until=LATER), LATER)


def test_they_are_looked_at_again_after_five_minutes(hot: HotStore, trained: Trial) -> None:
    update_observed_runs(hot, now=LATER)

    assert update_observed_runs(hot, now=LATER + timedelta(minutes=4)) == 0
    assert update_observed_runs(hot, now=LATER + timedelta(minutes=5)) == 2
    assert ObservedRun.objects.count() == 2


def test_a_trial_that_is_over_is_looked_at_once_more(hot: HotStore, trained: Trial) -> None:
    update_observed_runs(hot, now=LATER)
    end(trained, now=LATER + timedelta(minutes=1))

    assert update_observed_runs(hot, now=LATER + timedelta(minutes=6)) == 2
    assert update_observed_runs(hot, now=LATER + timedelta(hours=6)) == 0
