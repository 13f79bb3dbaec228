"""How a log ends: with a loss that is no longer finite, or with errors; each is said."""

from io import StringIO

import pytest

from fleet.models import Run
from tests.importers.import_command import Write, dated, imported
from tests.importers.logs.log_lines import neuronx

pytestmark = pytest.mark.django_db


def logged(write: Write, *losses: str) -> tuple[object, str]:
    shown = StringIO()
    lines = [
        f"{dated(10.0 * n)} {neuronx(n)}".replace("loss 8.0", f"loss {loss}")
        for n, loss in enumerate(losses, 1)
    ]
    return imported(write(*lines), stderr=shown)["loss"], shown.getvalue()


@pytest.mark.parametrize(
    ("word", "value"), [("nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")]
)
def test_a_loss_that_stays_not_finite_is_said_with_its_step(
    write: Write, word: str, value: str
) -> None:
    loss, shown = logged(write, "3.5", word, "3.25", word, word)

    assert loss == value
    assert f"the loss is {value} since step 4; the last finite one was 3.25 at step 3" in shown


def test_a_loss_that_recovered_counts(write: Write) -> None:
    loss, shown = logged(write, "3.5", "nan", "3.25")

    assert loss == 3.25
    assert "the loss was NaN at 1\u202flogged step, the first is step 2" in shown


def test_a_loss_that_never_was_finite_has_no_last_one(write: Write) -> None:
    loss, shown = logged(write, "nan", "nan")

    assert loss == "NaN"
    assert "since step 1, the first that logs it" in shown


def test_a_job_that_failed_says_by_what_and_where(write: Write) -> None:
    shown = StringIO()
    lines = [f"{dated(10.0 * n)} {neuronx(n)}" for n in range(1, 6)]
    lines.append(f"{dated(70)} trn-03: nrt_execute failed: NRT_EXEC_HW_ERR_HBM_UE")
    found = imported(write(*lines), stderr=shown)
    (error,) = found["errors"]

    assert found["end"] == "failed: NRT_EXEC_HW_ERR_HBM_UE on trn-03"
    assert (error["name"], error["line"], error["node"]) == ("NRT_EXEC_HW_ERR_HBM_UE", 6, "trn-03")
    assert error["at"].endswith("00:01:10+00:00")
    assert "the job failed: NRT_EXEC_HW_ERR_HBM_UE on trn-03" in shown.getvalue()
    run = Run.objects.get(name="logged")
    assert (run.phase, run.end_reason) == ("failed", "NRT_EXEC_HW_ERR_HBM_UE on trn-03")
    # The log of a better end replaces it.
    assert imported(write(*lines[:-1]))["end"] == "ended"
    run.refresh_from_db()
    assert (run.phase, run.end_reason) == ("finished", "")


def test_a_job_without_errors_ended(write: Write) -> None:
    found = imported(write(neuronx(1), neuronx(2)))

    assert (found["end"], found["errors"]) == ("ended", [])
