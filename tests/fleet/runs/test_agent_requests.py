"""Requests to agents and workers: handed out until they expire; the first result counts."""

from datetime import timedelta

import pytest
from pytest_django import Settings

from fleet.models import Alert, Node, ProbeRequest, Run, SampleRequest, TraceRequest
from fleet.models.agent_request import AgentRequest
from fleet.runs.agent_requests import KINDS, LiveAgents, is_allowed
from telemetry.store.hot import HotStore
from telemetry.store.node_state import read_agent_requests
from tests.helpers import NOON

pytestmark = pytest.mark.django_db


@pytest.fixture
def alert(run: Run) -> Alert:
    return Alert.objects.create(
        rule="step_slow",
        run=run,
        severity=1,
        score=1.0,
        onset_at=NOON,
        fired_at=NOON,
        last_seen_at=NOON,
    )


@pytest.fixture(params=KINDS)
def request_row(request: pytest.FixtureRequest, alert: Alert, steady: Node) -> AgentRequest:
    """Give a request of each kind, asked at noon."""
    if request.param == "probe":
        return ProbeRequest.objects.create(alert=alert, node="steady", requested_at=NOON)
    if request.param == "trace":
        ends_at = NOON + timedelta(seconds=60)
        return TraceRequest.objects.create(
            alert=alert, requested_at=NOON, ends_at=ends_at, n_workers=2
        )
    return SampleRequest.objects.create(node=steady, requested_by="ada", requested_at=NOON)


def handed(hot: HotStore, row: AgentRequest) -> object:
    requested = read_agent_requests(hot, [row.KIND], [row.subject])
    return requested.get(row.subject, {}).get(row.KIND, {})


def test_a_request_is_handed_out_with_its_number_and_limits_until_it_expires(
    hot: HotStore, request_row: AgentRequest
) -> None:
    LiveAgents(hot, NOON).hand_out(request_row)

    assert handed(hot, request_row) == {"id": request_row.pk, **request_row.limits}
    [key] = hot.execute("KEYS", "agent:request:*")
    left_s = (request_row.expires_at - NOON).total_seconds()
    assert left_s - 10 < hot.execute("TTL", key) <= left_s
    LiveAgents(hot, NOON).take_back(request_row)
    assert handed(hot, request_row) == {}


def test_one_that_has_expired_is_not_handed_out(hot: HotStore, request_row: AgentRequest) -> None:
    LiveAgents(hot, request_row.expires_at).hand_out(request_row)

    assert handed(hot, request_row) == {}


def test_the_first_result_counts(request_row: AgentRequest) -> None:
    column = "result" if request_row.KIND == "trace" else "reason"
    late = type(request_row).objects.get(pk=request_row.pk)

    assert request_row.finish(NOON, **{column: "first"})
    assert not late.finish(NOON + timedelta(seconds=1), **{column: "second"})
    request_row.refresh_from_db()
    assert getattr(request_row, column) == "first"
    assert getattr(request_row, request_row.FINISHED) == NOON
    assert not type(request_row).objects.unfinished().exists()


def test_each_kind_has_its_setting(settings: Settings, request_row: AgentRequest) -> None:
    setattr(settings, request_row.SETTING, False)
    assert not is_allowed(request_row.KIND)
    setattr(settings, request_row.SETTING, True)
    assert is_allowed(request_row.KIND)
