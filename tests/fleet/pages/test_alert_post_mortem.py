"""The post-mortem of an alert as a page."""

from collections.abc import Callable

from django.test import Client

from fleet.models import Alert, AlertEvent
from tests.helpers import just_now

Page = Callable[..., str]


def test_it_is_the_markdown_as_a_page(page: Page, alert: Alert) -> None:
    text = page(f"/alerts/{alert.pk}/post-mortem/")

    assert "<h1>Post-mortem: llama spends 31.4 % of each step in all-reduce</h1>" in text
    assert "<h2>Who did what</h2>" in text
    assert "<td>Resolved</td> <td>not yet</td>" in text
    assert "<li>☐ Root cause: owner, due</li>" in text


def test_it_has_the_markdown_to_copy(client: Client, page: Page, alert: Alert) -> None:
    text = page(f"/alerts/{alert.pk}/post-mortem/")
    markdown = client.get(f"/alerts/{alert.pk}/post-mortem.md").text

    assert 'data-copies="markdown"' in text
    assert "| Resolved | not yet |" in text[text.index("<textarea") :]
    assert markdown.startswith("# Post-mortem: ")
    assert f'href="/alerts/{alert.pk}/post-mortem.md"' in text


def test_what_people_wrote_is_no_markup(page: Page, alert: Alert) -> None:
    words = "<script>alert(1)</script> [x](javascript:alert(2))"
    AlertEvent.objects.create(alert=alert, at=just_now(), kind="commented", by="olga", text=words)
    text = page(f"/alerts/{alert.pk}/post-mortem/")

    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert(1)" not in text
    assert 'href="javascript:' not in text


def test_the_alert_leads_there_and_it_leads_back(page: Page, alert: Alert) -> None:
    there = f"/alerts/{alert.pk}/post-mortem/"

    assert f'href="{there}">Post-mortem</a>' in page(alert.get_absolute_url())
    assert f'href="{alert.get_absolute_url()}">Alert {alert.pk}</a>' in page(there)
