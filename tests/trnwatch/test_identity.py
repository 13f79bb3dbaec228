"""Identity of a training process, from launcher environments."""

from collections.abc import Mapping

import pytest

import trnwatch.log
from trnwatch.identity import identity_of, rank_place_of

TORCHRUN = {"RANK": "65", "WORLD_SIZE": "128", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "32"}
DEEPSPEED = {"RANK": "65", "WORLD_SIZE": "128", "LOCAL_RANK": "1", "LOCAL_SIZE": "32"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "65",
    "OMPI_COMM_WORLD_SIZE": "128",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "32",
}
SLURM = {
    "SLURM_PROCID": "65",
    "SLURM_NTASKS": "128",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS_PER_NODE": "32(x4)",
}
SLURM_TERSE = {"SLURM_PROCID": "65", "SLURM_NTASKS": "128", "SLURM_NNODES": "4"}


@pytest.mark.parametrize("env", [TORCHRUN, DEEPSPEED, OPEN_MPI, SLURM, SLURM_TERSE])
def test_a_process_knows_its_place(env: Mapping[str, str]) -> None:
    place = rank_place_of(env)

    assert (place.rank, place.n_ranks, place.n_local) == (65, 128, 32)
    assert (place.node_rank, place.n_nodes) == (2, 4)


def test_ranks_of_a_node_that_no_one_counts_are_logged_with_the_variable_to_set(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A script that sets them itself may leave it out: each process would count as a node."""
    rank_place_of({"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1"})

    assert "set LOCAL_WORLD_SIZE" in caplog.text


def test_torchrun_under_slurm_is_torchrun() -> None:
    assert rank_place_of(SLURM_TERSE | TORCHRUN | {"SLURM_PROCID": "2"}).rank == 65


def test_one_process_of_each_node_reports_it() -> None:
    first = identity_of(TORCHRUN | {"LOCAL_RANK": "0", "RANK": "64", "TRNWATCH_NODE": "trn-c"})
    second = identity_of(TORCHRUN | {"TRNWATCH_NODE": "trn-c"})

    assert (first.is_reporting, first.worker, first.rank, first.n_workers) == (True, "trn-c", 2, 4)
    assert not second.is_reporting


def test_of_processes_with_a_local_rank_alone_one_reports() -> None:
    """As Lightning starts them on a node."""
    env = {"WORLD_SIZE": "32", "TRNWATCH_NODE": "trn-c"}

    assert identity_of(env | {"LOCAL_RANK": "0"}).is_reporting
    assert not identity_of(env | {"LOCAL_RANK": "1"}).is_reporting


def test_every_rank_may_report() -> None:
    me = identity_of(TORCHRUN | {"TRNWATCH_NODE": "trn-c", "TRNWATCH_WORKERS": "ranks"}, {"tp": 8})

    assert (me.is_reporting, me.worker, me.rank, me.n_workers) == (True, "trn-c/1", 65, 128)
    assert me.group == "tp1"


def test_stages_hold_whole_blocks_of_ranks() -> None:
    stages = [
        identity_of(TORCHRUN | {"RANK": str(rank)}, {"pp": 4}).stage for rank in (0, 31, 32, 127)
    ]

    assert stages == [0, 0, 1, 3]
    assert identity_of(TORCHRUN).stage is None


@pytest.mark.parametrize(
    ("env", "session"),
    [
        ({"TRNWATCH_SESSION": "mine"}, "mine"),
        ({"TORCHELASTIC_RUN_ID": "j7", "TORCHELASTIC_RESTART_COUNT": "2"}, "j7.0"),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "82"}, "82.0"),
        ({"SLURM_JOB_ID": "82", "SLURM_RESTART_COUNT": "1"}, "82.1"),
        # Of torchrun's agents each counts for itself, from 0 in a job that was requeued.
        (
            {
                "SLURM_JOB_ID": "82",
                "SLURM_RESTART_COUNT": "1",
                "TORCHELASTIC_RUN_ID": "none",
                "TORCHELASTIC_RESTART_COUNT": "0",
            },
            "82.1",
        ),
        ({"PMIX_NAMESPACE": "prte-3@1"}, "prte-3-1.0"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "auto"),
        ({}, "auto"),
    ],
)
def test_a_session_is_the_launchers_on_all_nodes(env: Mapping[str, str], session: str) -> None:
    assert identity_of(env).session == session


def test_code_goes_before_the_environment_and_that_before_what_is_guessed() -> None:
    env = {"TRNWATCH_MODEL": "by env", "TRNWATCH_TP": "8", "TRNWATCH_TEAM": "LLM"}

    about = identity_of(env, {"model": "by code"}, {"model": "guessed", "tp": 2, "pp": 2}).about

    assert (about["model"], about["tp"], about["pp"], about["team"]) == ("by code", 8, 2, "LLM")


@pytest.mark.parametrize("value", ["nonsense", "-3", "0", "1e99"])
def test_a_figure_that_is_none_is_left_out(value: str) -> None:
    assert "tp" not in identity_of({"TRNWATCH_TP": value}).about


@pytest.mark.parametrize(("value", "means"), [("1", True), ("no", False), ("perhaps", None)])
def test_a_flag_is_yes_or_no_or_left_out(value: str, means: object) -> None:
    about = identity_of({"TRNWATCH_REQUIRES_PREFLIGHT": value}).about

    assert about.get("requires_preflight") is means


@pytest.mark.parametrize(("value", "means"), [("full", "full"), ("everything", None)])
def test_an_unknown_kind_of_recomputation_is_left_out(value: str, means: object) -> None:
    about = identity_of({"TRNWATCH_RECOMPUTE": value, "TRNWATCH_MICRO_BATCH": "2"}).about

    assert (about.get("recompute"), about["micro_batch"]) == (means, 2)


def test_a_setting_that_is_left_out_is_logged_with_its_rule(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = {"TRNWATCH_USD_PER_NODE_HOUR": "$21.50", "TRNWATCH_GLOBAL_BATCH": "1k"}
    about = identity_of(env, {"recompute": "selectiv"}, {"seq_len": "${max_length}"}).about

    assert about == {"n_nodes": 1, "n_workers": 1}
    assert {record.getMessage() for record in caplog.records} == {
        "trnwatch: TRNWATCH_GLOBAL_BATCH: '1k' is left out. Give a whole number above 0",
        "trnwatch: TRNWATCH_USD_PER_NODE_HOUR: '$21.50' is left out. Give a number, 0 or above",
        "trnwatch: recompute: 'selectiv' is left out. Give none, selective or full",
    }


def test_names_are_made_to_fit() -> None:
    me = identity_of({"TRNWATCH_RUN": "my run: 7b/v2", "TRNWATCH_NODE": "n"}, {"team": "x" * 99})

    assert me.run == "my-run-7b-v2"
    assert len(str(me.about["team"])) == 40


@pytest.mark.parametrize("given", ["TRNWATCH_RUN", "SLURM_JOB_NAME", "run_name"])
def test_long_names_that_begin_alike_stay_apart(given: str) -> None:
    """Names of sweeps end with what differs; together they would be one run."""
    names = [f"{'pretraining-of-llama-3-1-8b-' * 3}seed-{seed}" for seed in (1, 2)]
    runs = [
        identity_of({given: name}).run
        if given.isupper()
        else identity_of({}, suggested={"run": name}).run
        for name in names
    ]

    assert runs[0] != runs[1]
    assert {len(run) for run in runs} == {60}


def test_a_long_name_is_logged_with_what_it_becomes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trnwatch.log, "_warned", set())

    run = identity_of({"TRNWATCH_RUN": "x" * 61}).run

    assert f"has more than 60 characters: it is reported as {run}" in caplog.text


def test_long_sessions_that_begin_alike_stay_apart() -> None:
    starts = [{"TORCHELASTIC_RUN_ID": f"{'job-of-a-team-' * 5}{n}"} for n in (1, 2)]

    assert len({identity_of(env).session for env in starts}) == len(starts)
