"""Step times of a log, and its prices: from the log, an option, the file time, or now."""

import time
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.utils import timezone

from fleet.costs.budgets import budget_statuses
from fleet.models import Budget, CompileEvent, Run, TeamPrice
from fleet.runs.imported import log_caveats
from tests.importers.import_command import A, B, Write, dated, imported
from tests.importers.logs.log_lines import call, done, hit, megatron, neuronx

pytestmark = pytest.mark.django_db


def test_a_run_begins_with_the_compiles_before_its_first_step(write: Write) -> None:
    stamp = f"{dated(0)[:10]} 00:00:"
    ours = [line.replace("2026-05-01 12:00:", stamp) for line in (call(A), done(A, seconds=50))]
    imported(write(hit(B), *ours, f"{dated(100)} {neuronx(1)}"))
    run = Run.objects.get(name="logged")

    assert f"{run.started_at:%Y-%m-%dT%H:%M:%SZ}" == dated(0)
    assert CompileEvent.objects.count() == 2


def test_a_log_without_times_ends_when_its_file_does(write: Write) -> None:
    path = write(*(megatron(n, ms=10_000) for n in (10, 20, 30)))
    found = imported(path)
    run = Run.objects.get(name="logged")

    assert run.finished_at is not None
    assert run.finished_at.timestamp() == pytest.approx(path.stat().st_mtime, abs=1e-3)
    assert (run.finished_at - run.started_at).total_seconds() == pytest.approx(300)
    assert (found["steps"], found["last_step"]) == (3, 30)
    assert not run.log.is_dated


def test_people_may_say_when_it_began(write: Write) -> None:
    began = dated(3600)
    imported(write(megatron(10, ms=10_000), megatron(20, ms=10_000)), started_at=began)
    run = Run.objects.get(name="logged")

    assert f"{run.started_at:%Y-%m-%dT%H:%M:%SZ}" == began
    assert f"{run.finished_at:%Y-%m-%dT%H:%M:%SZ}" == dated(3800)


@pytest.mark.parametrize(("year", "why"), [(2020, "too old"), (2190, "ahead")])
def test_steps_of_another_age_end_now(write: Write, year: int, why: str) -> None:
    imported(write(*(f"{year}-05-01T12:00:{n * 10} {neuronx(n)}" for n in range(1, 6))))
    run = Run.objects.get(name="logged")

    assert run.finished_at is not None
    assert run.finished_at.timestamp() == pytest.approx(time.time(), abs=120)
    assert (run.log.details["why_moved"], run.log.is_dated) == (why, False)
    assert (run.finished_at - run.started_at).total_seconds() == pytest.approx(49.2)


def test_a_log_that_is_moved_keeps_the_price_of_its_time_and_spends_no_budget(
    write: Write,
) -> None:
    now = timezone.now()
    began = now - timedelta(days=90)
    # The second one from the middle of its ten hours on.
    middle_days = (now - began - timedelta(hours=5)) / timedelta(days=1)
    for days, usd in ((200.0, 30.0), (middle_days, 40.0), (10.0, 50.0)):
        TeamPrice.objects.create(
            team="llm",
            instance_type="trn2.48xlarge",
            basis="contract",
            usd_per_node_hour=usd,
            valid_from=now - timedelta(days=days),
            source="mail",
            set_by="ada",
            set_at=now,
        )
    Budget.objects.create(
        team="llm",
        usd=1000.0,
        starts_at=now - timedelta(days=5),
        ends_at=now + timedelta(days=5),
        set_by="ada",
        set_at=now,
    )
    lines = [
        f"{began + timedelta(seconds=360 * n):%Y-%m-%dT%H:%M:%SZ} {neuronx(n, step_s=360.0)}"
        for n in range(1, 101)
    ]

    imported(write(*lines), team="llm", instance="trn2.48xlarge", nodes=2)

    run = Run.objects.get(name="logged")
    assert run.log.details["why_moved"] == "too old"
    assert run.usd_by(timezone.now()) == pytest.approx(2 * 5 * (30.0 + 40.0), rel=1e-3)
    (status,) = budget_statuses(now=timezone.now())
    assert (status.spent_usd, status.n_unpriced) == (0.0, 0)


def test_an_hour_that_the_clock_repeats_is_paid(write: Write) -> None:
    # Five hours of steps in local time, in the second of which summer time ends.
    lines = [
        f"{dated(60.0 * n - 3600 * (n > 100))[:-1]} step: {n}  loss:  3.0  tps: 5,461"
        for n in range(1, 301)
    ]

    imported(write(*lines))

    run = Run.objects.get(name="logged")
    assert run.finished_at is not None
    assert (run.finished_at - run.started_at).total_seconds() == pytest.approx(60 * 299)
    assert any("goes back by 59" in each and "step 101" in each for each in log_caveats(run.log))


def test_a_table_whose_elapsed_time_begins_again_ends_when_its_file_does(write: Write) -> None:
    rows = [f"{n},{10 * n if n <= 60 else 10 * (n - 60)},3" for n in range(1, 101)]
    path = write("_step,_runtime,train/loss", *rows, name="history.csv")

    call_command("import_run", str(path), run="table", stdout=StringIO(), stderr=StringIO())

    run = Run.objects.get(name="table")
    assert run.finished_at is not None
    assert (run.finished_at - run.started_at).total_seconds() == pytest.approx(10 * 99)
    assert run.finished_at.timestamp() == pytest.approx(path.stat().st_mtime, abs=1.0)
    assert any("goes back by" in each and "step 61" in each for each in log_caveats(run.log))
