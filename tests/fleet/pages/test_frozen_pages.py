"""Permalinks: the text next to the charts also shows the earlier time."""

import html
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone

from fleet.alerts.silences import silence
from fleet.models import Alert, Node, Run
from fleet.models.annotation import moment_of
from fleet.runs.annotations import annotate_phase
from telemetry.store.hot import HotStore
from tests.helpers import just_now

HOUR = timedelta(hours=1)

Page = Callable[..., str]


def window(*, ago_s: int, length_s: int) -> str:
    """Write a window of the past as an address holds it."""
    start = int(time.time()) - ago_s
    return f"from={start}&to={start + length_s}"


@pytest.fixture
def minute() -> str:
    """The minute up to now, in which ten steps of two seconds were taken."""
    return window(ago_s=60, length_s=60)


def test_a_run_states_what_it_did_in_the_window(page: Page, alive: Run, minute: str) -> None:
    text = page(f"/runs/llama/?{minute}")

    assert "<b>llama</b> completed <b>10</b> steps from" in text
    assert "Cost in this time range" in text
    assert "over the last minute" not in text


def test_a_run_that_took_no_step_then_states_it(page: Page, alive: Run) -> None:
    text = page(f"/runs/llama/?{window(ago_s=3600, length_s=60)}")

    assert "<b>llama</b> completed no step from" in text


def test_what_stands_for_now_is_left_out(page: Page, alive: Run, minute: str) -> None:
    assert 'id="node-steady"' not in page(f"/runs/llama/?{minute}")
    assert 'id="devices"' not in page(f"/nodes/steady/?{minute}")
    assert 'id="vitals"' not in page(f"/nodes/steady/?{minute}")


def test_a_node_leads_back_to_how_it_is_now(page: Page, alive: Run, minute: str) -> None:
    text = page(f"/nodes/steady/?{minute}")

    assert 'see <a href="/nodes/steady/" data-now>the live page</a>' in text


def test_the_alerts_are_those_that_were_open_then(
    page: Page, fired: Callable[..., Alert], minute: str, limping: Node
) -> None:
    over = fired(ago=timedelta(hours=2))
    over.resolved_at = over.fired_at + timedelta(minutes=5)
    over.save()
    lasting = fired(ago=timedelta(seconds=30), rule="node_silent", subject="node:limping")
    then = f"/nodes/limping/?{window(ago_s=7200 + 60, length_s=240)}"

    assert f'href="/alerts/{over.pk}/"' in page(then)
    assert f'href="/alerts/{lasting.pk}/"' not in page(then)
    assert f'href="/alerts/{lasting.pk}/"' in page(f"/nodes/limping/?{minute}")


def main_of(text: str) -> str:
    """Return the main content of a page."""
    content, _, end = text.partition("<main")[2].rpartition("</main>")
    assert end
    return content


def see_to(client: Client, alert: Alert) -> None:
    """Do everything about an alert that a person may do."""
    User.objects.create_user("bob").groups.add(Group.objects.get(name="operator"))
    ways = {
        "comment": {"comment": "swapped the cable"},
        "acknowledge": {"comment": "mine"},
        "assign": {"to": "bob"},
        "silence": {"matchers": "node=limping", "reason": "draining", "span": "1h"},
    }
    for way, posted in ways.items():
        headers = {"HX-Request": "true", "HX-Target": "act"}
        answer = client.post(f"/alerts/{alert.pk}/{way}/", posted, headers=headers)
        assert answer.status_code == 200


@pytest.mark.parametrize("of", ["alert", "like", "run", "node"])
@pytest.mark.parametrize("has_silence", [True, False])
def test_what_people_do_later_changes_nothing_on_it(
    client: Client,
    page: Page,
    fired: Callable[..., Alert],
    operator: User,
    minute: str,
    of: str,
    *,
    has_silence: bool,
) -> None:
    earlier = fired(ago=timedelta(days=1), subject="run:bert")
    alert = fired()
    for each in (earlier, alert):
        each.events.update(snapshot=each.snapshot)
    if has_silence:
        silence(
            "rule=allreduce_share",
            ends_at=just_now() + HOUR,
            reason="x",
            by="olga",
            now=just_now(),
        )
    paths = {
        "run": f"/runs/llama/?{minute}",
        "node": f"/nodes/limping/?{minute}",
        "alert": html.unescape(frozen_link_on(page(alert.get_absolute_url()))),
    }
    path = paths.get(of, paths["alert"])
    before = main_of(page(path))

    see_to(client, earlier if of == "like" else alert)
    Alert.objects.filter(pk=earlier.pk).update(cause="throttle", resolved_at=just_now())
    Run.objects.update(heard_at=just_now())

    assert main_of(page(path)) == before
    assert alert.get_absolute_url() in before


def frozen_link_on(text: str) -> str:
    """Return the address that an alert's page gives as its frozen link."""
    return text.partition('data-frozen-link="')[2].partition('"')[0]


def test_it_shows_what_was_done_before_it(
    client: Client, page: Page, alert: Alert, operator: User
) -> None:
    see_to(client, alert)
    text = page(html.unescape(frozen_link_on(page(alert.get_absolute_url()))))

    assert "swapped the cable" in text
    assert "Assigned to bob" in text
    assert "silenced by olga until" in text
    assert "“draining”" in text


@pytest.mark.parametrize("of", ["alert", "run", "node"])
def test_it_offers_nothing_to_do(
    page: Page, alert: Alert, operator: User, minute: str, of: str
) -> None:
    frozen = html.unescape(frozen_link_on(page(alert.get_absolute_url())))
    paths = {"alert": frozen, "run": f"/runs/llama/?{minute}", "node": f"/nodes/limping/?{minute}"}

    content = main_of(page(paths[of]))

    assert "Acknowledge" not in content
    assert 'method="post"' not in content
    assert "hx-post" not in content
    assert "Showing data from" in content


def test_the_price_is_that_of_its_end(page: Page, alive: Run) -> None:
    cut = {"from_s": time.time() - 30, "usd_per_node_hour": 1.0, "n_nodes": 4, "basis": "cut"}
    Run.objects.update(tariff=[cut])

    for ago_s, price in ((100, "$21.50 per node-hour, on demand"), (60, "$1.00")):
        text = main_of(page(f"/runs/llama/?{window(ago_s=ago_s, length_s=60)}"))
        assert f"<dt>Price</dt><dd>{price}" in text


def test_nothing_on_it_moves(client: Client, alive: Run, minute: str) -> None:
    assert "data-live=" not in client.get(f"/runs/llama/?{minute}").text


def ago(seconds: int) -> str:
    return f"?at={int(time.time()) - seconds}"


def test_the_fleet_at_a_time_shows_what_was_open_then(
    page: Page, fired: Callable[..., Alert], limping: Node, hot: HotStore
) -> None:
    over = fired(ago=timedelta(hours=2))
    over.resolved_at = over.fired_at + timedelta(minutes=5)
    over.save()
    lasting = fired(ago=timedelta(minutes=1), rule="node_silent", subject="node:limping")
    then = int(over.fired_at.timestamp()) + 60

    text = page(f"/?at={then}")
    assert f'href="/alerts/{over.pk}/?at={then}"' in text
    assert f'id="alert-{lasting.pk}"' not in text
    assert f'href="/runs/llama/?at={then}"' in text
    assert "1 unacknowledged" in text
    assert "No samples of this time are stored." in text
    assert 'data-live="' not in text
    assert f"to={then}" in text.partition('id="shares"')[2].partition(">")[0]

    text = page(f"/?at={max(hot.newest().values())}&signal=utilization")
    assert f'id="alert-{lasting.pk}"' in text
    assert f'id="alert-{over.pk}"' in text  # resolved within the day before
    assert "2 <small>of 2</small>" in text
    assert 'data-cells="' in text
    assert "30.0 %" in text
    assert ">training<" in text.replace("</span> ", "</span>").replace("> training", ">training")


def test_a_run_of_the_past_without_steps_is_in_the_phase_that_it_was_in(
    page: Page, alive: Run
) -> None:
    at = int(time.time()) - 3600
    Run.objects.update(started_at=timezone.now() - timedelta(hours=9), last_step=7)
    assert "without steps" in page(f"/?at={at}")

    alive.phase = Run.Phase.COMPILING
    annotate_phase(alive, was=Run.Phase.TRAINING, at=moment_of(at - 60))
    text = page(f"/?at={at}")
    assert "without steps" not in text
    assert "1 compiling" in text


def test_the_fleet_before_it_was_known_is_empty(page: Page, alive: Run) -> None:
    text = page(f"/{ago(10 * 86_400)}")

    assert "No run was active." in text
    assert "No alert was open." in text


@pytest.mark.parametrize(
    ("query", "refused"),
    [("at=99999999999", "at: is in the future"), ("at=noon", "at: must be Unix seconds")],
)
def test_a_time_that_is_none_is_refused_and_the_present_shown(
    page: Page, alive: Run, query: str, refused: str
) -> None:
    text = page(f"/?{query}")

    assert refused in text
    assert 'data-live="overview"' in text


@pytest.mark.parametrize("path", ["/runs/llama/", "/nodes/limping/"])
def test_a_page_at_a_time_shows_the_minutes_before_it(page: Page, alive: Run, path: str) -> None:
    at = int(time.time()) - 600

    text = page(f"{path}?at={at}")
    assert f"from={at - 900}&amp;to={at}" in text
    assert f'href="/?at={at}"' in text
    assert 'id="clock-word">frozen<' in text
