"""The demo's trial: there once its two runs are, and only once."""

import pytest

from fleet.demo.runs import FLEET, create_run
from fleet.demo.trials import ensure_trial
from fleet.models import Trial
from tests.parts import NOON

pytestmark = pytest.mark.django_db


def test_it_compares_trainium2_with_p5() -> None:
    for demo in FLEET:
        create_run(demo, started_at=NOON)

    assert ensure_trial(now=NOON)
    assert ensure_trial(now=NOON) is None

    arms = Trial.objects.get().arms.all()
    assert [(arm.run.name, arm.is_baseline) for arm in arms] == [
        ("vit-bakeoff-p5", True),
        ("vit-bakeoff-trn2", False),
    ]


def test_without_its_runs_there_is_none() -> None:
    assert ensure_trial(now=NOON) is None
    assert not Trial.objects.exists()
