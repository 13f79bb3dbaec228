"""A test message: the response is shown without secrets."""

from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from fleet.models import Delivery, Receiver
from tests.fleet.notifications.receiver_server import ReceiverServer, serve_receiver, status
from tests.fleet.pages.deliveries import hook

__all__ = ["hook"]
HTMX = {"HX-Request": "true", "HX-Target": "answer-1"}


@pytest.fixture
def hook_server(hook: Receiver, settings: Settings) -> Iterator[ReceiverServer]:
    settings.NOTIFY_ALLOW = ["127.0.0.0/8"]
    with serve_receiver() as one:
        hook.target = one.url
        hook.save()
        yield one


def path(receiver: Receiver) -> str:
    return f"/notifications/receivers/{receiver.pk}/test/"


def test_it_is_sent_at_once_and_its_answer_shown(
    client: Client, operator: User, hook: Receiver, hook_server: ReceiverServer
) -> None:
    text = client.post(path(hook), headers=HTMX).text

    assert "accepted: 200" in text
    [post] = hook_server.posts
    assert post.json["kind"] == "test"
    assert "olga tests whether trnwatch reaches hook" in post.json["title"]
    assert not Delivery.objects.exists()


def test_what_went_wrong_is_shown(
    client: Client, operator: User, hook: Receiver, hook_server: ReceiverServer
) -> None:
    hook_server.answers = [status(403, body=b"who <b>are</b> you?")]
    text = client.post(path(hook), headers=HTMX).text

    assert "not accepted" in text
    assert "403: who &lt;b&gt;are&lt;/b&gt; you?" in text


@pytest.mark.parametrize("kind", ["slack", "pagerduty", "alertmanager"])
def test_every_kind_can_be_tried(
    client: Client, operator: User, hook: Receiver, hook_server: ReceiverServer, kind: str
) -> None:
    Receiver.objects.update(kind=kind)
    hook_server.answers = [status(200, body=b'{"status": "success"}')]

    assert "accepted: 200" in client.post(path(hook), headers=HTMX).text


def test_a_private_place_is_not_called(
    client: Client, operator: User, hook: Receiver, hook_server: ReceiverServer, settings: Settings
) -> None:
    settings.NOTIFY_ALLOW = []

    assert "is a private address" in client.post(path(hook), headers=HTMX).text
    assert hook_server.posts == []


def test_without_htmx_it_leads_back(
    client: Client, operator: User, hook: Receiver, hook_server: ReceiverServer
) -> None:
    response = client.post(path(hook), follow=True)

    assert "hook accepted the test: 200" in response.text


def test_a_viewer_may_not(client: Client, viewer: User, hook: Receiver) -> None:
    assert client.post(path(hook)).status_code == 403
