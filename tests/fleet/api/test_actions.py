"""Actions on alerts, silences and tokens by the API, in the caller's name."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from fleet.access.tokens import check_token
from fleet.models import Alert, Node, Run, Silence, Token
from tests.fleet.api.conftest import Ask
from tests.helpers import just_now


def last(alert: Alert) -> tuple[str, str, str]:
    event = alert.events.order_by("-pk")[0]
    return event.kind, event.by, event.text


def test_who_takes_it_first_has_it(ask: Ask, fleet: Alert) -> None:
    path = f"alerts/{fleet.pk}/acknowledge"
    first, second = ask(path, {"comment": "on it"}, scope="act"), ask(path, {})

    assert first.json()["acknowledged_by"] == "token act"
    assert first.json()["timeline"][-1]["text"] == "on it"
    assert second.status_code == 409
    assert "acknowledged by token act" in second.json()["detail"]
    assert last(fleet) == ("acknowledged", "token act", "on it")


def test_it_is_unacknowledged(ask: Ask, fleet: Alert) -> None:
    ask(f"alerts/{fleet.pk}/acknowledge", {})

    assert ask(f"alerts/{fleet.pk}/unacknowledge", {}).json()["state"] == "firing"
    assert ask(f"alerts/{fleet.pk}/unacknowledge", {}).status_code == 409


def test_it_is_assigned_to_an_operator(ask: Ask, fleet: Alert) -> None:
    User.objects.create_superuser("ada")

    assert ask(f"alerts/{fleet.pk}/assign", {"to": "ada"}).json()["assigned_to"] == "ada"
    assert ask(f"alerts/{fleet.pk}/assign", {"to": "bob"}).status_code == 409


def test_it_is_called_over_only_once_it_is_not_seen_any_more(ask: Ask, fleet: Alert) -> None:
    Alert.objects.filter(pk=fleet.pk).update(last_seen_at=just_now())
    assert (
        "detected within the last minute" in ask(f"alerts/{fleet.pk}/resolve", {}).json()["detail"]
    )
    Alert.objects.filter(pk=fleet.pk).update(last_seen_at=just_now() - timedelta(minutes=2))

    assert ask(f"alerts/{fleet.pk}/resolve", {}).json()["state"] == "resolved"


def test_it_is_marked_false_by_one_person_and_the_mark_removed(ask: Ask, fleet: Alert) -> None:
    mark, unmark = f"alerts/{fleet.pk}/mark-false", f"alerts/{fleet.pk}/unmark-false"
    known = {"reason": "already_known", "comment": "ticket 7"}
    done, again = ask(mark, known, scope="act"), ask(mark, {"reason": "noise"})

    assert done.json()["state"] == "firing"
    assert done.json()["marked_false_by"] == "token act"
    assert (done.json()["false_reason"], done.json()["false_comment"]) == (*known.values(),)
    assert again.status_code == 409
    assert "already marked false by token act" in again.json()["detail"]
    assert last(fleet) == ("marked_false", "token act", "already known: ticket 7")
    listed = {each: ask(f"alerts?marked_false={each}").json()["items"] for each in ("yes", "no")}
    assert [[each["rule"] for each in items] for items in listed.values()] == [
        ["allreduce_share"],
        ["hang"],
    ]

    assert ask(mark, known, scope="read").status_code == 403
    removed = ask(unmark, {}).json()
    assert (removed["marked_false_at"], removed["false_reason"]) == (None, None)
    assert last(fleet) == ("unmarked_false", "token admin", "marked by token act before")
    assert ask(unmark, {}).status_code == 409
    # Without its reason, the comment has to say it.
    assert ask(mark, {"reason": "other"}).json()["detail"].startswith("comment: is empty")


def test_its_problem_is_silenced(ask: Ask, fleet: Alert) -> None:
    reported = ask(f"alerts/{fleet.pk}/silence", {"duration_s": 600.0, "reason": "swap"}).json()

    assert reported["is_silenced"]
    assert Silence.objects.get(pk=reported["silence"]).matchers == "node=limping cause=slow_core"


def test_a_silence_is_made_moved_and_ended(ask: Ask, fleet: Alert) -> None:
    new = {"matchers": "run=llama", "duration_s": 3600, "reason": "x"}
    made = ask("silences", new, scope="act")
    path = f"silences/{made.json()['id']}"

    assert made.status_code == 201
    assert ask(path).json() == made.json()
    assert ask(f"{path}/move", {"duration_s": 60}).json()["ends_at"] < made.json()["ends_at"]
    assert ask(f"{path}/end", {}).json()["expired_by"] == "token admin"
    assert ask(f"{path}/end", {}).status_code == 409


def test_a_token_is_made_reported_once_and_revoked(ask: Ask) -> None:
    made = ask("tokens", {"name": " ci ", "scope": "read", "days": 7}).json()
    secret, path = made.pop("secret"), f"tokens/{made['id']}"

    assert check_token(secret, "read").name == "ci"
    assert made["created_by"] == "token admin"
    assert secret not in ask("tokens").text + ask(path).text
    assert ask(f"{path}/revoke", {}).json()["state"] == "revoked"
    assert ask(f"{path}/revoke", {}).status_code == 409


def test_no_one_revokes_the_token_they_ask_with(ask: Ask) -> None:
    ask("me")

    assert ask(f"tokens/{Token.objects.get().pk}/revoke", {}).status_code == 409
    assert ask("me").status_code == 200


@pytest.mark.parametrize(
    ("act", "body", "field"),
    [
        ("acknowledge", b"{", "body"),
        ("acknowledge", b'{"comment": NaN}', "body"),
        ("acknowledge", b"[]", "body"),
        ("acknowledge", b"", "body"),
        ("acknowledge", {"comment": "x" * 501}, "comment"),
        ("acknowledge", {"comment": 7}, "comment"),
        ("acknowledge", {"coment": "x"}, "coment"),
        ("comment", {}, "comment"),
        ("comment", {"comment": " "}, "comment"),
        ("comment", {"comment": "a\x00b"}, "comment"),
        ("assign", {}, "to"),
        ("mark-false", {}, "reason"),
        ("mark-false", {"reason": "boring"}, "reason"),
        ("mark-false", {"reason": "noise", "comment": "x" * 401}, "comment"),
        ("mark-false", {"reason": "noise", "comment": "a\nb"}, "comment"),
        ("silence", {"reason": "x"}, "duration_s"),
        ("silence", {"reason": "x", "duration_s": "600"}, "duration_s"),
        ("silence", {"reason": "x", "duration_s": True}, "duration_s"),
        ("silence", {"reason": "x", "duration_s": 1e300}, "duration_s"),
        ("silence", {"reason": "x", "duration_s": 59}, "duration_s"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_done(
    ask: Ask, fleet: Alert, act: str, body: Any, field: str
) -> None:
    before = fleet.events.count()

    response = ask(f"alerts/{fleet.pk}/{act}", body)

    assert (response.status_code, response.json()["field"]) == (400, field)
    assert response["Content-Type"] == "application/problem+json"
    assert fleet.events.count() == before


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("silences", {"matchers": "colour=red", "duration_s": 60, "reason": "x"}, "matchers"),
        ("tokens", {"name": "x", "scope": "all"}, "scope"),
        ("tokens", {"name": "x", "scope": "read", "days": 0}, "days"),
        ("tokens", {"scope": "read"}, "name"),
    ],
)
def test_what_cannot_be_made_is_not(ask: Ask, path: str, body: Any, field: str) -> None:
    response = ask(path, body)

    assert (response.status_code, response.json()["field"]) == (400, field)
    assert not Silence.objects.exists()


def test_a_large_body_is_refused_unread(ask: Ask, fleet: Alert) -> None:
    response = ask(f"alerts/{fleet.pk}/comment", {"comment": "x" * 20_000})

    assert (response.status_code, response.json()["limit_bytes"]) == (413, 16_384)


def test_a_node_and_a_run_are_retired_and_brought_back(ask: Ask, fleet: Alert) -> None:
    Run.objects.update(finished_at=just_now())

    for path, left_out in (("nodes/silent", "nodes"), ("runs/llama", "runs")):
        retired = ask(f"{path}/retire", {}, scope="act").json()
        listed = {
            state: [each["name"] for each in ask(f"{left_out}?state={state}").json()["items"]]
            for state in ("", "retired")
        }

        assert (retired["state"], retired["retired_by"]) == ("retired", "token act")
        assert retired["name"] not in listed[""]
        assert listed["retired"] == [retired["name"]]
        assert ask(f"{path}/retire", {}).status_code == 409
        assert ask(f"{path}/unretire", {}).json()["retired_at"] is None
        assert ask(f"{path}/unretire", {}).status_code == 409
        assert ask(f"{path}/retire", {}, scope="read").status_code == 403


def test_a_node_that_reports_is_not_retired(ask: Ask, fleet: Alert) -> None:
    Node.objects.update(source=Node.Source.NEURON_MONITOR)

    refused = ask("nodes/steady/retire", {})

    assert (refused.status_code, refused.json()["field"]) == (409, "node")
