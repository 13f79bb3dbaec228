"""The form of a receiver: its fields by kind, its secrets written but never shown."""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import validate_email

from fleet.models import Receiver
from fleet.notify.addresses import AddressError, Allowed, resolve, split
from fleet.notify.channels.pagerduty import EVENTS_URL

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
