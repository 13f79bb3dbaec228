"""The forms of receivers, devices and routes."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from itertools import chain, count
from typing import Any

import msgspec
from django import forms
from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.validators import validate_email

from fleet.alerts.matchers import parse_matchers
from fleet.models import Receiver, Route
from fleet.notifications.channels import EVENTS_URL, apprise_service
from fleet.notifications.http_client import AddressError, Allowed, resolve, split
from fleet.notifications.manual import LONGEST_NOTE
from fleet.notifications.web_push import Subscription, check_endpoint, check_keys, server_keys
from telemetry.errors import FieldError

KIND = Receiver.Kind
# By kind: label and help of the target, label and help of the secret.
TARGET_AND_SECRET: Mapping[str, tuple[str, str, str, str]] = {
    KIND.WEBHOOK: (
        "Address",
        "JSON is posted to it, such as https://pager.example/hooks/trnwatch.",
        "Signing secret",
        "Signs every request; the receiver verifies the signature with the same secret.",
    ),
    KIND.SLACK: (
        "Webhook address",
        "An incoming webhook of Slack, https://hooks.slack.com/services/…, or a compatible one.",
        "Signing secret",
        "The signing secret of the Slack app, for a button that acknowledges. Its interactivity "
        "address is this server's /notifications/slack.",
    ),
    KIND.PAGERDUTY: (
        "Events address",
        f"{EVENTS_URL}, or events.eu.pagerduty.com in Europe.",
        "Integration key",
        "The key of the service's Events API v2 integration: 32 characters.",
    ),
    KIND.ALERTMANAGER: (
        "Address",
        "The Alertmanager, such as http://alertmanager.internal:9093.",
        "Bearer token",
        "If a proxy in front of it requires one.",
    ),
    KIND.EMAIL: ("Mail addresses", "One or several, separated by commas.", "", ""),
    KIND.APPRISE: (
        "Address",
        "An address of Apprise: Microsoft Teams (workflows), Opsgenie, Discord and others, "
        "such as opsgenie://key.",
        "",
        "",
    ),
}
SECRET_TARGETS = frozenset({KIND.WEBHOOK, KIND.SLACK, KIND.APPRISE})
NEEDS_SECRET = frozenset({KIND.PAGERDUTY})


class ReceiverForm(forms.Form):
    """A receiver; fields are named after its kind."""

    name = forms.CharField(max_length=60, help_text="Routes and the log show this name.")
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
        super().__init__(data, initial=initial)
        self.kind, self.receiver = kind, receiver
        # Only its browser knows the address of a device, and gives it by a DeviceForm.
        texts = TARGET_AND_SECRET.get(self.kind, ("", "", "", ""))
        target, target_help, secret, secret_help = texts
        keep = " Leave empty to keep the current one." if self.receiver else ""
        is_hidden = self.receiver is not None and self.kind in SECRET_TARGETS
        self.fields["target"].label = target
        self.fields["target"].help_text = target_help + (keep if is_hidden else "")
        if is_hidden and self.receiver:
            self.fields["target"].widget.attrs["placeholder"] = self.receiver.masked_target
        if not target:
            del self.fields["target"]
        if not secret:
            del self.fields["secret"]
            return
        self.fields["secret"].label = secret
        self.fields["secret"].help_text = secret_help + keep
        if self.receiver and self.receiver.secret:
            self.fields["secret"].widget.attrs["placeholder"] = "••••••••"

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"].strip()
        others = Receiver.objects.filter(name=name)
        if self.receiver is not None:
            others = others.exclude(pk=self.receiver.pk)
        if others.exists():
            raise ValidationError(f"A receiver named {name} exists. Choose another name.")
        return name

    def clean_target(self) -> str:
        """Check the address; an empty one keeps a hidden target."""
        target: str = self.cleaned_data["target"].strip()
        if not target and self.receiver is not None and self.kind in SECRET_TARGETS:
            target = self.receiver.target
            if target and self.kind != KIND.APPRISE:
                return target
        if not target:
            raise ValidationError("Is empty. Enter an address.")
        if self.kind == KIND.EMAIL:
            for address in target.split(","):
                validate_email(address.strip())
            return target
        allowed = Allowed.of(settings.NOTIFY_ALLOW)
        # A name that does not resolve now may do so when a notification is sent.
        with suppress(OSError, UnicodeError):
            try:
                if self.kind == KIND.APPRISE:
                    apprise_service(target)
                else:
                    list(resolve(split(target), allowed))
            except AddressError as error:
                raise ValidationError(str(error).removeprefix("target: ")) from error
        return target

    def clean_secret(self) -> str:
        """Keep the current secret if none is given."""
        new: str = self.cleaned_data["secret"].strip()
        secret = new or (self.receiver.secret if self.receiver else "")
        if not secret and self.kind in NEEDS_SECRET:
            raise ValidationError("PagerDuty requires an integration key.")
        return secret


MOST_DEVICES = 10
LONGEST_DEVICE, LONGEST_OWNER = 40, 14


class DeviceForm(forms.Form):
    """A browser that a person wants to be notified in, as it subscribed to its push service.

    ``renewed`` is the device that its push service has given another address.
    """

    name = forms.CharField(max_length=LONGEST_DEVICE, label="Name of this device")
    endpoint = forms.CharField(max_length=500)
    p256dh = forms.CharField(max_length=100)
    auth = forms.CharField(max_length=40)
    server_key = forms.CharField(max_length=100)

    def __init__(
        self, owner: User, data: Mapping[str, Any], renewed: Receiver | None = None
    ) -> None:
        super().__init__(data)
        self.owner, self.renewed = owner, renewed
        self.fields["name"].required = renewed is None

    def clean_endpoint(self) -> str:
        endpoint: str = self.cleaned_data["endpoint"]
        allowed = Allowed.of(settings.NOTIFY_ALLOW)
        # A name that does not resolve now may do so when a notification is sent.
        with suppress(OSError, UnicodeError):
            try:
                check_endpoint(endpoint, allowed)
                list(resolve(split(endpoint), allowed))
            except AddressError as error:
                raise ValidationError(str(error).partition(": ")[2]) from error
        return endpoint

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = self.cleaned_data
        if self.errors:
            return data
        if data["server_key"] not in server_keys():
            raise ValidationError("The key of this server has changed. Reload the page.")
        data["keys"] = Subscription(data["p256dh"], data["auth"], data["server_key"])
        try:
            check_keys(data["keys"])
        except ValueError as error:
            raise ValidationError("The keys of the browser are invalid.") from error
        # Addresses are stored encrypted, so the database cannot search them.
        devices = Receiver.objects.filter(kind=KIND.PUSH)
        same = (each for each in devices if each.target == data["endpoint"])
        data["device"] = next(same, self.renewed or Receiver(kind=KIND.PUSH))
        if self.renewed is not None and data["device"].pk != self.renewed.pk:
            raise ValidationError("Another device has this address.")
        others = devices.filter(owner=self.owner).exclude(pk=data["device"].pk)
        if others.count() >= MOST_DEVICES:
            raise ValidationError(f"You have {MOST_DEVICES} devices. Remove one first.")
        return data

    def save(self, *, now: datetime) -> Receiver:
        """Store the device; one with this address is taken over, also from another person."""
        device: Receiver = self.cleaned_data["device"]
        device.target = self.cleaned_data["endpoint"]
        device.secret = msgspec.json.encode(self.cleaned_data["keys"]).decode()
        if self.renewed is not None:
            device.save(update_fields=["secret"])
            return device
        if device.pk is None:
            device.created_at = now
        device.owner, device.is_enabled = self.owner, True
        name = f"{self.owner.get_username()[:LONGEST_OWNER]}: {self.cleaned_data['name']}"
        taken = {*Receiver.objects.exclude(pk=device.pk).values_list("name", flat=True)}
        names = chain([name], (f"{name} {number}" for number in count(2)))
        device.name = next(each for each in names if each not in taken)
        device.save()
        return device


class SettleForm(forms.Form):
    """What to do with dead deliveries; without a receiver, with those of all."""

    action = forms.ChoiceField(choices=[("again", "Send again"), ("drop", "Drop")])
    receiver = forms.IntegerField(required=False)
    note = forms.CharField(
        label="Why it can be dropped",
        required=False,
        max_length=LONGEST_NOTE,
        widget=forms.TextInput(
            attrs={"autocomplete": "off", "placeholder": "why it can be dropped"}
        ),
    )


LONGEST_WAIT_S = 3600
LONGEST_REPEAT_MIN = 7 * 24 * 60
OWN_FIELDS = (
    *("name", "matchers", "devices", "group_by", "group_wait_s", "sends_resolved", "goes_on"),
)


class RouteForm(forms.Form):
    """A route; the default route has no matchers."""

    name = forms.CharField(max_length=60)
    matchers = forms.CharField(
        max_length=500,
        label="Matchers",
        help_text="All must match, as severity=page team=~blue|green. Empty matches every alert.",
        required=False,
    )
    receivers = forms.ModelMultipleChoiceField(
        Receiver.objects.exclude(kind=KIND.PUSH),
        label="Receivers",
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )
    devices = forms.ChoiceField(
        choices=Route.Devices.choices,
        label="Send to people's browsers",
        help_text="To every browser in which a user chose to be notified.",
    )
    group_by = forms.ChoiceField(
        choices=Route.GroupBy.choices,
        label="Group by",
        help_text="Alerts of a group share a message. PagerDuty and Alertmanager do their own.",
    )
    group_wait_s = forms.IntegerField(
        min_value=0,
        max_value=LONGEST_WAIT_S,
        label="Group wait, seconds",
        help_text="How long the first alert of a group waits for others.",
    )
    repeat_min = forms.IntegerField(
        min_value=0,
        max_value=LONGEST_REPEAT_MIN,
        label="Repeat interval, minutes",
        help_text="Reminders while an alert fires unacknowledged. 0 sends none.",
    )
    sends_resolved = forms.BooleanField(label="Also notify on resolve", required=False)
    goes_on = forms.BooleanField(
        label="Continue with the routes below",
        help_text="Otherwise this route is the last for the alerts it matches.",
        required=False,
    )

    def __init__(self, route: Route, data: Mapping[str, Any] | None = None) -> None:
        initial = {name: getattr(route, name) for name in OWN_FIELDS}
        initial["repeat_min"] = route.repeat_s // 60
        if route.pk:
            initial["receivers"] = list(route.receivers.all())
        super().__init__(data, initial=initial)
        self.route = route
        if route.is_default:
            for name in ("matchers", "goes_on"):
                del self.fields[name]

    def clean_matchers(self) -> str:
        text: str = self.cleaned_data["matchers"].strip()
        try:
            parse_matchers(text)
        except FieldError as error:
            raise ValidationError(error.message) from error
        return text

    def save(self) -> Route:
        data = self.cleaned_data
        for name in OWN_FIELDS:
            if name in data:
                setattr(self.route, name, data[name])
        self.route.repeat_s = data["repeat_min"] * 60
        self.route.save()
        self.route.receivers.set(data["receivers"])
        return self.route
