"""The demo's similar run: finished, without nodes, faster in FP8 than the trial's arm."""

from datetime import datetime, timedelta

import pytest

from fleet.models import Node, Run
from fleet.runs.similar_runs import differing
from fleet.simulation.demo import LIKE, N_STEPS, NAME, create_fleet, ensure_probe
from telemetry.store.models import RunChunk
from tests.helpers import just_now


@pytest.fixture
def now() -> datetime:
    return just_now().replace(microsecond=0)


def test_it_has_run_and_gave_its_nodes_back(db: None, now: datetime) -> None:
    create_fleet(now=now, longest=timedelta(hours=1))
    made = ensure_probe(now=now)

    assert made is not None
    run = Run.objects.get(name=NAME)
    assert (run.phase, run.last_step, run.precision) == (Run.Phase.FINISHED, N_STEPS, "fp8")
    assert run.finished_at is not None
    assert run.finished_at < now
    assert not Node.objects.filter(name__startswith=NAME).exists()
    assert RunChunk.objects.filter(run=NAME).exists()
    assert ensure_probe(now=now) is None


def test_the_bake_off_is_its_like(db: None, now: datetime) -> None:
    create_fleet(now=now, longest=timedelta(hours=1))
    ensure_probe(now=now)
    Run.objects.filter(name=LIKE).update(last_step=1)
    (found,) = differing(Run.objects.get(name=LIKE))

    assert found[0].name == NAME
    assert [each.what for each in found[1]] == ["precision"]
