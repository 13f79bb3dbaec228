"""Every table: each head sorts it, and its CSV has all rows in the same order."""

import csv
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from django.test import Client

from fleet import alerts
from fleet.access.tokens import make_token
from fleet.models import (
    Alert,
    Budget,
    CompileEvent,
    Delivery,
    InjectedFault,
    Node,
    Preflight,
    Receiver,
    Run,
    Silence,
    SupportCheck,
    TeamPrice,
    Token,
    Trial,
)
from fleet.pages.tables import TableView
from tests.fleet.pages.conftest import Page
from tests.fleet.test_anonymous_access import member
from tests.helpers import LLAMA, just_now

Fire = Callable[..., Alert]
HOUR = timedelta(hours=1)
# The table of each page, and how many rows it has in the fleet below.
TABLES = {
    "nodes": "/nodes/",
    "runs": "/runs/",
    "alerts": "/alerts/",
    "problem-nodes": "/problem-nodes/",
    "compiles": "/compiles/",
    "by-run": "/compiles/",
    "drills": "/drills/",
    "deliveries": "/notifications/deliveries/",
    "changes": "/changes/",
    "silences": "/silences/",
    "budgets": "/budgets/",
    "prices": "/prices/",
    "price-history": "/prices/",
    "published-prices": "/prices/",
    "rules": "/rules/",
    "trials": "/trials/",
    "support-checks": "/support/",
    "preflights": "/preflight/",
    "expired-tokens": "/tokens/",
}
# Columns that the database sorts by what the page writes in other words: that column of the CSV.
WRITTEN_AS = {("alerts", "Alert"): "Rule"}


@pytest.fixture
def full(client: Client, alive: Run, fired: Fire, steady: Node, limping: Node) -> Client:
    """Fill every table with a few rows, and sign an admin in."""
    now = just_now()
    client.force_login(member("admin"))
    other = Run.objects.create(
        name="bert",
        team="",
        model="bert-large",
        instance_type="trn1.2xlarge",
        n_nodes=1,
        seq_len=128,
        global_batch=64,
        usd_per_node_hour=1.34,
        price_basis="on demand",
        phase=Run.Phase.FINISHED,
        phase_since=now,
        started_at=now - 9 * HOUR,
        finished_at=now - HOUR,
    )
    open_ = fired()
    for i, (rule, cause) in enumerate(
        [("efa_degraded", "efa_latency"), ("core_slow", "throttle")]
    ):
        fired(
            rule=rule,
            cause=cause,
            node=(steady, limping)[i],
            ago=(3 + i) * HOUR,
            resolved_at=now - (2 - i) * HOUR,
            acknowledged_by=("olga", "")[i],
            cost=({"usd": 3.5, "lost_s": 60.0, "span_s": 90.0, "n_steps": 3.0}, {})[i],
        )
    for i, run in enumerate((alive, other)):
        CompileEvent.objects.create(
            run=run,
            module=f"MODULE_{i}+a",
            outcome="miss",
            process="p",
            at=now - (i + 1) * HOUR,
            seconds=(90.0, None)[i],
            verdict="again",
        )
    Run.objects.filter(pk=alive.pk).update(is_simulated=True, plan=msgspec.to_builtins(LLAMA))
    for i, node in enumerate((limping, None)):
        InjectedFault.objects.create(
            run=alive,
            node=node,
            kind=("slow_core", "input_stall")[i],
            device=(7, None)[i],
            magnitude=1.5,
            starts_at=now - (i + 1) * HOUR,
            ends_at=now - (i + 1) * HOUR + timedelta(minutes=3),
            injected_by=("olga", "")[i],
        )
    receiver = Receiver.objects.create(name="=hook", kind="webhook", target="x", created_at=now)
    for state in ("sent", "dead"):
        sent = Delivery.objects.create(
            receiver=receiver,
            kind="firing",
            group_key="a",
            state=state,
            created_at=now,
            next_try_at=now,
            last_error="503" if state == "dead" else "",
        )
        sent.alerts.add(open_)
    for by in ("olga", "paul"):
        made = alerts.silence("run=x", ends_at=now + HOUR, reason="+1", by=by, now=now)
        Silence.objects.filter(pk=made.pk).update(starts_at=now - 3 * HOUR, ends_at=now - HOUR)
    for usd in (1000.0, 5.0):
        Budget.objects.create(
            team="LLM",
            usd=usd,
            starts_at=now - 24 * HOUR,
            ends_at=now + 24 * HOUR,
            set_by="olga",
            set_at=now,
        )
        TeamPrice.objects.create(
            team="LLM",
            instance_type="trn1.32xlarge",
            basis="reserved",
            usd_per_node_hour=usd,
            valid_from=now - HOUR,
            source="contract",
            set_by="olga",
            set_at=now,
        )
        Trial.objects.create(
            name=f"trial-{usd:.0f}", question="@do we move?", created_by="olga", created_at=now
        )
        SupportCheck.objects.create(
            file=f"{usd:.0f}.txt",
            digest="x",
            form="list",
            n_operators=3,
            n_supported=1,
            n_unsupported=1,
            n_unknown=1,
            operators=[],
            checked_at=now,
            by="olga",
        )
        Preflight.objects.create(
            asked_by="olga", asked_at=now, instance_type="trn1.32xlarge", names=["a", "b"]
        )
        token, _ = make_token(f"ci {usd}", "read", days=30, now=now)
        Token.objects.filter(pk=token.pk).update(revoked_at=now - HOUR)
    return client


def view(client: Client, name: str, query: str = "") -> TableView:
    response = client.get(f"{TABLES[name]}?{query}")
    assert response.status_code == 200
    contexts: Any = response.context
    values = [value for layer in contexts for part in layer.dicts for value in part.values()]
    tables = (each for each in values if type(each) is TableView)
    return next(each for each in tables if each.table.name == name)


def rows_of(client: Client, name: str, query: str = "") -> list[dict[str, str]]:
    response = client.get(f"{TABLES[name]}?{query}&csv={name}")
    assert response.status_code == 200
    return list(csv.DictReader(response.getvalue().decode().splitlines()))


def keys(cells: Iterator[str]) -> list[Any]:
    """Return what cells are sorted by: numbers or text without case, unknown ones last."""

    def key(cell: str) -> tuple[bool, Any]:
        try:
            return False, float(cell)
        except ValueError:
            return cell == "", cell.casefold()

    return [key(cell) for cell in cells]


def test_each_head_sorts_and_its_csv_has_the_same_order(full: Client) -> None:
    for name in TABLES:
        check_order(full, name)


def check_order(full: Client, name: str) -> None:
    table = view(full, name).table
    usual = rows_of(full, name)
    columns = [column for column in table.columns if table.sorts(column)]
    assert len(columns) >= 2
    page = full.get(f"{TABLES[name]}?{table.parameter}=-{columns[0].key}").text
    assert 'aria-sort="descending"' in page or 'aria-current="true"' in page
    for column in columns:
        assert f"{table.parameter}=-{column.key}" in page or f"={column.key}" in page
        for sort in (column.key, f"-{column.key}"):
            rows = rows_of(full, name, f"{table.parameter}={sort}")
            assert len(rows) == len(usual), (name, sort)
            head = f"{column.title} ({column.unit})" if column.unit else column.title
            head = WRITTEN_AS.get((name, column.title), head)
            shown = [row for row in rows if name != "alerts" or row["State"] == "resolved"]
            found = keys(row[head] for row in shown)
            known = [key for key in found if not key[0]]
            assert known == sorted(known, reverse=sort.startswith("-")), (name, sort)
            assert found[: len(known)] == known, (name, sort)


def test_a_csv_has_the_day_in_its_name_and_holds_no_formula(full: Client) -> None:
    for name in TABLES:
        check_csv(full, name)


def check_csv(full: Client, name: str) -> None:
    response = full.get(f"{TABLES[name]}?csv={name}")
    cells = [cell for row in rows_of(full, name) for cell in row.values()]

    assert response["Content-Type"] == "text/csv; charset=utf-8"
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    assert f'filename="trnwatch-{name}-{day}.csv"' in response["Content-Disposition"]
    assert response.streaming
    assert [cell for cell in cells if cell[:1] in "=+@" and cell] == []
    assert cells


def test_an_unknown_column_is_named_and_the_order_is_the_usual_one(full: Client) -> None:
    for name, path in TABLES.items():
        table = view(full, name).table
        for sort in ("zebra", "-<b>" + "x" * 300):
            page = full.get(path, {table.parameter: sort})
            assert page.status_code == 200, (name, sort)
            assert "aria-sort" not in page.text
            assert "no column" in page.text


def test_filters_pages_and_the_live_stream_keep_the_order(page: Page, alive: Run) -> None:
    text = page("/nodes/?run=llama&sort=-node")

    assert 'data-live="nodes?sort=-node&amp;run=llama"' in text
    assert '<input type="hidden" name="sort" value="-node">' in text
    assert 'href="?run=llama&amp;sort=node"' in text
    assert 'href="?run=llama&amp;sort=-node&amp;csv=nodes"' in text


def test_the_worst_come_first(page: Page, alive: Run, alert: Alert, silent: Node) -> None:
    for path in ("/nodes/", f"/nodes/?run={alive.name}"):
        text = page(path)
        places = [text.index(f'id="node-{name}"') for name in ("limping", "silent", "steady")]
        assert places == sorted(places)
