"""What must agree between arms: same, different, not reported."""

import pytest

from fleet.models import Run
from fleet.trials.figures import MatchState, match_runs, mismatches, unknowns


def run(**other: object) -> Run:
    fields = {"model": "vit-huge", "global_batch": 4096, "seq_len": 257, "precision": "bf16"}
    fields |= {"optimizer": ""}
    return Run(**(fields | other))


def states(*runs: Run, tokens: tuple[float | None, ...] = (1e6, 1e6)) -> dict[str, MatchState]:
    return {match.field: match.state for match in match_runs(runs, tokens)}


def test_arms_that_train_the_same_thing_differ_in_nothing() -> None:
    found = match_runs([run(), run()], [1_052_672.0, 1_052_672.0])

    assert mismatches(found) == []
    assert {match.field: match.values[0] for match in found} == {
        "model": "vit-huge",
        "global_batch": "4096",
        "seq_len": "257",
        "precision": "bf16",
        "tokens_per_step": "1,052,672",
        "optimizer": "not reported",
    }


def test_an_optimizer_that_no_one_reports_is_not_called_the_same() -> None:
    assert [match.field for match in unknowns(match_runs([run(), run()], [1.0, 1.0]))] == [
        "optimizer"
    ]


@pytest.mark.parametrize(
    ("one", "other", "state"),
    [
        ("AdamW", "adamw_torch", MatchState.SAME),
        ("AdamW", "adamw_torch_xla", MatchState.SAME),
        ("AdamW", "AdamW", MatchState.SAME),
        ("AdamW", "sgd", MatchState.DIFFERS),
        ("AdamW", "adam", MatchState.DIFFERS),
        ("AdamW", "", MatchState.UNKNOWN),
    ],
)
def test_optimizers_are_the_same_by_whatever_framework_they_are_named(
    one: str, other: str, state: MatchState
) -> None:
    assert states(run(optimizer=one), run(optimizer=other))["optimizer"] == state


def test_epochs_of_different_length_are_a_mismatch_and_none_reported_is_no_question() -> None:
    epochs = [run(tokens_per_epoch=n) for n in (10**9, 2 * 10**9)]

    assert states(*epochs)["tokens_per_epoch"] == MatchState.DIFFERS
    assert states(epochs[0], run())["tokens_per_epoch"] == MatchState.UNKNOWN
    assert "tokens_per_epoch" not in states(run(), run())


def test_a_model_that_nobody_recorded_is_not_the_same() -> None:
    logs = [run(model="not recorded"), run(model="not recorded")]

    assert states(*logs)["model"] == MatchState.UNKNOWN
    assert states(logs[0], run())["model"] == MatchState.UNKNOWN


def test_a_mismatch_names_what_each_arm_has() -> None:
    found = mismatches(match_runs([run(), run(global_batch=2048)], [1e6, 5e5]))

    assert [(match.label, match.values) for match in found] == [
        ("global batch", ("4096", "2048")),
        ("tokens per step", ("1,000,000", "500,000")),
    ]


def test_one_arm_of_three_is_enough_to_differ() -> None:
    assert (
        states(run(), run(), run(model="llama"), tokens=(1, 1, 1))["model"] == MatchState.DIFFERS
    )


def test_a_short_count_of_tokens_is_no_mismatch() -> None:
    assert states(run(), run(), tokens=(1e6, 0.995e6))["tokens_per_step"] == MatchState.SAME


def test_what_one_arm_does_not_report_is_unknown_and_not_different() -> None:
    found = states(run(), run(global_batch=0), tokens=(1e6, None))

    assert (found["global_batch"], found["tokens_per_step"]) == (
        MatchState.UNKNOWN,
        MatchState.UNKNOWN,
    )


def test_two_that_differ_do_so_though_a_third_is_silent() -> None:
    found = states(run(), run(global_batch=2), run(global_batch=0), tokens=(1, 2, None))

    assert (found["global_batch"], found["tokens_per_step"]) == (
        MatchState.DIFFERS,
        MatchState.DIFFERS,
    )
