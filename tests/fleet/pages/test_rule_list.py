"""The page of rules: limits, what fires, and the limit of a run."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils.html import strip_tags
from pytest_django import Settings

from fleet.alerts.quality import note_limits
from fleet.formatting import percent
from fleet.models import Alert, Run
from fleet.pages import rules
from fleet.runs.limits import RUN_LIMITS
from telemetry.detect import RULES
from telemetry.detect.limits import limits_of
from telemetry.detect.slowdowns import RunWatch
from telemetry.store.hot import HotStore
from tests.helpers import just_now
from tests.telemetry.detect.playing import inputs_of, steps_of

Page = Callable[..., str]
ASKED = {
    "run": "llama",
    "allreduce_share-limit_ratio": "40",
    "allreduce_share-resolve_ratio": "35",
    "node_idle-idle_s": "5",
}
# Rules share the budget equally: as many as can page, and as can warn.
N_PAGE, N_WARN = (
    sum(severity in rule.severities for rule in RULES.values()) for severity in ("page", "warn")
)


def test_every_rule_is_listed_with_its_limits(page: Page, db: None) -> None:
    text = page("/rules/")

    for name, rule in RULES.items():
        assert f'id="rule-{name}"' in text
        assert f'href="/runbooks/{name}/"' in text
        assert rule.title in text
    assert "<dt>limit</dt><dd>0.25</dd>" in text
    assert "unknown when the rules were last evaluated" in text


def test_open_alerts_are_counted_and_drills_are_not(page: Page, alert: Alert) -> None:
    def row() -> str:
        return page("/rules/").partition(f'id="rule-{alert.rule}"')[2].partition("</tr>")[0]

    assert "1 firing" in row()

    Alert.objects.update(is_drill=True)
    assert "none" in row()
    assert "never" in row()


def row_of(text: str, rule: str) -> str:
    row = text.partition(f'id="rule-{rule}"')[2].partition("</tr>")[0]
    return " ".join(strip_tags(row.replace("</div>", "</div> ")).split())


def test_before_anything_fires_the_budget_is_unused(page: Page, db: None) -> None:
    text = page("/rules/")

    whole = " ".join(strip_tags(text).split())
    assert "Pages in 90 days: none. Warnings in 90 days: none." in whole
    assert "False pages, of those accepted a year0 of 6" in whole
    assert "False warnings, of those accepted a year0 of 60" in whole
    pages, warnings = f"{6 / N_PAGE:.2g}", f"{60 / N_WARN:.2g}"
    shares = f"Pages: 0 of {pages} (none fired) Warnings: 0 of {warnings} (none fired)"
    assert shares in row_of(text, "hang")
    # What only warns has no share of the pages.
    assert "Pages:" not in row_of(text, "node_idle")
    assert "Needs steps; without them, executions of nodes." in row_of(text, "step_slow")


def test_false_alerts_are_compared_with_the_budget(
    page: Page, fired: Callable[..., Alert], settings: Settings
) -> None:
    settings.FALSE_PAGES_PER_YEAR = 1.5
    day = timedelta(days=1)
    marked = {"marked_false_at": just_now(), "marked_false_by": "ada", "false_reason": "noise"}
    over = {"resolved_at": just_now()}
    warn = Alert.Severity.WARN
    for ago in (1, 80, 89, 91, 364, 366):
        fired(ago=ago * day, **over)
    for ago in (2, 100):
        fired(ago=ago * day, **over, **marked)
    # Too old, and a drill.
    fired(ago=366 * day, **over, **marked)
    fired(ago=day, is_drill=True, **over, **marked)
    fired(ago=day, severity=warn, **over)

    text = page("/rules/")
    whole = " ".join(strip_tags(text).split())
    assert "Pages in 90 days: 4, 1 false (25 %), 3 not marked." in whole
    assert "Warnings in 90 days: 1, none false, 1 not marked." in whole
    assert "False pages, of those accepted a year2 of 1.5 △ above it" in whole
    assert (
        f"Pages: 2 of {1.5 / N_PAGE:.2g} △ above it (7 fired, 5 not marked) "
        f"Warnings: 0 of {15 / N_WARN:.2g} (1 fired, 1 not marked)"
    ) in row_of(text, "allreduce_share")
    assert "rule=allreduce_share&amp;marked_false=yes" in text


def test_an_operator_sets_the_limits_of_a_run(
    client: Client, operator: User, alert: Alert
) -> None:
    run = Run.objects.get(name="llama")
    text = client.post("/rules/", ASKED, follow=True).text.replace("\u202f", " ")

    run.refresh_from_db()
    assert (run.allreduce_limit_ratio, run.allreduce_resolve_ratio) == (0.40, 0.35)
    assert run.limits == {"node_idle.idle_s": 300}
    assert "3 limits changed" in text
    for each in ("40 %", "35 %", "5 min"):
        assert f"<b>{each}</b>" in text
    notes = run.annotations.filter(kind="limit", by=operator.username)
    assert [note.text.replace("\u202f", " ") for note in notes] == [
        "All-reduce share above 40 % instead of 25 %",
        "It resolves below 35 % instead of 22 %",
        "Node idle for 5 min instead of 10 min",
    ]
    assert "Node idle for 5 min, usually 10 min" in client.get("/runs/llama/").text.replace(
        "\u202f", " "
    )

    # An empty field is the usual limit; what stays as it is is no change.
    form = client.get("/rules/?run=llama").context["form"]
    assert form["node_idle-idle_s"].value() == "5"
    client.post("/rules/", ASKED | {"node_idle-idle_s": ""})
    run.refresh_from_db()
    assert run.limits is None
    assert notes.all().count() == 4
    assert (
        "nothing changed"
        in client.post("/rules/", {**ASKED, "node_idle-idle_s": ""}, follow=True).text
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("allreduce_share-limit_ratio", "0"),
        ("allreduce_share-limit_ratio", "many"),
        ("allreduce_share-resolve_ratio", "41"),
        *[(limit.field, str(limit.most + 1)) for limit in RUN_LIMITS],
        *[(limit.field, str(limit.least - 0.5)) for limit in RUN_LIMITS],
    ],
)
def test_what_is_wrong_is_named_with_its_range_and_nothing_changes(
    client: Client, operator: User, alert: Alert, field: str, value: str
) -> None:
    page = client.post("/rules/", ASKED | {field: value})

    assert page.status_code == 422
    assert list(page.context["form"].errors) == [field]
    run = Run.objects.get(name="llama")
    assert (run.allreduce_limit_ratio, run.limits) == (0.25, None)


def test_a_run_that_does_not_exist_has_no_limits(client: Client, operator: User) -> None:
    assert "No run is called missing" in client.get("/rules/?run=missing").text
    page = client.post("/rules/", ASKED | {"run": "missing"})
    assert page.status_code == 422
    assert "no run is called" in page.text


def test_every_own_limit_is_listed_however_many_runs_there_are(
    client: Client, operator: User, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "N_SUGGESTED", 1)
    own: dict[str, dict[str, object]] = {
        "usual": {},
        "z-idle": {"limits": {"node_idle.idle_s": 300}},
        "z-limit": {"allreduce_limit_ratio": 0.4},
        "z-resolve": {"allreduce_resolve_ratio": 0.1},
    }
    for name, limits in own.items():
        run.pk, run.name = None, name
        run.save()
        Run.objects.filter(name=name).update(**limits)

    context = client.get("/rules/").context

    assert list(context["runs"]) == ["llama"]
    assert [each.name for each, _ in context["own_limits"]] == ["z-idle", "z-limit", "z-resolve"]


def folded(n_steps: int) -> RunWatch:
    steps = steps_of(n_steps, n_workers=4)
    watch, now_s = RunWatch(inputs_of(steps)), float(steps.ended_at_s[-1]) + 30.0
    watch.steps.update(steps, now_s)
    return watch


def test_it_shows_how_small_a_slowdown_is_found_in_each_run(
    page: Page, run: Run, hot: HotStore
) -> None:
    assert 'id="found"' not in page("/rules/")

    watches = {"llama": folded(60), "starting": folded(1)}
    note_limits(hot, watches, now_s=just_now().timestamp())
    text = page("/rules/")
    section = text.partition('id="found"')[2].partition("</section>")[0]
    row = " ".join(strip_tags(section.partition("<tbody>")[2].partition("</tbody>")[0]).split())
    limits = limits_of(watches["llama"].steps)

    assert limits is not None
    worker, scatter = percent(limits.worker_ratio), percent(limits.scatter_ratio)
    # What is not known yet has no row.
    expected = f"llama young {percent(limits.slowdown_ratio)} {worker} 1 min {scatter}"
    assert row.split() == expected.split()
    assert "old</b>" not in section


def test_what_could_be_found_once_is_marked_as_old(page: Page, run: Run, hot: HotStore) -> None:
    note_limits(hot, {"llama": folded(60)}, now_s=just_now().timestamp() - 90)
    assert "old</b>" in page("/rules/").partition('id="found"')[2].partition("</section>")[0]

    # Of all workers one writes it, every few seconds.
    note_limits(hot, {"llama": folded(60)}, now_s=just_now().timestamp())
    assert "old</b>" in page("/rules/").partition('id="found"')[2].partition("</section>")[0]
