"""Search of all that has a page: alerts of all time, pages, runs, nodes, devices, rules, trials.

The palette shows the same as `/search`. Each word of a query must be found.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import and_, or_
from pathlib import Path

from django.conf import settings
from django.db.models import F, Q
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from fleet.access.roles import has_role
from fleet.alerts.causes import CAUSES
from fleet.alerts.impact import worst_first
from fleet.alerts.runbooks import document
from fleet.alerts.text import AlertText, brief
from fleet.formatting import at
from fleet.models import Alert, Node, Run, Trial
from fleet.models.filters import label_q, labels_contain
from fleet.pages.render import HtmxRequest, render_page
from telemetry.detect import RULES
from telemetry.errors import LARGEST_KEY, whole_number

MOST, MOST_OPEN, MOST_DEVICES = 6, 8, 4
LONGEST = 100
# Words of a query that say what a number counts.
PART = re.compile(r"(efa|device|chip|accelerator|core)s?", re.IGNORECASE)
ACKNOWLEDGE = "acknowledge"
# What the rules and causes of alerts are found by.
RULE_WORDS = {name: f"{name} {rule.title}".lower() for name, rule in RULES.items()}
CAUSE_WORDS = {
    name: f"{name} {text.name} {text.several} {text.part or ''}".lower()
    for name, text in CAUSES.items()
}


@dataclass(frozen=True, slots=True)
class Hit:
    """One result: where it leads to, and in muted words what it is; its state as a tag."""

    title: str
    url: str
    about: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class HitGroup:
    title: str
    hits: Sequence[Hit]


@dataclass(frozen=True, slots=True)
class Place:
    """A page, or an action as a link to its page, that the menu or a page offers to a role."""

    title: str
    page: str
    words: str = ""
    role: str = "viewer"
    fragment: str = ""
    about: str = "page"

    @property
    def text(self) -> str:
        return f"{self.title} {self.words} {self.about}".lower()

    def hit(self) -> Hit:
        return Hit(self.title, reverse(self.page) + self.fragment, self.about)


def action(title: str, page: str, role: str, words: str = "", fragment: str = "") -> Place:
    return Place(title, page, words, role, fragment, "action")


PLACES = (
    Place("Fleet", "overview", "overview home heat map"),
    Place("Nodes", "node-list", "instances machines"),
    Place("Runs", "run-list", "jobs training"),
    Place("Trials", "trial-list", "compare gpu bake-off"),
    Place("Alerts", "alert-list", "incidents pages warnings resolved"),
    Place("Problem nodes", "problem-node-list", "replace recurring"),
    Place("Shift handover", "hand-over", "on call notes"),
    Place("Silences", "silence-list", "mute"),
    Place("Notifications", "notification-list", "receivers routes slack pagerduty e-mail push"),
    Place("Deliveries", "delivery-list", "notifications log"),
    Place("Change log", "change-list", "audit who"),
    Place("Drills", "drill-list", "faults score"),
    Place("Rules", "rule-list", "thresholds limits false alerts"),
    Place("Preflight", "preflight-list", "check probes"),
    Place("Compile cache", "compile-list", "neuronx-cc recompiles"),
    Place("Support checks", "support-list", "operators compiler"),
    Place("Prices", "price-list", "cost contract", "lead"),
    Place("Budgets", "budget-list", "cost spending forecast", "lead"),
    Place("Connect nodes", "connect", "agent install add"),
    Place("People", "people-list", "accounts users roles", "admin"),
    Place("Tokens", "token-list", "credentials api", "admin"),
    Place("Account", "account", "password"),
    Place("Tour", "tour", "help introduction"),
    action("Start a drill", "drill-new", "operator", "inject fault test"),
    action("New silence", "silence-new", "operator", "mute create"),
    action("New preflight", "preflight-list", "operator", "start check", "#new-title"),
    action("Check a model", "support-list", "operator", "support operators", "#new-title"),
    action("New trial", "trial-list", "lead", "start compare", "#new-title"),
    action("New budget", "budget-list", "lead", "set", "#new-title"),
    action("New price", "price-list", "lead", "set contract", "#new-title"),
    action("Add a receiver", "receiver-new", "admin", "notifications slack create"),
    action("New token", "token-list", "admin", "create", "#new-title"),
    action("New account", "people-list", "admin", "create person user", "#new-title"),
)


@dataclass(frozen=True, slots=True)
class Query:
    """What is searched for: its words in lower case; a number, and of which part of a node."""

    text: str
    words: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    number: int | None = None
    part: str = ""

    @classmethod
    def of(cls, text: str) -> "Query":
        words = tuple(text.lower().split())
        names, number, part = [], None, ""
        for word in words:
            if found := PART.fullmatch(word):
                part = found[1]
            elif word.isascii() and word.isdecimal():
                number = whole_number(word, most=LARGEST_KEY)
            else:
                names.append(word)
        return cls(text, words, tuple(names), number, part)

    def fits(self, text: str) -> bool:
        return all(word in text for word in self.words)


def all_of(words: Iterable[str], *fields: str) -> Q:
    """Select rows that have each word in one of the fields, or in a label."""

    def one(word: str) -> Q:
        label = label_q(word) if "=" in word else labels_contain(word)
        return reduce(or_, (Q(**{f"{field}__icontains": word}) for field in fields), label)

    return reduce(and_, map(one, words), Q())


def alerts_about(words: Iterable[str]) -> Q:
    """Select alerts by words of their rule, cause, part, run, node or number."""

    def one(word: str) -> Q:
        rules = [name for name, text in RULE_WORDS.items() if word in text]
        causes = [name for name, text in CAUSE_WORDS.items() if word in text]
        found = Q(run__name__icontains=word) | Q(node__name__icontains=word)
        found |= Q(subject__icontains=word)
        found |= Q(rule__in=rules) | Q(cause__in=causes)
        number = whole_number(word.removeprefix("#"), most=LARGEST_KEY)
        return found if number is None else found | Q(pk=number) | Q(device=number)

    return reduce(and_, map(one, words), Q())


def alert_link(alert: Alert) -> tuple[str, SafeString | str, str]:
    """Return where an alert is, when it was resolved, its state."""
    resolved = at(alert.resolved_at, "day") if alert.resolved_at else ""
    return alert.get_absolute_url(), resolved, alert.state


def alert_groups(query: Query) -> Iterator[HitGroup]:
    """Yield open alerts, the worst first, those to acknowledge, and resolved ones."""
    words = [word for word in query.words if len(word) < 3 or not ACKNOWLEDGE.startswith(word)]
    alerts = Alert.objects.filter(alerts_about(words)).select_related("run", "node")
    alerts = alerts.defer("run__plan", "run__clock", "run__labels", "node__labels")
    newest = alerts.order_by(
        F("resolved_at").desc(nulls_first=True),
        "severity",
        F("acknowledged_at").asc(nulls_first=True),
        "-fired_at",
    )
    if not query.text:
        newest = newest.filter(resolved_at=None)
    found = list(newest[: MOST_OPEN + MOST])
    open_ = sorted((alert for alert in found if alert.is_open), key=worst_first)[:MOST_OPEN]
    over = [alert for alert in found if not alert.is_open][:MOST]
    is_act = len(words) < len(query.words)
    now = timezone.now()
    hits = {alert: Hit(AlertText(alert, now).verdict, *alert_link(alert)) for alert in open_}
    if is_act:
        unowned = (hits[alert] for alert in open_ if alert.acknowledged_at is None)
        yield HitGroup(
            "Acknowledge",
            [Hit(format_html("Acknowledge: {}", hit.title), hit.url, "action") for hit in unowned],
        )
        return
    yield HitGroup("Open alerts", list(hits.values()))
    yield HitGroup("Resolved alerts", [Hit(brief(alert), *alert_link(alert)) for alert in over])


def place_hits(query: Query, request: HttpRequest) -> list[Hit]:
    """Return the pages and actions that fit and that this user may open."""
    found = [place for place in PLACES if query.fits(place.text)]
    allowed = {role: has_role(request.user, role) for role in {place.role for place in found}}
    found = [place for place in found if allowed[place.role]]
    text = query.text.lower()
    found.sort(key=lambda place: not place.title.lower().startswith(text))
    return [place.hit() for place in found[:MOST]]


def run_hits(query: Query) -> list[Hit]:
    in_use = (F("retired_at").asc(nulls_first=True), F("finished_at").desc(nulls_first=True))
    runs = Run.objects.filter(all_of(query.words, "name", "team", "model"))
    fields = ("name", "retired_at", "phase", "end_reason")

    def state(run: Run) -> str:
        if run.retired_at:
            return "run, retired"
        phase = f"run, {run.get_phase_display().lower()}"
        return f"{phase}: {run.end_reason}" if run.end_reason else phase

    listed = runs.only(*fields).order_by(*in_use, "name")[:MOST]
    return [Hit(run.name, run.get_absolute_url(), state(run)) for run in listed]


def node_hits(query: Query) -> list[Hit]:
    """Return nodes, and before them the device of each that the query numbers."""
    is_part = query.number is not None and bool(query.names)
    words = query.names if is_part else query.words
    fields = ("name", "instance_type", "retired_at", "n_cores", "n_devices", "n_efa")
    nodes = Node.objects.filter(all_of(words, "name", "instance_id")).only(*fields)
    listed = nodes.order_by(F("retired_at").asc(nulls_first=True), "name")[:MOST]
    hits: list[Hit] = []
    devices: list[Hit] = []
    for node in listed:
        retired = ", retired" if node.retired_at else ""
        hits.append(
            Hit(node.name, node.get_absolute_url(), f"node, {node.instance_type}{retired}")
        )
        if is_part:
            devices += device_hits(node, query.part, query.number or 0)
    return devices[:MOST_DEVICES] + hits


def device_hits(node: Node, part: str, number: int) -> Iterator[Hit]:
    """Yield the parts of a node with a number; without a ``part`` its device and EFA device."""
    if part in ("", "device", "chip", "accelerator") and number < node.n_devices:
        url = reverse("device-detail", args=[node.name, number])
        yield Hit(f"Device {number} of {node.name}", url, "device")
    if part == "core" and number < node.n_cores:
        url = reverse("device-detail", args=[node.name, number // node.cores_per_device])
        yield Hit(f"Core {number} of {node.name}", url, "its device")
    if part in ("", "efa") and number < node.n_efa:
        url = f"{node.get_absolute_url()}#link-{number}"
        yield Hit(f"EFA {number} of {node.name}", url, "EFA device")


@lru_cache(maxsize=1)
def documents() -> tuple[tuple[str, Hit], ...]:
    """Return what rules and documents are found by, and the page of each: its runbook."""
    root = Path(settings.ROOT)
    found = []
    for rule in RULES.values():
        hit = Hit(rule.title, reverse("runbook", args=[rule.name]), f"runbook, {rule.severity}")
        found.append((f"{rule.name} {rule.title} {rule.help} rule runbook".lower(), hit))
    for folder, page in (("docs/runbooks", "runbook"), ("docs", "document")):
        for path in sorted((root / folder).glob("*.md")):
            if page == "runbook" and path.stem in RULES:
                continue
            title = document(f"{folder}/{path.name}").partition("\n")[0].removeprefix("# ")
            found.append(
                (f"{title} {page}".lower(), Hit(title, reverse(page, args=[path.stem]), page))
            )
    return tuple(found)


def document_hits(query: Query) -> list[Hit]:
    found = [hit for words, hit in documents() if query.fits(words)]
    found.sort(key=lambda hit: not query.fits(hit.title.lower()))
    return found[:MOST]


def trial_hits(query: Query) -> list[Hit]:
    words = (
        Q(name__icontains=w) | Q(question__icontains=w) | Q(team__icontains=w) for w in query.words
    )
    trials = Trial.objects.filter(*words).only("name", "question", "ended_at").order_by("-pk")
    return [
        Hit(each.name, each.get_absolute_url(), f"trial: {each.question}")
        for each in trials[:MOST]
    ]


def groups_of(query: Query, request: HttpRequest) -> list[HitGroup]:
    """Return what is found, without empty groups; without a query open alerts, pages, runs."""
    first, *others = alert_groups(query)
    groups = [
        first,
        HitGroup("Pages and actions", place_hits(query, request)),
        HitGroup("Runs", run_hits(query)),
    ]
    if query.text:
        groups += [
            HitGroup("Nodes and devices", node_hits(query)),
            HitGroup("Rules and documents", document_hits(query)),
            HitGroup("Trials", trial_hits(query)),
            *others,
        ]
    return [group for group in groups if group.hits]


@require_safe
def search(request: HtmxRequest) -> HttpResponse:
    asked = request.GET.get("q", "").strip()[:LONGEST].replace("\0", "")
    context = {"asked": asked, "groups": groups_of(Query.of(asked), request)}
    return render_page(request, "pages/search.html", context, partials={"results"})
