"""One preflight: live progress, then verdict and findings."""

import re
from dataclasses import replace

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from fleet.checks.preflights import advance, pack, probed_nodes, store_verdict
from fleet.models import Node, Preflight
from telemetry.simulate.preflight import ProbeFault
from tests.fleet.pages.conftest import Page
from tests.fleet.pages.preflights import asked, done
from tests.fleet.test_anonymous_access import member
from tests.helpers import NOON
from tests.telemetry.checks.simulated_preflight import measured as measured_pairs

pytestmark = pytest.mark.django_db


def row_of(text: str, node: str) -> str:
    """Return the table's text of a node, without tags."""
    [row] = re.findall(rf'<tr id="node-{node}".*?</tr>', text, flags=re.DOTALL)
    return re.sub(r"<[^>]+>", " ", row)


def test_it_shows_the_faults_and_the_recommended_nodes(page: Page) -> None:
    preflight = done()
    text = page(f"/preflight/{preflight.pk}/")

    assert "12 of 16 nodes can be used, 12 are needed." in text
    assert "EFA device 5 responds in" in row_of(text, "n-03")
    assert "15 of 16 accelerators" in row_of(text, "n-09")
    pair = row_of(text, "n-06") + row_of(text, "n-11")
    assert "slow with n-11 only" in pair
    assert "slow with n-06 only" in pair
    assert len(re.findall("✕", "".join(re.findall(r"<td.*?</td>", text)))) == 2
    [chosen] = re.findall(r'<textarea id="chosen"[^>]*>(.*?)</textarea>', text, re.DOTALL)
    names = chosen.split()
    assert len(names) == 12
    assert not {"n-03", "n-09"} & set(names)
    assert not {"n-06", "n-11"} <= set(names)
    assert "Injected faults" in text
    assert "hx-trigger" not in text.partition('id="found"')[2].partition(">")[0]


def test_it_lists_the_worst_pairs_and_the_collective_by_size(page: Page) -> None:
    text = page(f"/preflight/{done().pk}/")

    pairs = text.partition('id="worst-pairs"')[2].partition("</table>")[0]
    assert "120 of 120 probed" in pairs
    assert pairs.count("<tr>") == 1 + 20
    assert "n-03" in pairs.partition("<tbody>")[2].partition("</tr>")[0]
    collective = text.partition('id="collective"')[2].partition("</table>")[0]
    assert "over 12 nodes" in collective
    sizes = re.findall(r'<tr><td class="num">([^<]+)</td>', collective)
    assert (sizes[0], sizes[-1]) == ("1 KiB", "1 GiB")
    ratio = re.findall(r">([\d.]+)[^<\d]+</td>\s*</tr>", collective)[-1]
    assert float(ratio) == pytest.approx(1, rel=0.15)


def test_before_the_collective_there_is_no_table_of_it(page: Page) -> None:
    text = page(f"/preflight/{asked().pk}/")

    assert "0 of 120 probed" in text
    assert 'id="collective"' not in text


def test_while_it_runs_it_states_what_it_does_and_fills_in(page: Page) -> None:
    preflight = asked()
    for _ in range(4):
        advance(preflight, now=NOON)

    text = page(f"/preflight/{preflight.pk}/", HX_Request="true", HX_Target="found")

    assert text.lstrip().startswith('<div class="stack" id="found" hx-get=')
    assert "probing pairs, round 3 to" in text
    assert "of 120 probed" in text
    assert "0 of 120 probed" not in text
    assert 'id="chosen"' not in text


def test_where_none_can_come_the_page_states_it(page: Page) -> None:
    preflight = done(names=["a"], faults=[ProbeFault.of_kind("chip_missing", "a")], take=1)

    text = page(f"/preflight/{preflight.pk}/")

    assert "Only 0 of the 1 node needed can be used." in text
    assert "No usable nodes" in text


def test_nodes_of_the_fleet_are_linked(page: Page, steady: Node, limping: Node) -> None:
    preflight = done(names=["steady", "limping", "new"], instance_type="", faults=(), take=None)

    text = page(f"/preflight/{preflight.pk}/")

    assert 'href="/nodes/steady/"' in text
    assert 'href="/nodes/new/"' not in text


def test_it_costs_few_questions_and_knows_unknown_ones(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    preflight = done()

    with django_assert_max_num_queries(10):
        assert client.get(f"/preflight/{preflight.pk}/").status_code == 200
    assert client.get("/preflight/999999/").status_code == 404
    client.force_login(member("admin"))
    assert client.post(f"/preflight/{preflight.pk}/").status_code == 405
    assert Preflight.objects.count() == 1


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.0, "All pairs are one class"),
        (1.5, "inferred from latency"),
    ],
)
def test_it_states_which_classes_of_pairs_were_compared(
    page: Page, client: Client, ratio: float, text: str
) -> None:
    preflight = done(faults=())
    bed = replace(probed_nodes(preflight), rack_ratio=ratio, n_racks=4)
    measured = measured_pairs(bed)
    preflight.nodes.all().delete()
    preflight.measured = pack(measured)
    store_verdict(preflight, measured, now=NOON)
    preflight.save()

    assert text in page(f"/preflight/{preflight.pk}/")
    racks = client.get(f"/api/v1/preflights/{preflight.pk}").json()["racks"]
    assert (racks is None) == (ratio == 1.0)
