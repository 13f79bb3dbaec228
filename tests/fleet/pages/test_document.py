"""Documents are pages, and their links lead to pages, from alerts and messages too."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urldefrag

import pytest
from django.conf import settings
from django.test import Client

from fleet.alerts.runbooks import steps_now
from fleet.models import Alert
from fleet.notifications.channels import slack_steps
from fleet.pages.rules import check_first, do_now
from telemetry.detect import RULES


class Places(HTMLParser):
    """The links and the ids of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.links += [given["href"] or ""] if tag == "a" and "href" in given else []
        self.ids += [given["id"] or ""] if "id" in given else []


def addresses() -> list[str]:
    docs = Path(settings.ROOT) / "docs"
    return [
        *(f"/docs/{path.stem}/" for path in docs.glob("*.md")),
        *(f"/runbooks/{path.stem}/" for path in docs.glob("runbooks/*.md")),
    ]


def test_every_link_of_a_document_leads_to_a_page_and_its_heading(
    client: Client, db: None
) -> None:
    pages = {address: client.get(address) for address in addresses()}
    places = {address: Places(page.text) for address, page in pages.items()}

    assert {page.status_code for page in pages.values()} == {200}
    assert all(len(page.ids) == len(set(page.ids)) for page in places.values())
    targets = {link for page in pages.values() for link in written_links(page.text)}
    internal = {urldefrag(link) for link in targets if not link.startswith("https:")}
    assert {address for address, _ in internal} <= set(pages)
    assert [link for link in internal if link.fragment not in [*places[link.url].ids, ""]] == []
    assert ("/docs/alerts/", "requested-probes") in internal


def written_links(page: str) -> list[str]:
    """The links of the document itself, without those of the page's menu."""
    [article] = re.findall(r"<article.*</article>", page, re.DOTALL)
    return Places(article).links


def test_links_to_what_has_no_page_become_text(client: Client, db: None) -> None:
    drills = client.get("/docs/drills/").text

    assert "](../scenarios)" in (settings.ROOT / "docs/drills.md").read_text()
    assert "<code>scenarios</code> holds examples" in drills
    assert "<img" not in client.get("/docs/trials/").text


@pytest.mark.parametrize("rule", RULES)
def test_links_of_an_alert_lead_to_pages_also_in_messages(alert: Alert, rule: str) -> None:
    alert.rule = rule
    now = do_now(alert)
    assert now is not None
    shown = Places(now.why + now.commands + now.rest + check_first(alert)).links
    sent = steps_now(alert, base_url="https://watch.example")

    assert all(link.startswith(("/docs/", "/runbooks/", "https:")) for link in shown)
    assert "](/" not in sent
    assert ".md" not in sent
    assert "](" not in slack_steps(sent)


def test_a_message_links_to_documents_of_this_installation(alert: Alert) -> None:
    alert.rule, alert.node, alert.evidence = "allreduce_share", None, {"kind": "transferring"}
    now = do_now(alert)
    assert now is not None
    [link] = Places(now.rest).links[:1]
    sent = steps_now(alert, base_url="https://watch.example")

    assert f"](https://watch.example{link})" in sent
    assert f"<https://watch.example{link}|" in slack_steps(sent)


@pytest.mark.parametrize("name", ["gremlins", "README", "0031-evidence"])
def test_an_unknown_document_is_not_found(client: Client, db: None, name: str) -> None:
    assert client.get(f"/docs/{name}/").status_code == 404
