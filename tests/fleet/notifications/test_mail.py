"""Mail: accepted, deferred, refused."""

from collections.abc import Iterator

import pytest
from pytest_django import Settings

from fleet.models import Delivery, Receiver, Run
from fleet.notifications.channels import Mail, MailServer
from fleet.notifications.http_client import (
    AddressError,
    Allowed,
    HttpClient,
    HttpResult,
    UnreachableError,
)
from fleet.notifications.messages import Message, item_of
from tests.fleet.notifications.conftest import an_alert
from tests.fleet.notifications.mail_server import MailSink, serve_mail
from tests.helpers import NOON, free_port

BODY = {"subject": "[FIRING] llama", "text": "It is slow. Ünïcode."}
CLIENT = HttpClient(Allowed(), timeout_s=2)


@pytest.fixture
def smtp_server(settings: Settings) -> Iterator[MailSink]:
    with serve_mail() as box:
        settings.SMTP_URL = box.url
        yield box


def send(to: str = "ada@example.org, bob@example.org", **body: str) -> HttpResult:
    receiver = Receiver(name="people", kind="email", target=to)
    return Mail().send(receiver, BODY | body, key="k1", at=NOON, client=CLIENT)


def test_a_message_arrives_with_its_key_as_id(smtp_server: MailSink) -> None:
    assert send().status == 250

    [message] = smtp_server.messages
    assert smtp_server.recipients == ["ada@example.org", "bob@example.org"]
    assert message["Message-ID"] == "<k1@trnwatch>"
    assert message["Idempotency-Key"] == "k1"
    assert message["Subject"] == "[FIRING] llama"
    assert "Ünïcode" in message.get_payload(decode=True).decode()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("shown", "error"), [("550 missing", AddressError), ("450 busy", UnreachableError)]
)
def test_one_who_is_refused_is_not_forgotten_because_others_are_not(
    smtp_server: MailSink, shown: str, error: type[Exception]
) -> None:
    smtp_server.refusals["bob@example.org"] = shown

    with pytest.raises(error, match=r"bob@example\.org"):
        send()
    assert len(smtp_server.messages) == 1


def test_all_refused_is_reported(smtp_server: MailSink) -> None:
    smtp_server.refusals["ada@example.org"] = "550 missing"

    with pytest.raises(AddressError, match="550 missing"):
        send("ada@example.org")


def test_a_subject_cannot_bring_a_header_along(smtp_server: MailSink) -> None:
    with pytest.raises(AddressError):
        send(subject="hello\r\nBcc: eve@example.org")


def test_no_server_there_may_be_one_later(settings: Settings) -> None:
    settings.SMTP_URL = f"smtp://127.0.0.1:{free_port()}"

    with pytest.raises(UnreachableError):
        send()


def test_no_server_set_is_reported(settings: Settings) -> None:
    settings.SMTP_URL = ""

    with pytest.raises(AddressError, match="TRNWATCH_SMTP_URL"):
        send()


def test_the_address_of_a_server_is_read() -> None:
    office = MailServer.of("smtp+starttls://ada:p%40ss@mail.example.org")

    assert (office.host, office.port, office.user, office.password) == (
        "mail.example.org",
        587,
        "ada",
        "p@ss",
    )
    with pytest.raises(AddressError, match="TRNWATCH_SMTP_URL"):
        MailServer.of("mail.example.org")


def test_it_is_text_and_html_with_the_chart_inside(smtp_server: MailSink, run: Run) -> None:
    image = b"\x89PNG\r\n\x1a\n and more"
    item = item_of(an_alert(run), None, base_url="https://trnwatch.example", now=NOON)
    message = Message(Delivery.Kind.FIRING, "k1", NOON, (item,), image=image)
    body = Mail().render(message)
    receiver = Receiver(name="people", kind="email", target="ada@example.org")
    Mail().send(receiver, body, key="k1", at=NOON, client=CLIENT)

    [mail] = smtp_server.messages
    kinds = [part.get_content_type() for part in mail.walk() if not part.is_multipart()]
    assert kinds == ["text/plain", "text/html", "image/png"]
    text, html, chart = (part for part in mail.walk() if not part.is_multipart())
    assert chart.get_payload(decode=True) == image
    shown = html.get_payload(decode=True).decode()  # type: ignore[union-attr]
    assert f'src="cid:{str(chart["Content-ID"]).strip("<>")}"' in shown
    # Outlook knows neither style sheets nor flex.
    assert "<style" not in shown
    assert "flex" not in shown
    for part in (shown, text.get_payload(decode=True).decode()):  # type: ignore[union-attr]
        assert "Do now" in part
        assert item.url in part


def test_a_mail_stored_by_an_earlier_release_is_sent_as_text(smtp_server: MailSink) -> None:
    send()
    [mail] = smtp_server.messages
    assert not mail.is_multipart()
