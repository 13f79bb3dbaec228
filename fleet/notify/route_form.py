"""The form of a route: which alerts, to whom, together with which others, how often again."""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from fleet.matching import MatcherError, parse_matchers
from fleet.models import Receiver, Route

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
