"""One alert: sentence, evidence, excluded causes, timeline."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.template.loader import render_to_string
from django.test import Client
from django.utils.html import strip_tags
from pytest_django import DjangoAssertNumQueries, Settings

from fleet.alerts.impact import Impact, impact_of
from fleet.alerts.quality import quality_by_rule
from fleet.alerts.record import Observation
from fleet.alerts.runbooks import BLOCK, steps_now
from fleet.models import Alert, AlertEvent, Annotation, Run, TraceRequest
from fleet.pages.alert_context import SHOWN_CAUSES, restart_of
from fleet.pages.templatetags.marks import symptom
from telemetry.detect import RULES
from telemetry.detect.causes import CLASS_OF, SIGNATURES, explanations_json, symptoms_json
from telemetry.detect.quantities import SYMPTOMS
from telemetry.store.hot import HotStore
from tests.helpers import just_now, steps

Page = Callable[..., str]
Fire = Callable[..., Alert]
# A name in capitals that a person would have to replace.
PLACEHOLDER = re.compile(r"\b(NODE|PID|LOG|POD|RUN|NAMESPACE|[A-Z]+_(NODE|ID|DIR))\b")
NOWHERE = {"node": None, "device": None}
PARTIALS = ("story", "now", "act", "facts", "timeline", "changes", "similar")


def test_it_shows_what_where_how_bad_and_why(page: Page, alert: Alert) -> None:
    text = strip_tags(page(f"/alerts/{alert.pk}/"))

    assert "llama spends 31.4 % of each step in gradient all-reduce" in text
    assert "core 7 of limping is slower than its peers" in text
    assert "95.0 % vs 62.0 % on its peers" in text
    assert "3.00 s instead of 2.00 s" in text
    assert "lost so far" in text


@pytest.mark.parametrize(
    ("event", "figures", "said"),
    [
        ({"by": "olga", "text": "node is drained"}, {}, "olga resolved it, “node is drained”"),
        ({"text": "its run has ended"}, {}, "its run has ended"),
        ({}, {"step_s": 2.02, "baseline_step_s": 2.0}, "steps took 2.02 s at"),
        # Of a run whose steps scatter, one like those before is not exactly as long.
        (
            {},
            {"step_s": 2.1, "baseline_step_s": 2.0, "step_scatter_s": 0.12},
            "2.00 s before it began",
        ),
        ({}, {"step_s": 2.5, "baseline_step_s": 2.0}, "the share was below 25 % again"),
    ],
)
def test_a_record_says_that_nothing_is_left_to_do_and_why(
    page: Page, alert: Alert, event: dict[str, str], figures: dict[str, float], said: str
) -> None:
    assert "left to do" not in page(alert.get_absolute_url())

    now = just_now()
    place = (alert.rule, alert.subject, "page", alert.cause, "limping", 7)
    at_s = now.timestamp()
    seen = Observation(at_s, at_s - 9, *place, 1.0, 1.0, figures).json()
    Alert.objects.update(resolved_at=now, worst=seen, latest=seen)
    AlertEvent.objects.create(alert=alert, at=now, kind=AlertEvent.Kind.RESOLVED, **event)

    text = strip_tags(page(alert.get_absolute_url())).replace("\u202f", " ")
    assert "Nothing is left to do here: " in text
    assert said in text


@pytest.mark.parametrize(
    ("rule", "evidence", "said"),
    [
        ("ecc_uncorrected", {}, "check the results of that time and replace the node; no more"),
        (
            "recompile",
            {"key_changes": ["flags: -O1 became -O2"]},
            "“flags: -O1 became -O2” was meant;",
        ),
        ("recompile", {}, "find out why the cache missed; the compile ended."),
        ("loss_not_finite", {"since_step": 300}, "from a checkpoint before step 300; the loss"),
        ("monitoring_blind", {}, "as no alert could fire meanwhile; nodes reported again."),
    ],
)
def test_a_record_says_what_is_left_to_do(
    page: Page, fired: Fire, rule: str, evidence: dict[str, object], said: str
) -> None:
    alert = fired(rule=rule, cause=rule, evidence=evidence, resolved_at=just_now())

    text = strip_tags(page(alert.get_absolute_url()))
    assert "Left to do: " in text
    assert "Nothing is left" not in text
    assert said in text


def test_the_record_of_a_hang_says_why_it_ended(page: Page, fired: Fire) -> None:
    alert = fired(rule="hang", cause="hang", evidence={}, resolved_at=just_now())

    assert "to do here: llama no longer hung." in strip_tags(page(alert.get_absolute_url()))


def test_it_lists_the_evidence(page: Page, alert: Alert) -> None:
    text = page(f"/alerts/{alert.pk}/")

    assert "62.0 % median, 31 peers" in text
    assert "transferring 4.2 %, waiting 27.2 %" in text


def test_a_reader_without_an_account_signs_in_where_the_button_would_be(
    page: Page, alert: Alert
) -> None:
    text = page(alert.get_absolute_url())

    assert "data-anonymous" in text
    assert f'href="/sign-in/?next=/alerts/{alert.pk}/">Sign in to acknowledge</a>' in text


def test_a_change_in_the_step_that_was_hit_does_not_come_after_its_effect(
    page: Page, alert: Alert, hot: HotStore
) -> None:
    # Steps take 2 s; the onset of the alert is the start of the one that was hit.
    ended_at_s = hot.steps("llama", since_s=0.0).ended_at_s
    onset_at = datetime.fromtimestamp(float(ended_at_s[2]), UTC)
    Alert.objects.update(onset_at=onset_at, fired_at=onset_at + timedelta(seconds=4))
    at_s = float(ended_at_s[2]) + 1.5
    Annotation.objects.create(
        at=datetime.fromtimestamp(at_s, UTC), kind="deploy", text="cause", by="ada", run=alert.run
    )
    Annotation.objects.create(
        at=datetime.fromtimestamp(at_s + 1.0, UTC), kind="deploy", text="no", by="a", run=alert.run
    )
    changes = page(alert.get_absolute_url()).partition('id="changes"')[2].partition("</ul>")[0]
    later, cause = changes.split("<li")[1:3]

    assert "in the first slow step" in cause
    assert "cause" in cause
    assert "after</small>" in later


def considered(symptoms: dict[str, int], *, named: str) -> dict[str, object]:
    table = explanations_json(symptoms, scope="node", named=named)
    return {"symptoms": symptoms_json(symptoms), "causes": table}


def test_it_shows_which_causes_were_considered_and_why_others_were_rejected(
    page: Page, alert: Alert, client: Client
) -> None:
    seen = {"step_s": 1, "transfer_s": 1, "efa_latency": 1, "efa_retransmits": 0, "wait_s": 0}
    alert.evidence = alert.evidence | considered(seen, named="efa_latency")
    alert.save()

    text = page(f"/alerts/{alert.pk}/")
    plain = " ".join(strip_tags(text).split())
    post_mortem = client.get(f"/alerts/{alert.pk}/post-mortem.md").text

    assert re.search(r"<dt>Raised</dt>\s*<dd>step time, transfer time, EFA latency</dd>", text)
    assert re.search(r"<dt>Unchanged</dt>\s*<dd>wait time, EFA retransmits</dd>", text)
    assert "▲ likely Seen: step time raised, transfer time raised, EFA latency raised" in plain
    assert "✕ rejected Missing: EFA retransmits raised" in plain
    assert "Not explained: transfer time raised, EFA latency raised" in plain
    n_folded = sum(each.scope == "node" for each in SIGNATURES) - SHOWN_CAUSES
    assert f"{n_folded} more rejected" in text.partition('<details id="causes-')[2]
    assert "| EFA retransmits | rejected |" in post_mortem
    assert "traffic of one EFA device lowered" in post_mortem


NOISE = {
    "scatter_ratio": 0.013,
    "slowdown_ratio": 0.0314,
    "within_steps": 9,
    "within_s": 60.0,
    "worker_ratio": 0.02,
    "is_young": False,
}
WEIGHED = {
    "nats": 31.24,
    "level_nats": 19.0,
    "posterior": {"hbm_slow": 0.005, "slow_core": 0.06, "throttle": 0.92, "unknown": 0.015},
    "limits": NOISE,
}


def test_it_shows_how_strong_the_evidence_is_and_how_strong_it_must_be(
    page: Page, alert: Alert, settings: Settings
) -> None:
    settings.FALSE_PAGES_PER_YEAR = 3.0
    alert.evidence = alert.evidence | WEIGHED
    alert.save()

    def facts() -> str:
        text = page(alert.get_absolute_url()).partition('id="facts"')[2].partition("</dl>")[0]
        return " ".join(strip_tags(text).replace("\u202f", " ").replace("\xa0", " ").split())

    assert "31.2 nats, 19.0 needed" in facts()
    assert "steps scatter by 1.3 %; a slowdown of 3.1 % is found within 9 steps" in facts()
    # The same figure as on the page of rules.
    [quality] = [q for q in quality_by_rule(now=just_now())[alert.rule] if q.severity == "page"]
    assert f"{quality.budget_text} of 3 false pages a year" in facts()
    assert "Score" not in facts()

    alert.severity = Alert.Severity.WARN
    alert.evidence = alert.evidence | {"limits": NOISE | {"is_young": True}}
    alert.save()
    assert "within 9 steps; it is young, so only large ones are" in facts()
    assert "of 30 false warnings a year" in facts()


def test_causes_that_were_weighed_have_their_probability(
    page: Page, alert: Alert, client: Client
) -> None:
    table = considered({"step_s": 1, "device_busier": 1}, named="throttle")
    alert.evidence = alert.evidence | table | WEIGHED
    alert.save()

    text = page(alert.get_absolute_url()).partition('id="facts"')[2].partition("</section>")[0]
    shown, _, folded = text.partition("<details")
    rows = re.findall(r"<th[^>]*>(\w[\w ]*)<br>.*?>(\d+)\W+%<progress", shown)

    assert rows == [("Throttling", "92"), ("Slow core", "6")]
    # The number is text; the bar repeats it.
    assert 'aria-hidden="true" max="1" value="0.920"' in shown
    assert "Seen:</span> step time raised, busy time of one device raised" in shown
    assert "more that are improbable" in folded
    assert "None of these" in folded
    assert "rejected" not in text
    post_mortem = client.get(f"/alerts/{alert.pk}/post-mortem.md").text
    assert re.search(r"\| throttling \| 92\W+% \|", post_mortem)


def test_causes_that_look_alike_are_all_possible(page: Page, alert: Alert) -> None:
    alert.evidence = alert.evidence | considered(
        {"step_s": 1, "wait_s": 1, "host_busier": 0}, named="slow_compute"
    )
    alert.save()

    text = strip_tags(page(f"/alerts/{alert.pk}/"))

    n_alike = list(CLASS_OF.values()).count("slow_compute")
    assert f"cannot separate the {n_alike} possible causes" in text
    assert "Not measured: busy time of one core raised" in text


def test_an_alert_about_several_runs_links_each_and_the_first_of_many_nodes(
    page: Page, alert: Alert
) -> None:
    nodes = [f"n{i}" for i in range(11)]
    alert.evidence = alert.evidence | {"nodes": nodes, "runs": ["llama", "other"], "rack": "r2"}
    alert.node = alert.device = None
    alert.save()

    text = page(f"/alerts/{alert.pk}/")

    assert 'href="/nodes/n7/">n7</a> and 3 more.' in text
    assert '<a class="mono" href="/runs/other/">other</a>' in text
    assert "takes 3.00 s instead of 2.00 s" in strip_tags(text)
    assert "Each step of llama" in strip_tags(text)


def test_every_symptom_has_a_name() -> None:
    names = SYMPTOMS.values()

    assert {name for name in names if symptom(name) == name.replace("_", " ")} == set()
    assert symptom("new_one") == "new one"


def test_a_link_is_not_looked_for_among_those_who_wait(page: Page, alert: Alert) -> None:
    alert.cause = "efa_latency"
    alert.save()

    text = page(f"/alerts/{alert.pk}/")

    caption = text.partition('id="workers-title"')[2].partition("</header>")[0]
    assert "seconds per step" in caption
    assert "all others wait" not in caption


def test_it_shows_when_the_same_was_there_before(page: Page, fired: Fire) -> None:
    for days in (1, 2, 20):
        fired(ago=timedelta(days=days), resolved_at=just_now() - timedelta(days=days))

    assert "3rd time this week on this core" in page(f"/alerts/{fired().pk}/")


def test_it_folds_its_victims_in(page: Page, alert: Alert) -> None:
    text = page(f"/alerts/{alert.pk}/")

    assert "Also affected" in text
    assert '<a class="mono" href="/nodes/steady/">steady</a>' in text


def test_it_draws_the_steps_the_culprit_and_who_waits(page: Page, alert: Alert) -> None:
    text = page(f"/alerts/{alert.pk}/")

    for chart in ("phases", "culprit", "workers", "share"):
        assert f'data-src="/alerts/{alert.pk}/charts/{chart}"' in text


def test_an_unknown_cause_has_no_culprit(page: Page, fired: Fire) -> None:
    alert = fired(cause="unknown", node=None, device=None, evidence={"share_ratio": 0.3})
    text = page(f"/alerts/{alert.pk}/")

    assert "The cause is <b>unknown</b>" in text
    assert "charts/culprit" not in text


def test_a_resolved_alert_is_in_the_past_tense_with_a_fixed_window(
    page: Page, fired: Fire
) -> None:
    alert = fired(ago=timedelta(hours=3), resolved_at=just_now() - timedelta(hours=2))
    text = page(f"/alerts/{alert.pk}/")

    assert "spent <b" in text
    assert "resolved" in text
    assert "charts/phases?from=" in text
    assert "Acknowledge" not in text


def test_evidence_that_is_missing_or_odd_does_not_break_the_page(page: Page, fired: Fire) -> None:
    odd = {"culprit": 7, "wait_by_worker": [1], "charts": "x", "kind": None}
    odd |= {"symptoms": 3, "causes": [7, {"cause": None, "verdict": [], "seen": "x"}]}
    odd |= {"nats": "x", "level_nats": None, "posterior": [1], "limits": 3}
    alert = fired(evidence=odd | {"share_ratio": "many", "step_s": True, "n_peers": {}})

    assert "llama" in page(f"/alerts/{alert.pk}/")


@pytest.mark.parametrize("rule", ["node_silent", "ecc_uncorrected", "monitoring_blind", "new"])
def test_every_rule_has_its_page(page: Page, fired: Fire, rule: str) -> None:
    alert = fired(rule=rule, cause=rule, evidence={}, run=None, victims=[])

    assert f"alert {alert.pk}" in page(f"/alerts/{alert.pk}/")


def test_the_timeline_shows_who_did_what(page: Page, alert: Alert) -> None:
    AlertEvent.objects.create(
        alert=alert, at=just_now(), kind=AlertEvent.Kind.COMMENTED, by="olga", text="draining it"
    )
    text = page(f"/alerts/{alert.pk}/")

    assert '<span class="by">olga</span>' in text
    assert "<q>draining it</q>" in text


def test_a_comment_is_text_and_never_markup(page: Page, alert: Alert) -> None:
    AlertEvent.objects.create(
        alert=alert,
        at=just_now(),
        kind=AlertEvent.Kind.COMMENTED,
        by="<u>",
        text="<script>x</script>",
    )
    text = page(f"/alerts/{alert.pk}/")

    assert "<script>x" not in text
    assert "<u>" not in text


def test_it_can_be_acknowledged_with_one_tap_on_a_phone(page: Page, alert: Alert) -> None:
    text = page(f"/alerts/{alert.pk}/")

    assert '<button class="primary" data-key="a">Acknowledge</button>' in text


@pytest.mark.parametrize("partial", PARTIALS)
def test_it_gives_htmx_only_the_partial_it_asks_for(
    client: Client, alert: Alert, partial: str
) -> None:
    headers = {"HX-Request": "true", "HX-Target": partial}
    response = client.get(f"/alerts/{alert.pk}/", headers=headers)

    assert f'id="{partial}"' in response.text
    assert "<html" not in response.text


def test_it_asks_the_database_little(
    client: Client,
    alert: Alert,
    operator: object,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    with django_assert_max_num_queries(12):
        client.get(f"/alerts/{alert.pk}/")


def test_it_shows_how_the_loss_was_counted(page: Page, alert: Alert) -> None:
    text = page(f"/alerts/{alert.pk}/")

    assert 'popovertarget="lost-how"' in text
    assert "60 steps ended in the 3 min after the last healthy one" in text


def test_a_loss_that_no_one_measured_is_absent(page: Page, fired: Fire) -> None:
    text = page(f"/alerts/{fired(cost={}).pk}/")

    assert "lost" not in strip_tags(text.partition('id="act"')[0])


def test_it_lists_what_changed_before_and_what_was_like_it(
    page: Page, fired: Fire, alive: Run
) -> None:
    before = fired(ago=timedelta(days=1), resolved_at=just_now() - timedelta(hours=23))
    AlertEvent.objects.create(
        alert=before, at=just_now(), kind=AlertEvent.Kind.COMMENTED, by="olga", text="drained it"
    )
    Annotation.objects.create(
        run=alive, at=just_now() - timedelta(minutes=20), kind="deploy", text="loader", by="ci"
    )
    text = page(f"/alerts/{fired().pk}/")

    assert "loader" in text.partition('id="changes"')[2].partition("</details>")[0]
    likes = text.partition('id="similar"')[2].partition("</details>")[0]
    assert "2nd time this week on this core" in likes
    assert "same core, same cause" in likes
    assert "<q>drained it</q>" in likes


def test_a_few_victims_are_shown_and_many_are_folded(page: Page, fired: Fire) -> None:
    text = page(f"/alerts/{fired(victims=[f'n-{i}' for i in range(20)]).pk}/")

    assert "<summary>and 12 more</summary>" in text
    assert "20 nodes, grouped into this alert" in text


def test_its_runbook_states_what_to_check_first(page: Page, alert: Alert) -> None:
    runbook = page(f"/alerts/{alert.pk}/").partition('id="runbook"')[2]

    assert "the worker with the shortest wait" in runbook
    assert 'href="/runbooks/allreduce_share/"' in runbook


def now_panel(text: str) -> str:
    """Return the panel that says what to do, as text."""
    return strip_tags(text.partition('id="now"')[2].partition("</section>")[0])


def test_it_says_what_to_do_with_names_filled_in(page: Page, alert: Alert) -> None:
    assert alert.node is not None
    Run.objects.update(labels={"slurm_job_id": "4711"})
    panel = now_panel(page(f"/alerts/{alert.pk}/"))

    # The share is too high because of a slow core: the steps are those of the slow core.
    assert "Restart the run without limping." in panel
    assert "scontrol requeue 4711" in panel
    assert "kubectl" not in panel
    assert f"NodeName={alert.node.name} State=DRAIN" in panel
    assert f"trnwatch alert {alert.pk}" in panel
    assert "Expect:" in panel
    assert "Escalate if:" in panel


def test_a_crashed_node_is_taken_out_and_a_silent_one_gets_a_new_agent(
    page: Page, fired: Fire
) -> None:
    crashed = fired(rule="node_silent", cause="node_crash", device=None)
    Run.objects.update(labels={"slurm_job_id": "4711"})
    panel = now_panel(page(f"/alerts/{crashed.pk}/"))
    # What brings the run back comes first.
    assert panel.index("Restart the run without limping.") < panel.index("out of scheduling")
    assert "State=DRAIN" in panel
    assert "restart trnwatch-agent" not in panel
    Alert.objects.update(cause="node_silent")
    panel = now_panel(page(f"/alerts/{crashed.pk}/"))
    assert "restart trnwatch-agent" in panel
    assert "State=DRAIN" not in panel


def test_an_alert_without_a_node_says_what_to_look_at_instead(page: Page, fired: Fire) -> None:
    Run.objects.update(labels={"slurm_job_id": "4711"})
    slow = {"rule": "step_slow", "cause": "unknown", "device": None}
    panel = now_panel(page(f"/alerts/{fired(**slow, node=None).pk}/"))
    assert "Wait for the result" in panel
    assert "State=DRAIN" not in panel
    panel = now_panel(page(f"/alerts/{fired(**slow, subject='node:limping').pk}/"))
    assert "State=DRAIN" in panel
    assert "Wait for the result" not in panel


@pytest.mark.parametrize(
    ("ago_s", "result", "shown"),
    [
        (20, "", "The runtime is traced on 8 workers until "),
        (65, "", "It is over, and its result comes by "),
        (300, "", "No result, which was due by "),
        (
            300,
            "in 8 traced steps the others wait for a",
            "In 8 traced steps the others wait for a.",
        ),
    ],
)
def test_a_requested_trace_is_followed_to_its_result(
    page: Page, fired: Fire, ago_s: int, result: str, shown: str
) -> None:
    asked_at = just_now() - timedelta(seconds=ago_s)
    alert = fired(rule="step_slow", ago=timedelta(seconds=ago_s))
    assert "untime trace" not in page(f"/alerts/{alert.pk}/")
    AlertEvent.objects.create(alert=alert, at=asked_at, kind=AlertEvent.Kind.TRACE_REQUESTED)
    ends_at = asked_at + timedelta(seconds=60)
    TraceRequest.objects.create(
        alert=alert,
        requested_at=asked_at,
        ends_at=ends_at,
        n_workers=8,
        result=result,
        judged_at=ends_at + timedelta(seconds=16) if result else None,
    )

    text = page(f"/alerts/{alert.pk}/")
    for panel in ("story", "facts"):
        part = strip_tags(text.partition(f'id="{panel}"')[2].partition("</section>")[0])
        assert shown in part
    # A link that is frozen in time shows what was known then.
    if ago_s == 300:
        before = int(ends_at.timestamp()) - 1
        assert "is traced on 8 workers until" in page(f"/alerts/{alert.pk}/?at={before}")


def test_commands_are_those_of_the_scheduler_that_the_labels_show(
    page: Page, alert: Alert
) -> None:
    assert alert.node is not None
    alert.node.labels = {
        "pod": "llama-0",
        "namespace": "--all",
        "kubernetes_node": "ip-1",
    }
    alert.node.save()

    panel = now_panel(page(f"/alerts/{alert.pk}/"))

    assert "kubectl cordon ip-1" in panel
    # A label may be any text: what is no name must not become an option or a command.
    assert "kubectl delete pod" not in panel
    assert "scontrol" not in panel


@pytest.mark.parametrize("labels", [{}, {"slurm_job_id": "4711", "pod": "p", "namespace": "n"}])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("where", [{}, NOWHERE])
def test_no_command_has_a_placeholder(
    fired: Fire, rule: str, where: dict[str, None], labels: dict[str, str]
) -> None:
    Run.objects.update(labels=labels)
    alert = fired(rule=rule, cause="unknown", **where)
    steps = steps_now(Alert.objects.get(pk=alert.pk))

    assert steps
    for match in BLOCK.finditer(steps):
        # Neither of two schedulers is sure to be the one of this run.
        assert match[1] == "shell"
        assert not PLACEHOLDER.search(match[2])
    assert not re.search(r"`(NODE|RUN|POD)`", steps)


@pytest.mark.parametrize(
    ("kind", "where", "says", "does_not_say"),
    [
        ("waiting", {}, "It continues from its last checkpoint", "transfer"),
        ("waiting", NOWHERE, "the late worker is not identified", "scontrol"),
        ("transferring", {}, "The time goes into the transfer, not into waiting", "wait for"),
        ("transferring", NOWHERE, "no EFA device stands out", "scontrol"),
        ("communication-bound layout", NOWHERE, "Nothing is broken", "scontrol"),
    ],
)
def test_the_steps_are_those_of_the_case(
    fired: Fire, kind: str, where: dict[str, None], says: str, does_not_say: str
) -> None:
    Run.objects.update(labels={"slurm_job_id": "4711"})
    alert = fired(cause="unknown", evidence={"kind": kind}, **where)
    steps = steps_now(Alert.objects.get(pk=alert.pk))

    assert says in steps
    assert does_not_say not in steps
    assert "?" not in steps


@pytest.mark.parametrize(
    ("step_s", "says"), [(9.0, "Restart the run without"), (2.0, "as long as before")]
)
def test_whether_to_restart_now_is_decided_by_the_steps(
    fired: Fire, step_s: float, says: str
) -> None:
    evidence = {"step_s": step_s, "baseline_step_s": 2.0}
    alert = fired(rule="efa_degraded", cause="efa_loss", evidence=evidence)
    steps = steps_now(Alert.objects.get(pk=alert.pk))

    assert says in steps
    assert "?" not in steps


def test_a_resolved_alert_asks_for_nothing(page: Page, alert: Alert) -> None:
    alert.resolved_at = just_now()
    alert.save()

    assert now_panel(page(f"/alerts/{alert.pk}/")).partition(">")[2].strip() == ""


def test_a_frozen_link_shows_it_unchanged(page: Page, fired: Fire) -> None:
    alert = fired(ago=timedelta(minutes=9), cause="unknown", node=None, device=None)
    first = alert.events.get()
    first.snapshot = alert.snapshot
    first.save()
    then = int((alert.fired_at + timedelta(seconds=20)).timestamp())
    Alert.objects.update(
        cause="slow_core", acknowledged_by="olga", acknowledged_at=just_now(), device=7
    )
    text = page(f"/alerts/{alert.pk}/?at={then}")

    assert "is still <b>locating</b> the cause" in text
    assert "Showing data from" in text
    assert "olga" not in text
    assert f'<a href="{alert.get_absolute_url()}" data-now>open the current state</a>' in text
    assert f"&amp;at={then}" in text
    assert 'data-live="' not in text


def test_a_frozen_page_is_not_acted_on(page: Page, alert: Alert) -> None:
    then = int(alert.fired_at.timestamp()) + 5
    text = page(f"/alerts/{alert.pk}/?at={then}")

    assert f"/alerts/{alert.pk}/acknowledge/" not in text
    assert f'action="/alerts/{alert.pk}/acknowledge/"' in page(f"/alerts/{alert.pk}/")


@pytest.mark.parametrize("at", ["x", "-5", "99999999999", ""])
def test_an_invalid_time_is_now(page: Page, alert: Alert, at: str) -> None:
    assert "Showing data from" not in page(f"/alerts/{alert.pk}/?at={at}")


def test_it_offers_its_frozen_link_and_its_post_mortem(page: Page, alert: Alert) -> None:
    text = page(f"/alerts/{alert.pk}/")

    assert f'data-frozen-link="/alerts/{alert.pk}/?from=' in text
    assert f'href="/alerts/{alert.pk}/post-mortem/"' in text


def test_acting_comes_before_the_charts_and_the_evidence_after(page: Page, alert: Alert) -> None:
    text = page(alert.get_absolute_url())

    places = [text.index(f'id="{name}"') for name in ("story", "act", "phases", "facts")]
    assert places == sorted(places)


def test_it_shows_how_often_the_culprit_was_accused_before(page: Page, fired: Fire) -> None:
    first = fired(ago=timedelta(days=2), subject="run:other")
    alert = fired()

    text = " ".join(page(f"/alerts/{alert.pk}/").split())
    assert '/nodes/limping/#alert-history">root cause of 2 alerts in 30 days, in 1 run' in text
    assert "root cause of" not in page(f"/alerts/{first.pk}/")


def test_a_restart_is_weighed_where_checkpoint_and_start_are_known(
    alert: Alert, hot: HotStore
) -> None:
    assert alert.run is not None
    last_s = float(hot.steps("llama", since_s=0.0).ended_at_s[-1])
    hot.append_steps(
        steps(n_steps=1, first=11, ended_at_s=last_s + 7, compute_s=2.0, checkpoint_s=5.0)
    )
    hot.append_steps(steps(n_steps=4, first=12, ended_at_s=last_s + 9, compute_s=2.0))
    now = datetime.fromtimestamp(last_s + 20, UTC)
    assert restart_of(hot, alert, impact_of(alert), now=now) is None
    for text, ago_s in (("stopped, waiting to restart", 660), ("training resumed", 600)):
        at = now - timedelta(seconds=ago_s)
        Annotation.objects.create(run=alert.run, at=at, kind="restart", text=text)

    restart = restart_of(hot, alert, impact_of(alert), now=now)

    # Four steps of 2 s are repeated, the last start took a minute, a third of the time is lost.
    assert restart is not None
    assert restart.repeated_s == pytest.approx(8.0)
    assert restart.start_s == pytest.approx(60.0)
    assert restart.pays_after_s == pytest.approx(3 * 68.0)

    def weighed(**fields: bool) -> str:
        context = {"restart": restart, "text": {"impact": Impact(**fields)}}
        return render_to_string("alerts/_restart.html", context)

    assert "it pays off after" in weighed()
    # A run that stands still has no alternative.
    assert "pays off" not in weighed(stands_still=True)
    assert "repeats 8" in weighed(stands_still=True)
