"""What each kind of receiver is sent, field by field."""

import hashlib
import hmac
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fleet.alerts.events import labels_of, routing_table
from fleet.models import Delivery, Node, Receiver, Run
from fleet.notifications.channels import CHANNELS, LONGEST_HEADER
from fleet.notifications.http_client import Allowed, HttpClient, HttpResult
from fleet.notifications.messages import Message, TimelineItem, item_of
from tests.fleet.notifications.conftest import an_alert
from tests.fleet.notifications.stranger import Post, Stranger
from tests.parts import NOON

KIND = Delivery.Kind
BASE = "https://trnwatch.example"
DOOR = HttpClient(Allowed.of(["127.0.0.0/8"]), timeout_s=5)


@pytest.fixture
def notice(run: Run, limping: Node) -> Message:
    alert = an_alert(run)
    alert.node, alert.device = limping, 3
    alert.save()
    item = item_of(alert, labels_of(alert), base_url=BASE, now=NOON)
    return Message(KIND.FIRING, key="k1", at=NOON, items=(item,), list_url=f"{BASE}/alerts/")


def sent(kind: str, notice: Message, stranger: Stranger, secret: str = "sesame") -> Post:
    receiver = Receiver(name="one", kind=kind, target=stranger.url, secret=secret)
    channel = CHANNELS[kind]
    answer = channel.send(receiver, channel.render(notice), key=notice.key, at=NOON, door=DOOR)
    assert answer.status == 200
    return stranger.posts[-1]


def test_a_webhook_is_signed_over_second_and_body(notice: Message, stranger: Stranger) -> None:
    post = sent("webhook", notice, stranger)

    at_s = post.headers["trnwatch-timestamp"]
    mine = hmac.new(b"sesame", at_s.encode() + b"." + post.body, hashlib.sha256).hexdigest()
    assert at_s == str(int(NOON.timestamp()))
    assert post.headers["trnwatch-signature"] == f"v1={mine}"
    assert post.key == post.told["id"] == "k1"


def test_a_webhook_without_a_secret_is_not_signed(notice: Message, stranger: Stranger) -> None:
    assert "trnwatch-signature" not in sent("webhook", notice, stranger, secret="").headers


def test_a_webhook_tells_all_that_is_known(notice: Message, stranger: Stranger) -> None:
    told = sent("webhook", notice, stranger).told

    [alert] = told["alerts"]
    assert (told["version"], told["kind"]) == (1, "firing")
    assert told["title"].startswith("[FIRING] llama")
    assert (alert["rule"], alert["cause"], alert["severity"]) == (
        "allreduce_share",
        "efa_latency",
        "page",
    )
    assert (alert["run"], alert["node"], alert["device"]) == ("llama", "limping", 3)
    assert alert["url"] == f"{BASE}/alerts/{alert['id']}/"
    assert alert["frozen_url"].startswith(f"{alert['url']}?from=")
    assert alert["frozen_url"].endswith(f"&at={int(NOON.timestamp())}")
    assert alert["runbook_url"] == f"{BASE}/runbooks/allreduce_share/"
    assert "<" not in alert["story"]


def test_slack_gets_one_line_for_the_phone_and_blocks_below(
    notice: Message, stranger: Stranger
) -> None:
    told = sent("slack", notice, stranger).told

    assert told["text"].startswith(":red_circle: [FIRING] llama")
    assert [block["type"] for block in told["blocks"]] == ["header", "section", "context"]
    section = told["blocks"][1]["text"]["text"]
    assert f"<{notice.items[0].url}|Open>" in section
    assert "|Runbook>" in section


def test_slack_reads_no_marks_into_names(notice: Message, stranger: Stranger) -> None:
    item = replace(notice.items[0], headline="<!channel> & <b>", blame="", story="<@U1>" * 2_000)
    told = sent("slack", replace(notice, items=(item,)), stranger).told

    assert "<!channel>" not in told["text"]
    assert "&lt;!channel&gt; &amp; &lt;b&gt;" in told["text"]
    assert "<@U1>" not in told["blocks"][1]["text"]["text"]
    assert len(told["blocks"][1]["text"]["text"]) <= 3_000
    assert len(told["blocks"][0]["text"]["text"]) <= LONGEST_HEADER


def test_slack_gets_many_alerts_in_few_blocks(notice: Message, stranger: Stranger) -> None:
    told = sent("slack", replace(notice, items=notice.items * 60), stranger).told

    assert len(told["blocks"]) < 50
    assert "and 50 more" in json.dumps(told["blocks"])


def test_pagerduty_keeps_one_incident_per_alert(notice: Message, stranger: Stranger) -> None:
    key = f"trnwatch-alert-{notice.items[0].pk}"
    trigger = sent("pagerduty", notice, stranger).told

    assert (trigger["event_action"], trigger["dedup_key"]) == ("trigger", key)
    assert trigger["routing_key"] == "sesame"
    payload = trigger["payload"]
    assert (payload["severity"], payload["source"]) == ("critical", "limping")
    assert (payload["class"], payload["group"]) == ("allreduce_share", "llama")
    assert 0 < len(payload["summary"]) <= 1024
    assert trigger["links"][0]["href"] == notice.items[0].url
    for kind, action in ((KIND.ACKNOWLEDGED, "acknowledge"), (KIND.RESOLVED, "resolve")):
        told = sent("pagerduty", replace(notice, kind=kind), stranger).told
        assert told == {"event_action": action, "dedup_key": key, "routing_key": "sesame"}


def test_pagerdutys_key_is_kept_out_of_what_is_stored(notice: Message) -> None:
    assert "sesame" not in json.dumps(CHANNELS["pagerduty"].render(notice))


def test_alertmanager_gets_labels_that_last_and_an_end_that_moves(
    notice: Message, stranger: Stranger
) -> None:
    item = replace(notice.items[0], fired_at=NOON)
    [firing] = sent("alertmanager", replace(notice, items=(item,)), stranger).told
    later = replace(notice, at=NOON + timedelta(minutes=1), items=(item,))
    [again] = sent("alertmanager", later, stranger).told
    over = replace(notice, kind=KIND.RESOLVED, items=(replace(item, resolved_at=NOON),))
    [resolved] = sent("alertmanager", over, stranger).told

    assert stranger.posts[0].path == "/in/api/v2/alerts"
    assert stranger.posts[0].headers["authorization"] == "Bearer sesame"
    assert firing["labels"] == again["labels"] == resolved["labels"]
    assert firing["labels"] == {
        "alertname": "allreduce_share",
        "trnwatch_alert": str(item.pk),
        "severity": "page",
        "run": "llama",
        "team": "LLM",
        "node": "limping",
    }
    assert firing["generatorURL"] == item.url
    assert firing["startsAt"] < firing["endsAt"] < again["endsAt"]
    assert resolved["endsAt"] == NOON.isoformat()


@pytest.mark.parametrize(
    ("kind", "body", "is_confirmed"),
    [
        ("webhook", b"<html>", True),
        ("slack", b"ok", True),
        ("slack", b" <!doctype html>", False),
        ("pagerduty", b'{"status": "success", "dedup_key": "k"}', True),
        ("pagerduty", b"ok", False),
        ("pagerduty", b"", False),
        ("pagerduty", b"[]", False),
        ("alertmanager", b"", True),
        ("alertmanager", b"<html>", False),
    ],
)
def test_only_a_receipt_is_a_receipt(kind: str, body: bytes, *, is_confirmed: bool) -> None:
    assert CHANNELS[kind].confirms(HttpResult(200, body)) is is_confirmed


def test_every_kind_puts_every_notice_in_words(notice: Message) -> None:
    change = TimelineItem(notice.items[0].pk, "acknowledged", NOON, "ada", "on it")
    # An incident that is open there already needs its key and what to do, and gets no more.
    bare = {
        ("pagerduty", KIND.ACKNOWLEDGED): "acknowledge",
        ("pagerduty", KIND.RESOLVED): "resolve",
    }
    for name, channel in CHANNELS.items():
        for kind in KIND:
            body: Any = channel.render(replace(notice, kind=kind, changes=(change,)))
            assert bare.get((name, kind), notice.items[0].headline) in json.dumps(body), (
                name,
                kind,
            )


def test_a_drill_says_that_it_is_one(notice: Message) -> None:
    drill = replace(notice, items=(replace(notice.items[0], is_drill=True),))

    assert drill.title.startswith("[FIRING DRILL]")


def test_an_empty_table_has_no_routes(db: None) -> None:
    assert routing_table() == []
