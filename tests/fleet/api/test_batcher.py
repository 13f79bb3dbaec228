"""The batcher: requests that may wait are served with urgent ones, or after their time."""

import asyncio
import time

import pytest

from fleet.api.ingest import IngestRequest
from fleet.api.ingest_asgi import MAX_WAIT_S, Batcher, _wait_s

A_LONG_TIME_S = 3600.0
pytestmark = pytest.mark.django_db(transaction=True)


def anonymous_request() -> IngestRequest:
    """Return a call that is soon refused."""
    return IngestRequest({}, "a", b"", time.time())


async def waiting_and_urgent() -> tuple[IngestRequest, IngestRequest]:
    """Send a request that may wait for an hour, then an urgent one."""
    batcher, patient_request, urgent = Batcher(), anonymous_request(), anonymous_request()
    waiting = asyncio.create_task(batcher.serve(patient_request, wait_s=A_LONG_TIME_S))
    await asyncio.sleep(0)
    await batcher.serve(urgent)
    await waiting
    return patient_request, urgent


def test_a_request_that_may_wait_is_served_with_the_next_urgent_one(redis_url: str) -> None:
    patient_request, urgent = asyncio.run(asyncio.wait_for(waiting_and_urgent(), 60))

    assert patient_request.problem is not None
    assert urgent.problem is not None


def test_alone_it_is_served_when_its_time_has_come(redis_url: str) -> None:
    request = anonymous_request()
    asyncio.run(asyncio.wait_for(Batcher().serve(request, wait_s=0.01), 60))

    assert request.problem is not None


@pytest.mark.parametrize(
    ("prefer", "wait_s"),
    [
        ("", 0.0),
        ("wait=0", 0.0),
        ("wait=1", 1.0),
        ("respond-async, wait=1", 1.0),
        ("wait=9999", MAX_WAIT_S),
        ("wait=-1", 0.0),
        ("wait=99999", 0.0),
        ("await=1", 0.0),
    ],
)
def test_a_client_states_how_long_it_may_wait(prefer: str, wait_s: float) -> None:
    assert _wait_s(prefer) == wait_s
