"""`manage.py import_trace`: the published answer, all or nothing, invalid input."""

import json
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import DatabaseError

from fleet.models import RecordedTrace, Run
from fleet.runs.imported import verdict_text
from importers.traces.trace import Trace
from telemetry.store import durable
from telemetry.store.models import RunChunk
from tests.importers.made_traces import Job
from tests.importers.recorded import made_job, recorded_traces, trace_file, write_parquet
from tests.importers.traces.kineto_files import Kineto

pytestmark = pytest.mark.django_db

KEYS = [
    "run",
    "workers",
    "steps",
    "step_s",
    "slowdown_ratio",
    "m_w",
    "m_s",
    "allreduce_share_ratio",
    "wait_share_ratio",
    "transfer_share_ratio",
    "other_comm_share_ratio",
    "cause",
    "culprit",
    "culprits",
]
MOST_S = 5.0


def imported(*files: Path, run: str = "recorded", **options: Any) -> dict[str, Any]:
    out = StringIO()
    call_command("import_trace", *map(str, files), run=run, json=True, stdout=out, **options)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def refused(*files: Path, run: str = "recorded", **options: Any) -> str:
    with pytest.raises(CommandError) as reported:
        imported(*files, run=run, **options)
    assert reported.value.returncode == 2
    return str(reported.value)


@pytest.fixture(scope="module")
def limping() -> Trace:
    return made_job().trace()


@pytest.fixture
def file(limping: Trace, tmp_path: Path) -> Path:
    return write_parquet(limping, tmp_path / "limping.parquet")


@pytest.mark.parametrize("recorded", recorded_traces(), ids=str)
def test_it_finds_the_published_answer_in_time(recorded: Path | None, tmp_path: Path) -> None:
    path, answer = trace_file(recorded, tmp_path)
    began_s = time.process_time()
    found = imported(path)

    assert time.process_time() - began_s < MOST_S
    assert list(found) == KEYS
    assert (found["cause"], found["culprit"]) == (answer.cause, answer.culprit)
    assert found["culprits"] == [answer.culprit]
    for name in ("step_s", "slowdown_ratio", "m_w"):
        assert found[name] == pytest.approx(getattr(answer, name), rel=0.01)
    assert found["m_s"] == pytest.approx(answer.m_s, abs=0.01)
    shares = found["wait_share_ratio"] + found["transfer_share_ratio"]
    assert shares == pytest.approx(found["allreduce_share_ratio"])


def test_what_is_unknown_is_null(tmp_path: Path) -> None:
    found = imported(write_parquet(Job().trace(), tmp_path / "even.parquet"))

    assert (found["cause"], found["culprit"], found["culprits"]) == ("none", None, [])
    assert (found["m_w"], found["m_s"]) == (None, None)


@pytest.mark.parametrize(
    ("job", "cause", "culprits", "text"),
    [
        (
            Job(dp=8, pp=1, work=lambda _s, dp, _p, _m: 2.0 if dp in {2, 5} else 1.0),
            "several_workers",
            {"rank2-dp2-stage0", "rank5-dp5-stage0"},
            "Several workers are the cause",
        ),
        (Job(steps=2), "too_short", set(), "cannot show a cause"),
        (Job(p2p=lambda *_: 200.0), "communication", set(), "is other communication"),
    ],
    ids=["several", "short", "send and receive"],
)
def test_every_cause_is_reported_and_explained(
    tmp_path: Path, job: Job, cause: str, culprits: set[str], text: str
) -> None:
    found = imported(write_parquet(job.trace(), tmp_path / "x.parquet"))

    assert found["cause"] == cause
    assert set(found["culprits"]) == culprits
    assert (found["culprit"] in culprits) == bool(culprits)
    assert text in verdict_text(RecordedTrace.objects.get())


def test_as_text_it_names_cause_and_worker(file: Path) -> None:
    out = StringIO()
    call_command("import_trace", str(file), run="recorded", stdout=out)

    assert "One worker is the cause: rank0-dp0-stage0" in out.getvalue()
    assert "M_W" in out.getvalue()


def test_it_becomes_a_finished_run_with_its_steps(file: Path) -> None:
    imported(file)
    run = Run.objects.get(name="recorded")
    chunks = RunChunk.objects.filter(run="recorded")

    assert run.phase == Run.Phase.FINISHED
    assert sum(chunk.n_steps for chunk in chunks) == run.trace.n_steps == 4
    assert run.finished_at is not None
    length_s = (run.finished_at - run.started_at).total_seconds()
    assert length_s == pytest.approx(4 * run.trace.details["recorded_step_s"])


def test_what_a_trace_does_not_say_stays_unsaid(file: Path) -> None:
    imported(file)
    run = Run.objects.get(name="recorded")

    assert (run.model, run.instance_type) == ("not recorded", "not recorded")
    assert (run.n_nodes, run.n_tokens) == (0, 0)
    assert np.isnan(run.usd_by(run.started_at))


def test_people_may_say_what_it_ran_on(file: Path) -> None:
    imported(file, model="llama2-7b", instance="trn1.32xlarge", nodes=2)
    run = Run.objects.get(name="recorded")

    assert (run.model, run.instance_type, run.n_nodes) == ("llama2-7b", "trn1.32xlarge", 2)


def test_a_trace_that_states_when_is_set_in_its_time(limping: Trace, tmp_path: Path) -> None:
    began_s = time.time() - 7_200
    later = pa.array(limping.start_s + began_s)
    imported(write_parquet(limping, tmp_path / "x.parquet", start_ts=later))
    run = Run.objects.get(name="recorded")

    assert run.trace.is_dated
    assert run.started_at.timestamp() == pytest.approx(began_s, abs=1.0)


def test_one_older_than_steps_are_kept_ends_now(limping: Trace, tmp_path: Path) -> None:
    later = pa.array(limping.start_s + 1.6e9)
    imported(write_parquet(limping, tmp_path / "x.parquet", start_ts=later))
    run = Run.objects.get(name="recorded")

    assert not run.trace.is_dated
    assert run.finished_at is not None
    assert run.finished_at.timestamp() == pytest.approx(time.time(), abs=60)


def test_kernels_of_several_ranks_are_one_run(tmp_path: Path) -> None:
    slow: Callable[[int, int], float] = lambda _step, rank: 1.5 if rank == 2 else 1.0  # noqa: E731
    found = imported(Kineto(slow=slow).write(tmp_path))

    assert (found["workers"], found["steps"], found["cause"]) == (4, 4, "one_worker")
    assert found["culprit"] == "rank2-dp2-stage0"


def test_communication_that_no_work_hides_is_reported_without_a_cause(tmp_path: Path) -> None:
    found = imported(Kineto(tokens_us=10_000.0).write(tmp_path))

    assert found["cause"] == "none"
    assert found["other_comm_share_ratio"] == pytest.approx(10 / 120, rel=0.05)
    assert "in other communication" in verdict_text(RecordedTrace.objects.get())


def test_what_makes_it_uncertain_is_reported_aside(tmp_path: Path) -> None:
    Kineto(ranks=4).write(tmp_path)
    next(tmp_path.glob("*rank3*")).unlink()
    shown = StringIO()
    imported(tmp_path, stderr=shown)

    assert "rank of the job not in the trace" in shown.getvalue()


def test_the_same_name_twice_is_refused_unless_replaced(file: Path) -> None:
    imported(file)

    assert "give --replace" in refused(file)
    imported(file, replace=True)
    assert Run.objects.filter(name="recorded").count() == 1
    assert sum(chunk.n_steps for chunk in RunChunk.objects.filter(run="recorded")) == 4


def test_a_run_of_the_fleet_is_never_replaced(file: Path, run: Run) -> None:
    assert "is not an imported trace" in refused(file, run=run.name, replace=True)
    assert Run.objects.filter(name=run.name).exists()


@pytest.mark.parametrize("name", ["", "a b", "x" * 61, "../up", "ü"])
def test_a_name_that_is_none_is_refused(file: Path, name: str) -> None:
    assert refused(file, run=name).startswith("--run: ")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path / "gone.parquet") == (
        f"FILE: {tmp_path / 'gone.parquet'}: No such file or directory"
    )


def test_a_negative_number_of_nodes_is_refused(file: Path) -> None:
    assert refused(file, nodes=-1).startswith("--nodes: ")


def test_nothing_is_half_stored(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported(file)

    def broken(_steps: object) -> None:
        raise DatabaseError("the disk is full")

    monkeypatch.setattr(durable, "write_steps", broken)
    with pytest.raises(CommandError, match="the disk is full"):
        imported(file, replace=True)
    with pytest.raises(CommandError, match="the disk is full"):
        imported(file, run="another")

    assert list(RecordedTrace.objects.values_list("run__name", flat=True)) == ["recorded"]
    assert list(Run.objects.values_list("name", flat=True)) == ["recorded"]
    assert sum(chunk.n_steps for chunk in RunChunk.objects.all()) == 4


def test_a_broken_trace_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"traceEvents": [')

    assert "is not complete JSON" in refused(tmp_path / "x.json")
    assert not Run.objects.exists()
