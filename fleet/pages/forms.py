"""The HTML forms.

Forms parse text into numbers and dates. The services behind them hold the rules.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib.auth.forms import PasswordChangeForm
from django.db.models import QuerySet

from fleet.access.people import LONGEST_NAME
from fleet.access.roles import ROLES
from fleet.access.tokens import MAX_NAME
from fleet.alerts.handover import LONGEST_NOTE
from fleet.alerts.matchers import FIELDS_TEXT, LONGEST_TEXT
from fleet.alerts.silences import SPANS, end_of
from fleet.costs.budgets import BudgetRequest
from fleet.models import Annotation, Run, TeamPrice
from fleet.pages.fields import (
    DATE,
    DATE_ERROR,
    DAY,
    PLAIN_TEXT,
    RunField,
    ServiceChoiceField,
    ServiceMultipleChoiceField,
    ServiceTextField,
    UsdField,
    UtcTimeField,
    WholeNumberField,
    choices,
    line_input,
    set_choices,
    utc,
)
from fleet.runs.annotations import OFFERED, AnnotationRequest
from fleet.runs.limits import RUN_LIMITS
from fleet.runs.prices import PriceRequest
from telemetry import catalog
from telemetry.statistics.verdicts import DEFAULT_STEPS, MARGIN_RATIO


class PasswordForm(PasswordChangeForm):
    """Django's form to change one's own password, with its rules in one line."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields[
            "new_password1"
        ].help_text = (
            "At least 12 characters. No common password, and none that resembles the user name."
        )
        self.fields["new_password2"].help_text = ""


class DrillRunForm(forms.Form):
    run = RunField(
        Run.objects.none(),
        to_field_name="name",
        empty_label=None,
        help_text="Only active simulated runs. Real nodes are never affected.",
        error_messages={"invalid_choice": "This run is no active simulated run. Choose another."},
    )

    def __init__(self, runs: QuerySet[Run], data: Mapping[str, Any]) -> None:
        super().__init__(data if data.get("run") else None)
        self.largest = max(runs, key=lambda run: run.n_nodes, default=None)
        self.fields["run"].queryset = runs  # type: ignore[attr-defined]
        self.fields["run"].initial = self.largest

    def chosen(self) -> Run | None:
        """Return the run; None if the one that was asked for is not active, or none is."""
        if not self.is_bound:
            return self.largest
        return self.cleaned_data["run"] if self.is_valid() else None


SCOPES = {
    "ingest": "report nodes and steps",
    "scrape": "read /metrics, /metrics/neuron and /sd/prometheus",
    "annotate": "add annotations",
    "read": "read the API",
    "act": "read, annotate, act on alerts",
    "lead": "act; set prices and budgets, start trials",
    "admin": "lead; manage tokens",
}


ROLE_HELP = {
    "viewer": "read all pages",
    "operator": "viewer; act on alerts, start drills and checks",
    "lead": "operator; trials, prices, budgets",
    "admin": "lead; people and tokens",
}


class TokenForm(forms.Form):
    name = forms.CharField(
        max_length=MAX_NAME,
        widget=line_input(autocomplete="off", placeholder="purpose: prometheus, ci, rack 7"),
    )
    scope = forms.ChoiceField(
        label="Scopes", choices=list(SCOPES.items()), widget=forms.RadioSelect, initial="ingest"
    )
    days = forms.TypedChoiceField(
        label="Expires",
        choices=[("30", "in 30 days"), ("90", "in 90 days"), ("365", "in a year"), ("", "never")],
        coerce=int,
        empty_value=None,
        required=False,
        initial="365",
    )


class PersonForm(forms.Form):
    name = forms.CharField(
        max_length=LONGEST_NAME, widget=line_input(autocomplete="off", autocapitalize="none")
    )
    role = forms.ChoiceField(
        choices=list(ROLE_HELP.items()), widget=forms.RadioSelect, initial=ROLES[1]
    )


class RunLimitsForm(forms.Form):
    """A field for each limit that a run may have of its own; empty: the usual one."""

    run = forms.CharField(max_length=60, widget=forms.HiddenInput)

    def __init__(self, data: Mapping[str, Any] | None = None, *, run: Run | None = None) -> None:
        super().__init__(data, initial={"run": run.name if run else ""})
        for limit in RUN_LIMITS:
            self.fields[limit.field] = forms.FloatField(
                label=f"{limit.label} ({limit.unit})",
                required=False,
                initial=f"{own:g}" if (own := limit.of(run) if run else None) else None,
                help_text=f"Usually {limit.usual:g}; {limit.range}. {limit.help}".strip(),
                widget=forms.NumberInput(
                    attrs={"placeholder": f"{limit.usual:g}", "step": "any", "min": 0}
                ),
            )


class BudgetForm(forms.Form):
    team = forms.CharField(required=False, max_length=40, widget=line_input(list="teams"))
    run = ServiceChoiceField(label="Or run", required=False)
    usd = UsdField(label="Amount (USD)", widget=line_input(placeholder="250,000"))
    starts_at = forms.DateField(label="First day", widget=DATE, error_messages=DATE_ERROR)
    ends_at = forms.DateField(
        label="Last day",
        widget=DATE,
        error_messages=DATE_ERROR,
        help_text="Days in UTC, inclusive. Runs that started earlier count from the first day.",
    )

    def __init__(
        self, data: Mapping[str, Any] | None = None, *, runs: Sequence[str], now: datetime
    ) -> None:
        last = (now.replace(day=1) + timedelta(days=32)).replace(day=1) - DAY
        initial = {"starts_at": now.replace(day=1).date(), "ends_at": last.date()}
        super().__init__(data, initial=initial)
        set_choices(self, "run", choices(runs, "none"))

    def request(self) -> BudgetRequest:
        given = self.cleaned_data
        return BudgetRequest(
            team=given["team"],
            run=given["run"],
            usd=given["usd"],
            starts_at=utc(given["starts_at"]),
            # The last day counts whole.
            ends_at=utc(given["ends_at"]) + DAY,
        )


class PriceForm(forms.Form):
    team = forms.CharField(
        required=False,
        max_length=40,
        widget=line_input(list="teams", placeholder="all teams without a contract"),
    )
    instance_type = forms.ChoiceField()
    basis = forms.ChoiceField(label="Terms", choices=TeamPrice.Basis.choices, initial="contract")
    usd_per_node_hour = UsdField(label="USD per node-hour")
    valid_from = forms.DateField(
        label="From",
        widget=DATE,
        error_messages=DATE_ERROR,
        help_text="From 00:00 UTC of that day. Active runs use it from then on, not for past "
        "time. Finished runs do not change.",
    )
    source = forms.CharField(
        max_length=200, widget=line_input(placeholder="contract 2026-17, page 3")
    )

    def __init__(self, data: Mapping[str, Any] | None = None, *, now: datetime) -> None:
        super().__init__(data, initial={"valid_from": now.date()})
        set_choices(self, "instance_type", choices(catalog.instances(), "select a type"))

    def request(self) -> PriceRequest:
        return PriceRequest(
            **self.cleaned_data | {"valid_from": utc(self.cleaned_data["valid_from"])}
        )


class LengthForm(forms.Form):
    """The length of a run's training; an empty field clears the value."""

    tokens_per_epoch = forms.CharField(
        label="Tokens per epoch",
        required=False,
        max_length=40,
        widget=line_input(placeholder="unknown"),
        help_text="Tokens in one pass over the data, for example 300B or 14,197,122. Jobs can "
        "report it.",
    )
    planned_tokens = forms.CharField(
        label="Planned tokens",
        required=False,
        max_length=40,
        widget=line_input(placeholder="unknown"),
        help_text="Length of the training. Used to project its end and total cost.",
    )

    def __init__(self, run: Run, data: Mapping[str, Any] | None = None) -> None:
        initial = {name: getattr(run, name) for name in ("tokens_per_epoch", "planned_tokens")}
        super().__init__(data, initial=initial)


class TrialForm(forms.Form):
    name = forms.CharField(
        max_length=60, widget=line_input(pattern=r"[A-Za-z0-9_\-]+", placeholder="vit-trn2-or-p5")
    )
    question = forms.CharField(
        max_length=200, widget=line_input(placeholder="Do we move to trn2?")
    )
    team = forms.CharField(required=False, max_length=40)
    baseline = ServiceChoiceField()
    candidates = ServiceMultipleChoiceField(
        label="Candidates, one or more", widget=forms.SelectMultiple(attrs={"size": 6})
    )
    is_grouped = forms.BooleanField(
        label="Runs on the same hardware are repeats of one arm",
        required=False,
        help_text="Three runs of each arm measure how much runs vary. With fewer a verdict is "
        "provisional.",
    )
    margin_ratio = forms.FloatField(
        label="Equivalent within (ratio, 0.02 is 2 %)",
        min_value=0.0,
        max_value=0.5,
        initial=MARGIN_RATIO,
        help_text="A smaller difference does not matter.",
    )
    planned_steps = forms.IntegerField(
        label="Planned steps per run",
        min_value=1,
        initial=DEFAULT_STEPS,
        help_text="The verdict is final after this many settled steps. Earlier verdicts need "
        "stronger evidence.",
    )
    planned_tokens = WholeNumberField(
        label="Tokens of the whole training (optional)",
        required=False,
        widget=line_input(inputmode="numeric", placeholder="260,000,000,000"),
        help_text="Used to project the time to train.",
    )

    def __init__(
        self, data: Mapping[str, Any] | None = None, *, runs: Sequence[Mapping[str, Any]]
    ) -> None:
        super().__init__(data)
        names = [(run["name"], f"{run['name']}, {run['instance_type']}") for run in runs]
        set_choices(self, "baseline", [("", "select a run"), *names])
        set_choices(self, "candidates", names)
        self.hardware = {run["name"]: (run["n_nodes"], run["instance_type"]) for run in runs}

    def clean(self) -> dict[str, Any]:
        """Make the candidates repeats of the first arm on the same hardware, if asked for."""
        cleaned = {**self.cleaned_data}
        baseline, candidates = cleaned.get("baseline"), cleaned.get("candidates", [])
        if not cleaned.pop("is_grouped", False) or not baseline:
            return cleaned
        first: dict[object, str] = {}
        repeats: dict[str, list[str]] = {}
        for name in (baseline, *candidates):
            arm = first.setdefault(self.hardware.get(name, name), name)
            if arm != name:
                repeats.setdefault(arm, []).append(name)
        chosen = [name for name in first.values() if name != baseline]
        if not chosen:
            self.add_error("candidates", "All runs are on the baseline's hardware. Add another.")
        return cleaned | {"candidates": chosen, "replicates": repeats}


class AnnotationForm(forms.Form):
    run = forms.CharField(required=False, widget=forms.HiddenInput)
    node = forms.CharField(required=False, widget=forms.HiddenInput)
    back = forms.CharField(required=False, widget=forms.HiddenInput)
    kind = ServiceChoiceField(
        choices=[(kind, kind) for kind in OFFERED], initial=Annotation.Kind.NOTE
    )
    at = UtcTimeField(label="Time, UTC (empty: now)", step_s=1)
    text = forms.CharField(
        max_length=300, widget=line_input(placeholder="a new data loader was deployed")
    )

    def __init__(
        self, data: Mapping[str, Any] | None = None, *, initial: Mapping[str, Any] | None = None
    ) -> None:
        initial = {name: value for name, value in (initial or {}).items() if value}
        super().__init__(data, initial=initial, auto_id="annotation-%s")

    def request(self, *, now: datetime) -> AnnotationRequest:
        given = self.cleaned_data
        return AnnotationRequest(
            given["kind"], given["text"], given["at"] or now, run=given["run"], node=given["node"]
        )


SPAN_ERRORS = {
    "required": "Choose a duration.",
    "invalid_choice": f"%(value)s is not one of {', '.join(SPANS)}. Choose one.",
}


class SilenceEndForm(forms.Form):
    """The end of a silence: now, after one of the usual spans, or at a time."""

    span = forms.ChoiceField(choices=[("now", "now"), *SPANS.items()], error_messages=SPAN_ERRORS)
    until = UtcTimeField(label="or at (UTC)")
    back = forms.CharField(required=False, widget=forms.HiddenInput)

    def ends_at(self, *, now: datetime) -> datetime:
        return end_of(self.cleaned_data["span"], until=self.cleaned_data["until"], now=now)


class SilenceForm(SilenceEndForm):
    field_order = ("matchers", "reason", "span", "until", "confirmed")
    back = None  # type: ignore[assignment]
    matchers = ServiceTextField(
        longest=LONGEST_TEXT,
        required=False,
        widget=forms.TextInput(
            attrs=PLAIN_TEXT | {"class": "mono", "placeholder": "run=llama node=~llama-0[1-4]"}
        ),
        help_text=f"All must match. Fields: {FIELDS_TEXT}. Operators: = != and =~ !~ for a "
        'regular expression that matches the whole value: team=~"blue|green".',
    )
    reason = ServiceTextField(
        longest=LONGEST_TEXT,
        widget=line_input(autocomplete="off", placeholder="switch of rack 4 is being replaced"),
    )
    span = forms.ChoiceField(
        label="Duration",
        choices=list(SPANS.items()),
        widget=forms.RadioSelect,
        error_messages=SPAN_ERRORS,
    )
    until = UtcTimeField(label="End, UTC", help_text="For \u201cuntil \u2026\u201d.")
    confirmed = forms.BooleanField(label="Confirm: this silences every alert", required=False)

    def __init__(
        self, data: Mapping[str, Any] | None = None, *, initial: Mapping[str, Any] | None = None
    ) -> None:
        given = {name: value for name, value in (initial or {}).items() if value}
        super().__init__(data, initial={"span": next(iter(SPANS))} | given)


class HandoverForm(forms.Form):
    """A note for the next shift."""

    hours = forms.CharField(required=False, widget=forms.HiddenInput)
    text = ServiceTextField(
        label="What the next shift should know",
        longest=LONGEST_NOTE,
        widget=forms.Textarea(
            attrs={"rows": 5, "placeholder": "what is going on, what you tried, what to watch"}
        ),
    )
    to = ServiceChoiceField(required=False)
    assigns = forms.BooleanField(label="Assign my alerts to them", required=False)

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        *,
        initial: Mapping[str, Any] | None = None,
        people: Iterable[str],
    ) -> None:
        super().__init__(data, initial=dict(initial or {}))
        set_choices(self, "to", choices(people, "the next shift"))
