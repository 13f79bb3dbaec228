"""The HTML forms.

Forms parse text into numbers and dates. The services behind them hold the rules.
"""

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from django import forms
from django.contrib.auth.forms import PasswordChangeForm
from django.core.exceptions import NON_FIELD_ERRORS
from django.db.models import QuerySet

from fleet.access.people import LONGEST_NAME
from fleet.access.roles import ROLES
from fleet.access.tokens import MAX_NAME
from fleet.alerts.handover import LONGEST_NOTE
from fleet.alerts.matchers import FIELDS_TEXT, LONGEST_TEXT
from fleet.alerts.silences import SPANS, end_of
from fleet.checks.support import SupportFile
from fleet.costs.budgets import BudgetRequest
from fleet.models import Annotation, Run, TeamPrice
from fleet.runs.annotations import OFFERED, AnnotationRequest
from fleet.runs.limits import RUN_LIMITS
from fleet.runs.prices import PriceRequest
from telemetry import catalog
from telemetry.errors import FieldError
from telemetry.statistics.verdicts import DEFAULT_STEPS, MARGIN_RATIO

T = TypeVar("T")
LONGEST_LIST = 20_000
DAY = timedelta(days=1)
SEPARATORS = re.compile(r"[\s,;]+")
DATE = forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d")
DATE_ERROR = {"invalid": "Enter a date, for example 2026-11-30."}


def add_field_error(form: forms.Form, error: FieldError, **form_fields: str) -> None:
    """Show an error of a service at its form field, or above the form if there is none.

    ``form_fields`` gives the form's name of a service's field where the two differ.
    """
    name = form_fields.get(error.field, error.field)
    if name in form.fields:
        form.add_error(name, error.message)
    else:
        form.add_error(None, str(error))


def submit(form: forms.Form, service: Callable[[], T], **form_fields: str) -> T | None:
    """Call a service with a valid form; None, with errors in the form, where either refuses."""
    if not form.is_valid():
        return None
    try:
        return service()
    except FieldError as error:
        add_field_error(form, error, **form_fields)
        return None


def error_line(form: forms.Form) -> str:
    """Write the errors of a form in one line, each with its field, for a page without the form."""
    lines = [
        str(message) if name == NON_FIELD_ERRORS else f"{name}: {message}"
        for name, messages in form.errors.items()
        for message in messages
    ]
    return " ".join(lines)


def line_input(**attrs: str) -> forms.TextInput:
    return forms.TextInput(attrs)


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


class RunField(forms.ModelChoiceField):  # type: ignore[type-arg]
    def label_from_instance(self, run: Run) -> str:
        return f"{run.name}, {run.n_nodes} \u00d7 {run.instance_type}"


class DrillRunForm(forms.Form):
    """The run of a drill, by default the largest."""

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


class UsdField(forms.CharField):
    """Dollars as people write them: 250,000 or $35.76."""

    widget = line_input(inputmode="decimal")

    def __init__(self, **options: Any) -> None:
        super().__init__(max_length=20, **options)

    def clean(self, value: Any) -> float:
        text = super().clean(value)
        try:
            return float(text.replace(",", "").removeprefix("$"))
        except ValueError:
            raise forms.ValidationError("Enter an amount in USD, for example 35.76.") from None


class NamesField(forms.CharField):
    """Words separated by spaces, commas or lines."""

    def clean(self, value: Any) -> list[str]:
        return [word for word in SEPARATORS.split(super().clean(value)) if word]


class WholeNumberField(forms.IntegerField):
    """A whole number, with or without commas between thousands."""

    widget = line_input(inputmode="numeric")

    def to_python(self, value: Any) -> int | None:
        return super().to_python(str(value or "")[:40].replace(",", ""))


class ServiceChoiceField(forms.ChoiceField):
    """A choice whose value the service checks: it may have been removed since."""

    def valid_value(self, value: Any) -> bool:
        return True


class ServiceMultipleChoiceField(forms.MultipleChoiceField):
    """Choices whose values the service checks."""

    def valid_value(self, value: Any) -> bool:
        return True


class ServiceTextField(forms.CharField):
    """Text whose length the service checks; the browser knows the same limit."""

    def __init__(self, *, longest: int, **options: Any) -> None:
        super().__init__(**options)
        self.widget.attrs["maxlength"] = longest

    def validate(self, value: Any) -> None:
        pass


class UtcTimeField(forms.CharField):
    """A date and time in UTC, or None."""

    def __init__(self, **options: Any) -> None:
        attrs = {"type": "datetime-local", "class": "moment", "step": options.pop("step_s", 60)}
        widget = forms.DateTimeInput(attrs=attrs, format="%Y-%m-%dT%H:%M")
        super().__init__(required=False, widget=widget, **options)

    def clean(self, value: Any) -> datetime | None:
        text = super().clean(value)
        try:
            time = datetime.fromisoformat(text) if text else None
        except ValueError:
            raise forms.ValidationError(
                "Enter a date and time, for example 2026-11-21T14:29."
            ) from None
        return time if time is None or time.tzinfo else time.replace(tzinfo=UTC)


class FilesInput(forms.ClearableFileInput):
    allow_multiple_selected = True


class FilesField(forms.FileField):
    widget = FilesInput

    def clean(self, data: Any, initial: Any = None) -> list[Any]:
        return [super(FilesField, self).clean(each, initial) for each in data or []]


def choices(names: Iterable[str], empty: str) -> list[tuple[str, str]]:
    return [("", empty), *((name, name) for name in names)]


def set_choices(form: forms.Form, name: str, options: Sequence[tuple[str, str]]) -> None:
    field = form.fields[name]
    if isinstance(field, forms.ChoiceField | forms.MultipleChoiceField):
        field.choices = options


def trainable_types() -> list[tuple[str, str]]:
    known = catalog.instances().items()
    names = [name for name, kind in known if kind.can_train and kind.has_step_model]
    return choices(names, "as registered in the fleet")


def utc(day: Any) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


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
        max_length=LONGEST_NAME,
        widget=line_input(autocomplete="off", autocapitalize="none"),
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
        max_length=60,
        widget=line_input(pattern=r"[A-Za-z0-9_\-]+", placeholder="vit-trn2-or-p5"),
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


PLAIN_TEXT = {"spellcheck": "false", "autocapitalize": "off", "autocomplete": "off"}


class PreflightForm(forms.Form):
    """A new preflight of simulated nodes."""

    run = forms.CharField(required=False, widget=forms.HiddenInput)
    nodes = NamesField(
        label="Nodes, all of one instance type",
        max_length=LONGEST_LIST,
        widget=forms.Textarea(attrs=PLAIN_TEXT | {"rows": 6, "placeholder": "node-00 node-01 …"}),
        help_text="Names, separated by spaces, commas or lines. Simulated nodes only. They are "
        "probed as if idle.",
    )
    instance_type = ServiceChoiceField(required=False)
    take = forms.IntegerField(
        label="Nodes needed", required=False, min_value=1, help_text="Empty: all usable nodes."
    )

    def __init__(
        self, data: Mapping[str, Any] | None = None, *, initial: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(data, initial=dict(initial or {}))
        set_choices(self, "instance_type", trainable_types())


class RequirementForm(forms.Form):
    """Whether a run requires a preflight before it starts."""

    requires = forms.TypedChoiceField(
        choices=[("yes", "yes"), ("no", "no")], coerce=lambda value: value == "yes"
    )


class PreflightFilesForm(forms.Form):
    """A preflight from the output of probes on real nodes."""

    field_order = ("files", "files_instance_type", "files_take")
    files_instance_type = ServiceChoiceField(label="Instance type", required=False)
    files_take = forms.IntegerField(
        label="Nodes needed", required=False, min_value=1, help_text="Empty: all usable nodes."
    )

    def __init__(
        self, data: Mapping[str, Any] | None = None, files: Any = None, *, limits: str
    ) -> None:
        super().__init__(data, files)
        set_choices(self, "files_instance_type", trainable_types())
        # Not an attribute of the class: forms have one of this name.
        self.fields["files"] = FilesField(
            label="Probe output",
            allow_empty_file=True,
            widget=FilesInput(attrs={"required": True}),
            help_text="fi_pingpong, nccom-test or nccl-tests, named pair__A__B.txt, "
            f"device__A__0.txt, collective.txt, node__A.json: {limits}. Written by "
            "deploy/preflight/probe.sh.",
        )
        self.order_fields(self.field_order)


class SupportForm(forms.Form):
    """A model to check for operator support: an uploaded file or its text."""

    file = forms.FileField(required=False, allow_empty_file=True)
    text = forms.CharField(
        label="Or paste the text",
        required=False,
        strip=False,
        widget=forms.Textarea(
            attrs=PLAIN_TEXT
            | {"rows": 6, "class": "mono", "placeholder": "aten::add 12\naten::cumsum"}
        ),
    )
    report = forms.FileField(
        label="Compiler report (optional)",
        required=False,
        allow_empty_file=True,
        help_text="The analyzer's result.json: it overrides the published list.",
    )
    trial = ServiceChoiceField(required=False)

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        files: Any = None,
        *,
        trials: Iterable[str],
        trial: str = "",
        most_mb: int,
    ) -> None:
        super().__init__(data, files, initial={"trial": trial})
        set_choices(self, "trial", choices(trials, "none"))
        self.fields["file"].help_text = (
            "A list with one operator per line, or the analyzer's result.json. Up to "
            f"{most_mb} MB; check_support takes larger ones."
        )

    def graph(self) -> SupportFile:
        """Return the uploaded file or the pasted text.

        Raises FieldError if both or neither is given.
        """
        uploaded, text = self.uploaded("file"), self.cleaned_data["text"]
        if uploaded and text.strip():
            raise FieldError("file", "upload a file or paste text, not both")
        if uploaded:
            return uploaded
        if not text.strip():
            raise FieldError("file", "upload a file or paste text")
        return SupportFile("pasted text", io.BytesIO(text.encode("utf-8", "replace")))

    def uploaded(self, field: str) -> SupportFile | None:
        file = self.cleaned_data[field]
        return SupportFile(file.name or field, io.BytesIO(file.read())) if file else None


class AnnotationForm(forms.Form):
    run = forms.CharField(required=False, widget=forms.HiddenInput)
    node = forms.CharField(required=False, widget=forms.HiddenInput)
    back = forms.CharField(required=False, widget=forms.HiddenInput)
    kind = ServiceChoiceField(
        choices=[(kind, kind) for kind in OFFERED], initial=Annotation.Kind.NOTE
    )
    at = UtcTimeField(label="Time, UTC (empty: now)", step_s=1)
    text = forms.CharField(
        max_length=300,
        widget=line_input(placeholder="a new data loader was deployed"),
    )

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        *,
        initial: Mapping[str, Any] | None = None,
    ) -> None:
        initial = {name: value for name, value in (initial or {}).items() if value}
        super().__init__(data, initial=initial, auto_id="annotation-%s")

    def request(self, *, now: datetime) -> AnnotationRequest:
        given = self.cleaned_data
        return AnnotationRequest(
            given["kind"],
            given["text"],
            given["at"] or now,
            run=given["run"],
            node=given["node"],
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
    """A new silence."""

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
