"""A loss that is no longer finite: said with its step, never the last finite one as current."""

from io import StringIO

import pytest

from tests.fleet.ingest.import_command import Write, dated, imported
from tests.telemetry.ingest.logs.log_lines import neuronx

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
