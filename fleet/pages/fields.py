"""Fields of forms, and what every form needs."""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS

from fleet.models import Run
from telemetry import catalog
from telemetry.errors import FieldError

T = TypeVar("T")
LONGEST_LIST = 20_000
DAY = timedelta(days=1)
SEPARATORS = re.compile(r"[\s,;]+")
DATE = forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d")
DATE_ERROR = {"invalid": "Enter a date, for example 2026-11-30."}
PLAIN_TEXT = {"spellcheck": "false", "autocapitalize": "off", "autocomplete": "off"}


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


class RunField(forms.ModelChoiceField):  # type: ignore[type-arg]
    def label_from_instance(self, run: Run) -> str:
        return f"{run.name}, {run.n_nodes} \u00d7 {run.instance_type}"


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
