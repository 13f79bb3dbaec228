"""Step times of a log: from the log, an option, the file time, or now."""

import time

import pytest

from fleet.models import CompileEvent, Run
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
