"""The form of a route: which alerts, to whom, together with which others, how often again."""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import validate_email

from fleet.alerts.matchers import MatcherError, parse_matchers
from fleet.models import Receiver, Route
from fleet.notifications.channels import EVENTS_URL
from fleet.notifications.http_client import AddressError, Allowed, resolve, split

KIND = Receiver.Kind
# kind: (label of the target, help of the target, label of the secret, help of the secret)
WORDS: Mapping[str, tuple[str, str, str, str]] = {
    KIND.WEBHOOK: (
        "Address",
        "Where JSON is posted, such as https://pager.example/hooks/trnwatch.",
        "Signing secret",
        "With it every post carries a signature; the same secret checks it.",
    ),
    KIND.SLACK: (
        "Webhook address",
        "Slack's incoming webhook, https://hooks.slack.com/services/…, or one of the same form.",
        "",
        "",
    ),
    KIND.PAGERDUTY: (
        "Events address",
        f"{EVENTS_URL}, or events.eu.pagerduty.com in Europe.",
        "Integration key",
        "Of an Events API v2 integration of the service: 32 characters.",
    ),
    KIND.ALERTMANAGER: (
        "Address",
        "Of the Alertmanager itself, such as http://alertmanager.internal:9093.",
        "Bearer token",
        "Where a proxy in front of it asks for one.",
    ),
    KIND.EMAIL: ("Mail addresses", "One or several, by commas.", "", ""),
}
SECRET_TARGETS = frozenset({KIND.WEBHOOK, KIND.SLACK})
NEEDS_SECRET = frozenset({KIND.PAGERDUTY})


class ReceiverForm(forms.Form):
    """What an administrator says of a receiver."""

    name = forms.CharField(max_length=60, help_text="As routes and the log call it.")
    target = forms.CharField(max_length=500, required=False)
    secret = forms.CharField(
        max_length=500,
        required=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )

    def __init__(
        self, kind: str, receiver: Receiver | None = None, data: Mapping[str, Any] | None = None
    ) -> None:
        initial: dict[str, Any] = {}
        if receiver is not None:
            shown = "" if kind in SECRET_TARGETS else receiver.target
            initial = {"name": receiver.name, "target": shown}
        elif kind == KIND.PAGERDUTY:
            initial = {"target": EVENTS_URL}
        super().__init__(data, initial=initial, label_suffix="")
        self.kind, self.receiver = kind, receiver
        self._name_fields()

    def _name_fields(self) -> None:
        target, target_help, secret, secret_help = WORDS[self.kind]
        keep = " Leave empty to keep what is there." if self.receiver else ""
        is_hidden = self.receiver is not None and self.kind in SECRET_TARGETS
        self.fields["target"].label = target
        self.fields["target"].help_text = target_help + (keep if is_hidden else "")
        if is_hidden and self.receiver:
            self.fields["target"].widget.attrs["placeholder"] = self.receiver.masked_target
        if not secret:
            del self.fields["secret"]
            return
        self.fields["secret"].label = secret
        self.fields["secret"].help_text = secret_help + keep
        if self.receiver and self.receiver.secret:
            self.fields["secret"].widget.attrs["placeholder"] = "••••••••"

    def clean_name(self) -> str:
        """Refuse a name that is taken."""
        name: str = self.cleaned_data["name"].strip()
        others = Receiver.objects.filter(name=name)
        if self.receiver is not None:
            others = others.exclude(pk=self.receiver.pk)
        if others.exists():
            raise ValidationError(f"There is a receiver {name} already; choose another name.")
        return name

    def clean_target(self) -> str:
        """Refuse what is no address, or one that may not be reached."""
        target: str = self.cleaned_data["target"].strip()
        if not target and self.receiver is not None and self.kind in SECRET_TARGETS:
            target = self.receiver.target
            if target:
                return target
        if not target:
            raise ValidationError("Say where notifications are to go.")
        if self.kind == KIND.EMAIL:
            for address in target.split(","):
                validate_email(address.strip())
            return target
        try:
            list(resolve(split(target), Allowed.of(settings.NOTIFY_ALLOW)))
        except AddressError as error:
            raise ValidationError(str(error).removeprefix("target: ")) from error
        except (OSError, UnicodeError):
            # A name that cannot be found just now may be found when it matters.
            return target
        return target

    def clean_secret(self) -> str:
        """Keep the secret there is where none is given."""
        given: str = self.cleaned_data["secret"].strip()
        kept = given or (self.receiver.secret if self.receiver else "")
        if not kept and self.kind in NEEDS_SECRET:
            raise ValidationError("PagerDuty takes nothing without its integration key.")
        return kept


LONGEST_WAIT_S = 3600
LONGEST_REPEAT_MIN = 7 * 24 * 60


class RouteForm(forms.Form):
    """What an administrator says of a route; the default route has no matchers."""

    name = forms.CharField(max_length=60)
    matchers = forms.CharField(
        max_length=500,
        label="Which alerts",
        help_text="All must hold, as severity=page team=~blue|green. None takes every alert.",
        required=False,
    )
    receivers = forms.ModelMultipleChoiceField(
        Receiver.objects.all(),
        label="Who is told",
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )
    group_by = forms.ChoiceField(
        choices=Route.GroupBy.choices,
        label="In one message",
        help_text="Alerts that share this. PagerDuty and Alertmanager group by themselves.",
    )
    group_wait_s = forms.IntegerField(
        min_value=0,
        max_value=LONGEST_WAIT_S,
        label="Wait for others, seconds",
        help_text="How long the first alert of a message waits.",
    )
    repeat_min = forms.IntegerField(
        min_value=0,
        max_value=LONGEST_REPEAT_MIN,
        label="Remind every, minutes",
        help_text="While it fires and nobody has acknowledged it. 0 sends no reminders.",
    )
    sends_resolved = forms.BooleanField(label="Tell the end as well", required=False)
    goes_on = forms.BooleanField(
        label="Then try the routes below as well",
        help_text="Without it this route is the last for the alerts it takes.",
        required=False,
    )

    def __init__(self, route: Route, data: Mapping[str, Any] | None = None) -> None:
        initial = {name: getattr(route, name) for name in OWN}
        initial["repeat_min"] = route.repeat_s // 60
        if route.pk:
            initial["receivers"] = list(route.receivers.all())
        super().__init__(data, initial=initial, label_suffix="")
        self.route = route
        if route.is_default:
            for name in ("matchers", "goes_on"):
                del self.fields[name]

    def clean_matchers(self) -> str:
        """Refuse matchers that cannot be read."""
        text: str = self.cleaned_data["matchers"].strip()
        try:
            parse_matchers(text)
        except MatcherError as error:
            raise ValidationError(str(error).removeprefix("matchers: ")) from error
        return text

    def save(self) -> Route:
        """Keep the route as the form has it."""
        given = self.cleaned_data
        for name in OWN:
            if name in given:
                setattr(self.route, name, given[name])
        self.route.repeat_s = given["repeat_min"] * 60
        self.route.save()
        self.route.receivers.set(given["receivers"])
        return self.route


OWN = ("name", "matchers", "group_by", "group_wait_s", "sends_resolved", "goes_on")
