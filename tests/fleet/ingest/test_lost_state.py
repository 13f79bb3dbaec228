"""Jobs go on while Redis or the database is emptied, or is a copy of an hour ago."""

import time

import pytest

from fleet.ingest.steps import StepIngest
from fleet.models import Annotation, Run
from telemetry.store.hot import HotStore
from tests.fleet.api.training_jobs import ABOUT, NODES, line, step, step_lines
from tests.fleet.ingest.conftest import Deliver, Follow


@pytest.fixture
def now_s() -> float:
    return float(int(time.time()) // 10 * 10 - 700)


def run_now() -> Run:
    return Run.objects.get(name="real")


def copy_of(hot: HotStore) -> dict[bytes, tuple[bytes, int]]:
    keys = hot.execute("KEYS", "*")
    return {key: (hot.execute("DUMP", key), hot.execute("PTTL", key)) for key in keys}


def restore(hot: HotStore, copy: dict[bytes, tuple[bytes, int]]) -> None:
    hot.execute("FLUSHDB")
    for key, (packed, ttl_ms) in copy.items():
        hot.execute("RESTORE", key, max(0, ttl_ms), packed)


def test_a_run_goes_on_although_redis_is_a_copy_from_before_its_last_start(
    deliver: Deliver, follow: Follow, hot: HotStore, now_s: float
) -> None:
    def train(session: str, numbers: range, at_s: float) -> None:
        for number in numbers:
            at = at_s + number - numbers[0]
            deliver(*step_lines(number, ended_at=at, session=session, tokens=1), at_s=at)

    train("first", range(1, 6), now_s)
    follow(now_s + 10)
    copy = copy_of(hot)
    train("first", range(6, 11), now_s + 200)
    train("second", range(6, 21), now_s + 300)
    follow(now_s + 320)
    before = run_now()
    assert (before.last_step, before.n_tokens, before.step_shift) == (25, 25, 5)
    restore(hot, copy)
    follow(now_s + 330)
    unheard = run_now()
    train("second", range(21, 31), now_s + 331)
    follow(now_s + 350)
    after = run_now()

    assert (unheard.session, unheard.heard_at) == ("second", before.heard_at)
    assert (after.session, after.step_shift, after.starts) == ("second", 5, before.starts)
    assert (after.last_step, after.n_tokens) == (35, 35)
    assert Annotation.objects.count() == 0


def test_a_job_that_ended_while_redis_was_away_fails_by_its_silence(
    deliver: Deliver, follow: Follow, hot: HotStore, now_s: float
) -> None:
    deliver(*step_lines(1, ended_at=now_s), at_s=now_s)
    copy = copy_of(hot)
    deliver(*step_lines(2, ended_at=now_s + 300), at_s=now_s + 300)
    follow(now_s + 310)
    restore(hot, copy)
    follow(now_s + 320)
    assert run_now().phase == Run.Phase.TRAINING
    follow(now_s + 3000)

    assert (run_now().phase, run_now().end_reason) == (Run.Phase.FAILED, "its reports stopped")


def test_a_start_that_only_heartbeats_when_redis_is_emptied_counts_on(
    deliver: Deliver, follow: Follow, hot: HotStore, now_s: float
) -> None:
    """Its row has the offset of the start before, which trained the same steps."""
    for number in range(1, 11):
        deliver(*step_lines(number, ended_at=now_s + number), at_s=now_s + number)
    deliver(line("beat", session="second", worker=NODES[0], n_workers=4), at_s=now_s + 20)
    follow(now_s + 20)
    hot.execute("FLUSHDB")
    deliver(*step_lines(6, ended_at=now_s + 30, session="second"), at_s=now_s + 30)

    assert list(hot.steps("real", since_s=now_s).step) == [11]


@pytest.fixture(params=["emptied", "older"])
def lost(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def numbered(number: int, boot: str, at_s: float) -> list[bytes]:
    return [
        step(number, node, ended_at=at_s, session="auto", boot=f"{node}-{boot}", rank=rank)
        for rank, node in enumerate(NODES)
    ]


def test_two_web_processes_agree_on_a_start_after_redis_lost_it(
    db: None, follow: Follow, hot: HotStore, now_s: float, lost: str
) -> None:
    """One of them has seen the start, the other asks Redis, which knows an earlier one."""
    now = [now_s]
    seeing, other = (StepIngest(lambda: now[0]) for _ in range(2))

    def train(number: int, boot: str, *webs: StepIngest) -> None:
        now[0] += 1
        for i, each in enumerate(numbered(number, boot, now[0])):
            webs[i % len(webs)].deliver(hot, [each], arrived_s=now[0])

    train(1, "a", seeing)
    copy = copy_of(hot)
    for boot in "bc":
        train(2, boot, seeing)
    now[0] += 10 - now[0] % 10
    follow(now[0])
    assert run_now().session == "auto-3"
    restore(hot, copy if lost == "older" else {})
    train(3, "c", seeing, other)
    now[0] += 120
    train(4, "c", seeing, other)
    follow(now[0])
    batch = hot.steps("real", since_s=now_s)
    assert list(batch.step[-2:]) == [4, 5]
    assert set(hot.execute("ZRANGE", "steps-in:sessions:real", -1, -1)) == {b"auto-3"}
    # What one process alone remembered is known again: the next start is another.
    train(4, "d", other)
    follow(now[0] + 10)

    assert run_now().session == "auto-4"


def test_facts_of_a_run_that_the_database_lost_are_asked_for_once(
    db: None, hot: HotStore, now_s: float
) -> None:
    now = [now_s]
    intake = StepIngest(lambda: now[0])
    first = intake.deliver(
        hot, [line("run", **ABOUT), *step_lines(1, ended_at=now_s)], arrived_s=now_s
    )
    # Restored from a backup of before the job.
    Run.objects.all().delete()
    now[0] += 61
    lost = intake.deliver(hot, step_lines(2, ended_at=now[0]), arrived_s=now[0])
    again = intake.deliver(hot, step_lines(3, ended_at=now[0]), arrived_s=now[0])

    wanted = ["wants_run" in each.response() for each in (first, lost, again)]
    assert wanted == [False, True, False]
