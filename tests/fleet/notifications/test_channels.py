"""The message of each receiver kind, field by field."""

import hashlib
import hmac
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from apprise.manager_plugins import NotificationManager

from fleet.alerts.events import labels_of, routing_table
from fleet.models import Delivery, Node, Receiver, Run
from fleet.notifications.channels import (
    CHANNELS,
    LONGEST_HEADER,
    SERVICES,
    apprise_service,
    encode,
)
from fleet.notifications.http_client import (
    AddressError,
    Allowed,
    HttpClient,
    HttpResult,
    UnreachableError,
)
from fleet.notifications.messages import Message, TimelineItem, item_of
from tests.fleet.notifications.conftest import an_alert
from tests.fleet.notifications.receiver_server import OK, Post, ReceiverServer, status
from tests.helpers import NOON

KIND = Delivery.Kind
BASE = "https://trnwatch.example"
CLIENT = HttpClient(Allowed.of(["127.0.0.0/8"]), timeout_s=5)


@pytest.fixture
def message(run: Run, limping: Node) -> Message:
    alert = an_alert(run)
    alert.node, alert.device = limping, 3
    alert.save()
    item = item_of(alert, labels_of(alert), base_url=BASE, now=NOON)
    return Message(KIND.FIRING, key="k1", at=NOON, items=(item,), list_url=f"{BASE}/alerts/")


def sent(kind: str, message: Message, hook_server: ReceiverServer, secret: str = "sesame") -> Post:
    receiver = Receiver(name="one", kind=kind, target=hook_server.url, secret=secret)
    channel = CHANNELS[kind]
    answer = channel.send(
        receiver, channel.render(message), key=message.key, at=NOON, client=CLIENT
    )
    assert answer.status == 200
    return hook_server.posts[-1]


def test_a_webhook_is_signed_over_second_and_body(
    message: Message, hook_server: ReceiverServer
) -> None:
    post = sent("webhook", message, hook_server)

    at_s = post.headers["trnwatch-timestamp"]
    mine = hmac.new(b"sesame", at_s.encode() + b"." + post.body, hashlib.sha256).hexdigest()
    assert at_s == str(int(NOON.timestamp()))
    assert post.headers["trnwatch-signature"] == f"v1={mine}"
    assert post.key == post.json["id"] == "k1"


def test_a_webhook_without_a_secret_is_not_signed(
    message: Message, hook_server: ReceiverServer
) -> None:
    assert "trnwatch-signature" not in sent("webhook", message, hook_server, secret="").headers


def test_a_webhook_reports_all_that_is_known(
    message: Message, hook_server: ReceiverServer
) -> None:
    body = sent("webhook", message, hook_server).json

    [alert] = body["alerts"]
    assert (body["version"], body["kind"]) == (1, "firing")
    assert body["title"].startswith("[FIRING] EFA 3 of limping is slow")
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
    message: Message, hook_server: ReceiverServer
) -> None:
    body = sent("slack", message, hook_server).json

    assert body["text"].startswith(":red_circle: [FIRING] EFA 3 of limping is slow")
    kinds = [block["type"] for block in body["blocks"]]
    assert kinds == ["header", "section", "section", "image", "context"]
    section = body["blocks"][1]["text"]["text"]
    assert f"<{message.items[0].url}|Open>" in section
    assert "|Runbook>" in section


def test_slack_reads_no_marks_into_names(message: Message, hook_server: ReceiverServer) -> None:
    item = replace(message.items[0], verdict="<!channel> & <b>", because="", story="<@U1>" * 2_000)
    body = sent("slack", replace(message, items=(item,)), hook_server).json

    assert "<!channel>" not in body["text"]
    assert "&lt;!channel&gt; &amp; &lt;b&gt;" in body["text"]
    assert "<@U1>" not in body["blocks"][1]["text"]["text"]
    assert len(body["blocks"][1]["text"]["text"]) <= 3_000
    assert len(body["blocks"][0]["text"]["text"]) <= LONGEST_HEADER


def test_slack_gets_many_alerts_in_few_blocks(
    message: Message, hook_server: ReceiverServer
) -> None:
    body = sent("slack", replace(message, items=message.items * 60), hook_server).json

    assert len(body["blocks"]) < 50
    assert "and 50 more" in json.dumps(body["blocks"])


def test_pagerduty_keeps_one_incident_per_alert(
    message: Message, hook_server: ReceiverServer
) -> None:
    key = f"trnwatch-alert-{message.items[0].pk}"
    trigger = sent("pagerduty", message, hook_server).json

    assert (trigger["event_action"], trigger["dedup_key"]) == ("trigger", key)
    assert trigger["routing_key"] == "sesame"
    payload = trigger["payload"]
    assert (payload["severity"], payload["source"]) == ("critical", "limping")
    assert (payload["class"], payload["group"]) == ("allreduce_share", "llama")
    # Of a slow core, device 17 is a core.
    assert payload["component"] == f"{message.items[0].part} {message.items[0].device}"
    assert message.items[0].part in ("core", "device", "EFA device")
    assert 0 < len(payload["summary"]) <= 1024
    assert trigger["links"][0]["href"] == message.items[0].url
    for kind, action in ((KIND.ACKNOWLEDGED, "acknowledge"), (KIND.RESOLVED, "resolve")):
        body = sent("pagerduty", replace(message, kind=kind), hook_server).json
        assert body == {"event_action": action, "dedup_key": key, "routing_key": "sesame"}


def test_pagerdutys_key_is_kept_out_of_what_is_stored(message: Message) -> None:
    assert "sesame" not in json.dumps(CHANNELS["pagerduty"].render(message))


def test_alertmanager_gets_labels_that_last_and_an_end_that_moves(
    message: Message, hook_server: ReceiverServer
) -> None:
    item = replace(message.items[0], fired_at=NOON)
    [firing] = sent("alertmanager", replace(message, items=(item,)), hook_server).json
    later = replace(message, at=NOON + timedelta(minutes=1), items=(item,))
    [again] = sent("alertmanager", later, hook_server).json
    over = replace(message, kind=KIND.RESOLVED, items=(replace(item, resolved_at=NOON),))
    [resolved] = sent("alertmanager", over, hook_server).json

    assert hook_server.posts[0].path == "/in/api/v2/alerts"
    assert hook_server.posts[0].headers["authorization"] == "Bearer sesame"
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


def test_every_channel_renders_every_notice(message: Message) -> None:
    change = TimelineItem(message.items[0].pk, "acknowledged", NOON, "ada", "on it")
    # An incident that is open there already needs its key and what to do, and gets no more.
    bare = {
        ("pagerduty", KIND.ACKNOWLEDGED): "acknowledge",
        ("pagerduty", KIND.RESOLVED): "resolve",
    }
    for name, channel in CHANNELS.items():
        for kind in KIND:
            body: Any = channel.render(replace(message, kind=kind, changes=(change,)))
            assert bare.get((name, kind), message.items[0].verdict) in json.dumps(body), (
                name,
                kind,
            )


def test_a_false_mark_is_in_every_message_about_people(message: Message) -> None:
    mark = "Marked false by ada: noise"
    marked = replace(message.items[0], false_mark=mark)
    for name in ("webhook", "slack", "email", "apprise"):
        for kind in (KIND.MARKED_FALSE, KIND.RESOLVED):
            body = json.dumps(CHANNELS[name].render(replace(message, kind=kind, items=(marked,))))
            assert mark in body, (name, kind)
    assert replace(message, kind=KIND.MARKED_FALSE).title.startswith("[MARKED FALSE]")


def test_a_drill_states_that_it_is_one(message: Message) -> None:
    drill = replace(message, items=(replace(message.items[0], is_drill=True),))

    assert drill.title.startswith("[FIRING DRILL]")


def test_an_empty_table_has_no_routes(db: None) -> None:
    assert routing_table() == []


def blocks_of(message: Message) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for block in json.loads(encode(CHANNELS["slack"].render(message)))["blocks"]:
        found.setdefault(block["type"], []).append(block)
    return found


def test_slack_shows_what_to_do_the_chart_and_a_button(message: Message) -> None:
    blocks = blocks_of(replace(message, has_buttons=True))

    assert blocks["section"][-1]["text"]["text"].startswith("*Do now*")
    [image] = blocks["image"]
    assert image["image_url"].startswith(f"{BASE}/alerts/{message.items[0].pk}/chart.png?at=")
    [button] = blocks["actions"][0]["elements"]
    assert (button["action_id"], button["value"]) == ("acknowledge", str(message.items[0].pk))


@pytest.mark.parametrize("kind", [KIND.RESOLVED, KIND.ACKNOWLEDGED])
def test_what_needs_no_action_has_no_button_in_slack(message: Message, kind: Any) -> None:
    blocks = blocks_of(replace(message, has_buttons=True, kind=kind))
    assert "actions" not in blocks
    assert not any("Do now" in each["text"]["text"] for each in blocks["section"])


def test_a_server_without_https_sends_slack_no_image(message: Message) -> None:
    item = replace(message.items[0], image_url="http://127.0.0.1:8000/alerts/1/chart.png")
    assert "image" not in blocks_of(replace(message, items=(item,)))


def test_slack_that_cannot_fetch_the_chart_gets_the_message_without(
    message: Message, hook_server: ReceiverServer
) -> None:
    hook_server.answers = [status(400, body=b"invalid_blocks"), OK]
    sent("slack", message, hook_server)

    first, then = [[block["type"] for block in post.json["blocks"]] for post in hook_server.posts]
    assert "image" in first
    assert then == [each for each in first if each != "image"]


def test_pagerduty_gets_links_the_chart_and_what_to_do(
    message: Message, hook_server: ReceiverServer
) -> None:
    body = sent("pagerduty", message, hook_server).json

    assert [link["text"] for link in body["links"]] == [
        "Open alert",
        "Charts at that time",
        "Runbook",
    ]
    assert body["images"][0]["src"] == message.items[0].image_url
    details = body["payload"]["custom_details"]
    assert (details["run"], details["node"]) == ("llama", "limping")
    assert details["do_now"].startswith("1. ")


@pytest.fixture
def discord(hook_server: ReceiverServer, monkeypatch: pytest.MonkeyPatch) -> Receiver:
    """Give a receiver of a service whose fixed host is this server."""
    monkeypatch.setattr("apprise.plugins.discord.NotifyDiscord.notify_url", hook_server.url)
    return Receiver(name="chat", kind="apprise", target=f"discord://{'1' * 18}/{'a' * 68}")


def test_other_services_are_reached_by_apprise(
    message: Message, hook_server: ReceiverServer, discord: Receiver
) -> None:
    channel = CHANNELS["apprise"]
    channel.send(discord, channel.render(message), key="k1", at=NOON, client=CLIENT)
    [post] = hook_server.posts
    assert "[FIRING] EFA 3 of limping is slow" in post.json["content"]
    assert message.items[0].url in post.json["content"]


def test_a_service_that_refuses_is_tried_again(
    message: Message, hook_server: ReceiverServer, discord: Receiver
) -> None:
    hook_server.answers = [status(503)] * 3
    channel = CHANNELS["apprise"]
    with pytest.raises(UnreachableError, match="did not accept"):
        channel.send(discord, channel.render(message), key="k1", at=NOON, client=CLIENT)


def test_a_redirect_of_a_service_is_not_followed(
    message: Message, hook_server: ReceiverServer, discord: Receiver
) -> None:
    moved = f"HTTP/1.1 307 Moved\r\nLocation: {hook_server.url}/else\r\nContent-Length: 0\r\n\r\n"
    hook_server.answers = [moved.encode()] * 3
    channel = CHANNELS["apprise"]
    with pytest.raises(UnreachableError):
        channel.send(discord, channel.render(message), key="k1", at=NOON, client=CLIENT)
    assert not [post for post in hook_server.posts if post.path.endswith("/else")]


KEY = "0123456789abcdef0123456789abcdef"
WORKFLOW = f"workflows://HOST/{KEY}/{KEY}"


@pytest.mark.parametrize(
    ("target", "why"),
    [
        # Chosen hosts, this machine, and files.
        ("json://127.0.0.1:9/x", "is not an address of dingtalk, discord"),
        ("JSONS://169.254.169.254/x", "is not an address of"),
        ("mailto://u:p@gmail.com?smtp=127.0.0.1", "is not an address of"),
        ("nostr://key?relay=ws://127.0.0.1:9", "is not an address of"),
        ("fcm://project/token?keyfile=/etc/passwd", "is not an address of"),
        ("vapid://a@b.c/d?keyfile=/etc/passwd&subfile=/etc/shadow", "is not an address of"),
        ("syslog://", "is not an address of"),
        ("https://discord.com/api/webhooks/1/2", "is not an address of"),
        ("nothing", "is not an address of"),
        (" opsgenie://key", "is not an address of"),
        ("opsgenie://", "is no valid address"),
        # Parameters, in each way of writing them.
        ("discord://1/2?template=/etc/passwd", "parameter 'template'"),
        ("discord://1/2?TEMPLATE=/etc/passwd", "parameter 'template'"),
        ("discord://1/2?%74emplate=/etc/passwd", "parameter 'template'"),
        ("discord://1/2?%20template%20=/etc/passwd", "parameter 'template'"),
        ("discord://1/2?thread=1&template=/etc/passwd", "parameter 'template'"),
        ("tgram://1:a/2?template=/etc/passwd", "parameter 'template'"),
        ("tgram://1:a/2?attach=/etc/passwd", "parameter 'attach'"),
        (f"pover://{KEY}@{KEY}?key=/etc/passwd", "parameter 'key'"),
        (f"opsgenie://{KEY}?+Host=127.0.0.1", "may not have the parameter"),
        (f"opsgenie://{KEY}?%2BHost=127.0.0.1", "may not have the parameter"),
        (f"opsgenie://{KEY}?-x=1", "may not have the parameter"),
        (f"opsgenie://{KEY}?:x=1", "may not have the parameter"),
        *(
            (f"opsgenie://{KEY}?{name}=1", f"parameter '{name}'")
            for name in ("redirect", "verify", "rto", "cto", "store", "overflow", "cfg", "retry")
        ),
        (f"spike://{KEY}?to=x", "allowed: none"),
        # Hosts that are not Microsoft's.
        *(
            (WORKFLOW.replace("HOST", host), "must have a host below|no valid address")
            for host in (
                "127.0.0.1",
                "logic.azure.com",
                "prod.logic.azure.com:9",
                "evil.example%2F.logic.azure.com",
                "prod.logic.azure.com@127.0.0.1",
                "prod.logic.azure.com.evil.example",
            )
        ),
        (WORKFLOW.replace("HOST", "p.logic.azure.com") + "?template=/etc/passwd", "'template'"),
    ],
)
def test_addresses_of_apprise_that_reach_hosts_or_files_are_refused(target: str, why: str) -> None:
    with pytest.raises(AddressError, match=why) as refused:
        apprise_service(target)
    assert "/etc/" not in str(refused.value)
    assert KEY not in str(refused.value)


@pytest.mark.parametrize(
    "target",
    [
        f"opsgenie://{KEY}-0000?priority=p1&region=eu&tags=a,b",
        f"discord://{'1' * 18}/{'a' * 68}?thread=1",
        WORKFLOW.replace("HOST", "prod-1.westeurope.logic.azure.com:443"),
        f"pover://{'u' * 30}@{'a' * 30}?priority=high",
    ],
)
def test_addresses_of_known_services_are_taken(target: str) -> None:
    assert not apprise_service(target).redirects


def test_the_services_that_may_be_named_have_no_host_and_take_no_file() -> None:
    plugins = {
        scheme: plugin
        for plugin in NotificationManager().plugins()  # type: ignore[no-untyped-call]
        for attribute in ("protocol", "secure_protocol")
        for scheme in _texts(getattr(plugin, attribute, None))
    }
    dangerous = {"template", "smtp", "relay", "keyfile", "subfile", "redirect", "store", "verify"}
    assert set(SERVICES) <= set(plugins)
    for scheme, parameters in SERVICES.items():
        templates = plugins[scheme].templates
        assert scheme.startswith("workflow") or not any("{host}" in each for each in templates)
        assert not parameters & dangerous, scheme


def _texts(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())
