"""Response codes to outcomes, and retry delays."""

import random
from datetime import timedelta
from email.utils import format_datetime

import pytest

from fleet.notifications.delivery import LONGEST_WAIT, RetryPolicy, result_of
from fleet.notifications.http_client import HttpResult
from tests.helpers import NOON

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("status", "is_sent", "is_final"),
    [
        (200, True, False),
        (202, True, False),
        (204, True, False),
        (301, False, True),
        (302, False, False),
        (308, False, True),
        (400, False, True),
        (403, False, True),
        (404, False, True),
        (410, False, True),
        (408, False, False),
        (425, False, False),
        (429, False, False),
        (500, False, False),
        (503, False, False),
        (999, False, False),
    ],
)
def test_a_status_is_an_arrival_a_retry_or_the_end(
    status: int, *, is_sent: bool, is_final: bool
) -> None:
    outcome = result_of(HttpResult(status), is_confirmed=True, now=NOON)

    assert (outcome.is_sent, outcome.is_final) == (is_sent, is_final)


def test_a_response_of_another_server_is_no_delivery() -> None:
    outcome = result_of(HttpResult(200, b"<html>Please pay"), is_confirmed=False, now=NOON)

    assert not outcome.is_sent
    assert not outcome.is_final
    assert outcome.why == "200, but not from such a receiver: <html>Please pay"


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("7", 7 * SECOND),
        (format_datetime(NOON + 90 * SECOND, usegmt=True), 90 * SECOND),
        (format_datetime(NOON - 90 * SECOND, usegmt=True), 0 * SECOND),
        ("999999", LONGEST_WAIT),
        ("99999999999999999999", None),
        ("soon", None),
        ("-1", None),
        ("", None),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(text: str, wait: timedelta | None) -> None:
    answer = HttpResult(429, retry_after=text)

    assert result_of(answer, is_confirmed=True, now=NOON).retry_after == wait


def test_delays_double_up_to_a_limit_with_half_of_each_random() -> None:
    policy, rng = RetryPolicy(first_s=2, longest_s=60), random.Random(1)

    for n_attempts, whole_s in ((1, 2), (2, 4), (3, 8), (6, 60), (10_000, 60)):
        pauses = [policy.pause(n_attempts, rng=rng).total_seconds() for _ in range(200)]
        assert whole_s / 2 <= min(pauses) < 0.6 * whole_s
        assert 0.9 * whole_s < max(pauses) <= whole_s


def test_retries_ends_by_time_but_not_before_a_few_attempts() -> None:
    policy = RetryPolicy(give_up_after=timedelta(hours=1), min_attempts=5, max_attempts=100)

    assert not policy.is_over(99, timedelta(minutes=59))
    assert not policy.is_over(4, timedelta(hours=2))
    assert policy.is_over(5, timedelta(hours=1))
    assert policy.is_over(100, timedelta(0))


def test_what_was_noted_is_one_short_printable_line() -> None:
    shown = HttpResult(400, b"no\r\n\x1b[31m way \xff" + b"x" * 500).text

    assert shown.startswith("no [31m way \ufffdx")
    assert len(shown) == 200
