"""The reporter as a training loop uses it."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trnwatch.servers import Listener, listening, reporting_to, until
from trnwatch import Reporter
from trnwatch.steps import NoOpStep

ROOT = Path(__file__).parents[2]
ENV = {"TRNWATCH_RUN": "real", "TRNWATCH_NODE": "trn-a", "TRNWATCH_SESSION": "1"}


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as each:
        yield each


def test_a_step_is_reported_with_its_parts(listener: Listener) -> None:
    reporter = Reporter(listener.url, token="secret", env=ENV, model="llama2-7b")
    with reporter, reporter.step() as step:
        with step.input():
            time.sleep(0.01)
        for _ in range(2):
            with step.collective():
                time.sleep(0.02)
        with step.checkpoint():
            time.sleep(0.03)
        step.tokens = 4096
    until(lambda: listener.lines[-1:] != [] and listener.lines[-1]["kind"] == "end")
    run, reported, end = (line for line in listener.lines if line["kind"] != "beat")

    assert (run["kind"], run["model"], run["n_nodes"]) == ("run", "llama2-7b", 1)
    assert (reported["run"], reported["worker"], reported["step"]) == ("real", "trn-a", 1)
    assert reported["tokens"] == 4096
    assert (reported["input_s"] >= 0.01, reported["checkpoint_s"] >= 0.03) == (True, True)
    assert reported["input_s"] + reported["checkpoint_s"] < reported["step_s"]
    assert [seconds >= 0.02 for seconds in reported["collective_s"]] == [True, True]
    assert reported["arrived_at"] == sorted(reported["arrived_at"])
    assert reported["step_s"] >= 0.08
    assert (end["kind"], end["failed"]) == ("end", False)
    assert listener.headers[0]["Authorization"] == "Bearer secret"
    assert float(listener.headers[0]["X-Trnwatch-At"]) == pytest.approx(time.time(), abs=60)
    up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert float(listener.headers[0]["X-Trnwatch-Up"]) == pytest.approx(up_s, abs=60)


def test_a_process_knows_what_it_does(listener: Listener) -> None:
    reporter = Reporter(listener.url, token="secret", env=ENV)
    seen = [reporter.activity]
    with reporter.step() as step:
        with step.input():
            seen.append(reporter.activity)
        seen.append(reporter.activity)
        reporter.compile_line("MODULE_1+a: Call compiler with cmd: neuronx-cc compile x")
        seen.append(reporter.activity)
    reporter.compile_line("MODULE_1+a: Compilation Successfully Completed")
    seen.append(reporter.activity)
    reporter.finish()

    assert seen == ["", "input", "step", "compile", "other"]


def test_a_process_that_trains_again_after_its_end_reports_again(listener: Listener) -> None:
    """As a script that fine-tunes in two stages with one trainer."""
    reporter = Reporter(listener.url, token="secret", env=ENV | {"TRNWATCH_FINISH_S": "60"})
    for _ in range(2):
        for number in (1, 2):
            with reporter.step(number):
                pass
        reporter.finish()

    assert listener.steps() == [1, 2, 1, 2]
    boots = [line["boot"] for line in listener.lines if line["kind"] == "step"]
    assert boots[0] == boots[1] != boots[2] == boots[3]


def test_steps_count_from_one_or_from_where_training_continues(listener: Listener) -> None:
    with Reporter(listener.url, token="secret", env=ENV) as reporter:
        for number in (None, None, 100, None):
            with reporter.step(number):
                pass
    until(lambda: len(listener.steps()) == 4)

    assert listener.steps() == [1, 2, 100, 101]


@pytest.mark.parametrize("first", [0, 1])
def test_a_script_that_counts_anew_in_each_epoch_numbers_its_steps_on(
    listener: Listener, first: int
) -> None:
    with Reporter(listener.url, token="secret", env=ENV) as reporter:
        for _ in range(3):
            for number in range(first, first + 2):
                with reporter.step(number):
                    pass
    until(lambda: len(listener.steps()) == 6)

    assert listener.steps() == [first + i for i in range(6)]


def test_training_that_goes_back_to_a_checkpoint_says_so(listener: Listener) -> None:
    with Reporter(listener.url, token="secret", env=ENV) as reporter:
        for number in (500, 501, 500):
            with reporter.step(number):
                pass
    until(lambda: len(listener.steps()) == 3)

    assert listener.steps() == [500, 501, 500]


def test_a_step_that_fails_is_not_reported_and_fails_as_ever(listener: Listener) -> None:
    reporter = Reporter(listener.url, token="secret", env=ENV)

    def fail() -> None:
        with reporter.step():
            raise KeyError("out of memory")

    with pytest.raises(KeyError), reporter:
        fail()
    until(lambda: bool(listener.lines))

    assert listener.steps() == []
    assert (listener.lines[-1]["failed"], listener.lines[-1]["reason"]) == (True, "KeyError")


def test_without_a_server_nothing_happens() -> None:
    reporter = Reporter.from_env(env=ENV)

    with reporter.step() as step, step.collective(), step.input(), step.other():
        step.tokens = 1
    reporter.about(model="x")
    reporter.finish()

    assert isinstance(step, NoOpStep)
    assert not reporter.is_reporting


@pytest.mark.parametrize("server", ["nonsense", "ftp://x", "http://", "http://[", "https://x:y"])
def test_a_server_that_is_none_is_reported_once_and_no_more(
    server: str, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = Reporter(server, token="secret", env=ENV)
    with reporter.step():
        pass
    reporter.finish()

    assert not reporter.is_reporting


def test_a_process_without_reports_costs_nothing(listener: Listener) -> None:
    env = ENV | {"RANK": "1", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}
    reporter = Reporter(listener.url, token="secret", env=env)

    assert isinstance(reporter.step(), NoOpStep)
    assert not reporter.is_reporting


def test_what_the_run_is_may_be_reported_later(listener: Listener) -> None:
    def reported() -> dict[str, Any]:
        return [line for line in listener.lines if line["kind"] == "run"][-1]

    with Reporter(listener.url, token="secret", env=ENV) as reporter:
        until(lambda: bool(listener.lines))
        reporter.suggest(model="guessed", seq_len=2048)
        reporter.about(model="llama2-7b")
        with reporter.step():
            pass

    # A request may leave between the two calls: the last one holds both.
    until(lambda: "model" in reported() and reported()["model"] != "guessed")
    assert (reported()["model"], reported()["seq_len"]) == ("llama2-7b", 2048)


FORKS = """
import os, sys, time
from trnwatch import Reporter
reporter = Reporter.from_env()
with reporter.step(): pass
child = os.fork()
if child == 0 and sys.argv[1] == "trains":
    os.environ["TRNWATCH_NODE"] = "trn-b"
    with reporter.step(7): pass
    reporter.finish()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
with reporter.step(): pass
"""


@pytest.mark.parametrize("child", ["idles", "trains"])
def test_a_child_reports_itself_only_if_it_trains(listener: Listener, child: str) -> None:
    env = os.environ | ENV | reporting_to(listener.url)
    subprocess.run([sys.executable, "-c", FORKS, child], env=env, cwd=ROOT, check=True)
    reported = [
        (line["worker"], line["step"]) for line in listener.lines if line["kind"] == "step"
    ]
    ends = sorted(line["worker"] for line in listener.lines if line["kind"] == "end")

    assert sorted(reported) == [("trn-a", 1), ("trn-a", 2)] + [("trn-b", 7)] * (child == "trains")
    assert ends == ["trn-a"] + ["trn-b"] * (child == "trains")


@pytest.mark.parametrize(
    ("ending", "reason"), [("", ""), ("raise RuntimeError('the token is secret')", "RuntimeError")]
)
def test_a_process_that_ends_states_how(listener: Listener, ending: str, reason: str) -> None:
    script = f"""
from trnwatch import Reporter
reporter = Reporter.from_env()
with reporter.step(): pass
{ending}
"""
    env = os.environ | ENV | reporting_to(listener.url)
    subprocess.run(
        [sys.executable, "-c", script], env=env, cwd=ROOT, check=False, capture_output=True
    )

    assert listener.steps() == [1]
    assert (listener.lines[-1]["failed"], listener.lines[-1]["reason"]) == (bool(reason), reason)


def test_how_long_the_end_waits_is_set(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    Reporter(listener.url, token="secret", env=ENV | {"TRNWATCH_FINISH_S": "soon"}).finish()

    assert "TRNWATCH_FINISH_S: 'soon' is not between 0 and 600 seconds" in caplog.text


def test_the_token_is_never_logged(listener: Listener, caplog: pytest.LogCaptureFixture) -> None:
    listener.status, listener.answer = 401, {"detail": "The token is not known."}
    with caplog.at_level(logging.DEBUG):
        reporter = Reporter(listener.url, token="hush-hush", env=ENV)
        with reporter.step():
            pass
        reporter.finish()

    assert "hush-hush" not in caplog.text


def test_the_surroundings_of_job_and_node_go_with_the_facts(listener: Listener) -> None:
    env = ENV | {"SLURM_JOB_ID": "8213", "POD_NAME": "llama-0", "TRNWATCH_IMDS": "0"}
    with Reporter(listener.url, token="secret", env=env) as reporter:
        until(lambda: bool(listener.lines))
    run = next(line for line in listener.lines if line["kind"] == "run")

    assert reporter.identity is not None
    assert run["labels"] == {"slurm_job_id": "8213"}
    assert run["node"] == "trn-a"
    assert run["node_labels"] == {"slurm_job_id": "8213", "pod": "llama-0"}
