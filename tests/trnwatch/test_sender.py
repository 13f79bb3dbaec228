"""Sending while the server is unavailable, slow, full or wrong."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import free_port
from tests.trnwatch.servers import Listener, listening, never_answering, reporting_to, until
from trnwatch import Reporter
from trnwatch.identity import identity_of
from trnwatch.sender import ReportSender
from trnwatch.steps import Record

ROOT = Path(__file__).parents[2]
ME = identity_of({"TRNWATCH_RUN": "real", "TRNWATCH_NODE": "trn-a", "TRNWATCH_SESSION": "1"})
# A step on a busy machine, with much to spare: a server is waited for a thousand times longer.
QUICK_S = 0.5


def record(number: int) -> Record:
    return (number, time.time(), 1.0, None, [None, None, None], None, None)


def sender_to(server: str, *, max_records: int = 1000) -> ReportSender:
    sender = ReportSender(server, lambda: "secret", ME, every_s=0.05, max_records=max_records)
    sender.start()
    return sender


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as each:
        yield each


def test_what_did_not_get_through_is_sent_again_in_order(listener: Listener) -> None:
    listener.status = 503
    sender = sender_to(listener.url)
    for number in range(1, 21):
        sender.put(record(number))
    time.sleep(0.3)
    listener.status = 200
    until(lambda: len(listener.steps()) == 20)
    sender.finish(failed=False, reason="", within_s=20)

    assert listener.steps() == list(range(1, 21))
    assert sender.n_dropped == 0


@pytest.mark.parametrize("status", [200, 400])
def test_what_a_portal_in_between_states_loses_nothing(listener: Listener, status: int) -> None:
    listener.status, listener.answer = status, {}
    sender = sender_to(listener.url)
    sender.put(record(1))
    until(lambda: sender._failures > 0)
    listener.status, listener.answer = 200, {"accepted": 1}
    until(lambda: 1 in listener.steps())
    sender.finish(failed=False, reason="", within_s=20)

    assert sender.n_dropped == 0
    assert listener.steps()[-1] == 1


def test_many_steps_go_in_several_bodies(listener: Listener) -> None:
    listener.status = 503
    sender = sender_to(listener.url, max_records=5000)
    for number in range(1, 1301):
        sender.put(record(number))
    listener.status = 200
    until(lambda: len(listener.steps()) == 1300)
    sender.finish(failed=False, reason="", within_s=20)

    assert max(len(body) for body in listener.bodies) <= 503


def test_a_full_queue_loses_the_oldest_and_the_server_hears_how_many(listener: Listener) -> None:
    sender = ReportSender(listener.url, lambda: "secret", ME, every_s=0.05, max_records=10)
    for number in range(1, 31):
        sender.put(record(number))
    sender.start()
    until(lambda: len(listener.steps()) == 10)
    sender.finish(failed=False, reason="", within_s=20)

    assert listener.steps() == list(range(21, 31))
    assert [line["n_dropped"] for line in listener.lines if line["kind"] == "beat"] == [20]


def test_step_numbers_that_go_back_are_another_start(listener: Listener) -> None:
    """As of a second stage of training in one process, or a restart within it."""
    sender = sender_to(listener.url)
    for number in (1, 2, 2, 3, 1, 2):
        sender.put(record(number))
    until(lambda: len(listener.steps()) == 6)
    sender.finish(failed=False, reason="", within_s=20)

    boots = [line["boot"] for line in listener.lines if line["kind"] == "step"]
    assert len(set(boots[:4])) == len(set(boots[4:])) == 1
    assert boots[0] != boots[4]


def test_facts_are_sent_again_when_the_server_wants_them(listener: Listener) -> None:
    def n_facts() -> int:
        return sum(line["kind"] == "run" for line in listener.lines)

    sender = sender_to(listener.url)
    until(lambda: n_facts() == 1)
    listener.answer["wants_run"] = True
    sender.put(record(1))
    until(lambda: listener.steps() == [1])
    del listener.answer["wants_run"]
    sender.put(record(2))
    until(lambda: listener.steps() == [1, 2])
    assert n_facts() >= 2
    n_before = n_facts()
    sender.put(record(3))
    sender.finish(failed=False, reason="", within_s=20)

    assert listener.steps() == [1, 2, 3]
    assert n_facts() == n_before


def test_a_heartbeat_says_what_the_worker_does(listener: Listener) -> None:
    sender = ReportSender(listener.url, lambda: "secret", ME, activity=lambda: "checkpoint")
    sender.start()
    until(lambda: any(line["kind"] == "beat" for line in listener.lines))
    sender.finish(failed=False, reason="", within_s=20)

    beat = next(line for line in listener.lines if line["kind"] == "beat")
    assert beat["activity"] == "checkpoint"
    assert beat["activity_s"] >= 0


def test_what_the_server_refuses_is_counted_and_not_sent_again(listener: Listener) -> None:
    sender = sender_to(listener.url)
    until(lambda: bool(listener.lines))
    listener.answer["n_refused"] = 1
    sender.put(record(1))
    until(lambda: sender.n_dropped == 1)
    listener.answer["n_refused"] = 0
    sender.put(record(2))
    until(lambda: listener.steps() == [1, 2])
    sender.finish(failed=False, reason="", within_s=20)

    assert sender.n_dropped == 1


def test_a_record_that_cannot_be_reported_takes_no_other_with_it(listener: Listener) -> None:
    sender = sender_to(listener.url)
    sender.put((1, float("nan"), 1.0, None, [None] * 3, None, None))
    sender.put(record(2))
    until(lambda: listener.steps() == [2])
    sender.finish(failed=False, reason="", within_s=20)

    assert sender.n_dropped == 1


def _trains(server: str) -> float:
    """Return how long the slowest of some steps took in addition to its own work."""
    env = {"TRNWATCH_RUN": "real", "TRNWATCH_NODE": "trn-a", "TRNWATCH_SESSION": "1"}
    reporter = Reporter(server, token="secret", env=env)
    took = []
    for _ in range(50):
        began_s = time.perf_counter()
        with reporter.step() as step, step.collective():
            pass
        took.append(time.perf_counter() - began_s)
    began_s = time.perf_counter()
    reporter.finish()

    assert time.perf_counter() - began_s < 20
    return sorted(took)[-2]


def test_training_does_not_wait_for_a_server_that_is_not_there() -> None:
    assert _trains(f"http://127.0.0.1:{free_port()}") < QUICK_S


def test_training_does_not_wait_for_a_name_that_is_unknown() -> None:
    assert _trains("http://missing.invalid") < QUICK_S


def test_training_does_not_wait_for_a_server_that_never_answers() -> None:
    with never_answering() as server:
        assert _trains(server) < QUICK_S


@pytest.mark.parametrize("status", [301, 401, 404, 429, 500])
def test_training_does_not_care_what_a_server_states(listener: Listener, status: int) -> None:
    listener.status = status

    assert _trains(listener.url) < QUICK_S


EXITS = """
from trnwatch import Reporter
reporter = Reporter.from_env()
for _ in range(10):
    with reporter.step(): pass
"""


def test_a_process_ends_though_the_server_never_answers() -> None:
    with never_answering() as server:
        env = os.environ | {"TRNWATCH_SERVER": server, "TRNWATCH_TOKEN": "secret"}
        began_s = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", EXITS], env=env, cwd=ROOT, check=False, timeout=60
        )

    assert done.returncode == 0
    assert time.monotonic() - began_s < 30


def test_a_token_file_that_cannot_be_read_stops_no_one(listener: Listener, tmp_path: Path) -> None:
    env = os.environ | {
        **reporting_to(listener.url),
        "TRNWATCH_TOKEN": "",
        "TRNWATCH_TOKEN_FILE": str(tmp_path / "none"),
    }
    subprocess.run([sys.executable, "-c", EXITS], env=env, cwd=ROOT, check=True, timeout=60)
    (tmp_path / "token").write_text("from a file\n")
    env["TRNWATCH_TOKEN_FILE"] = str(tmp_path / "token")
    subprocess.run([sys.executable, "-c", EXITS], env=env, cwd=ROOT, check=True, timeout=60)

    assert {each["Authorization"] for each in listener.headers} == {
        "Bearer ",
        "Bearer from a file",
    }
