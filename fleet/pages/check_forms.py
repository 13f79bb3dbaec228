"""Forms of preflights and of support checks."""

import io
from collections.abc import Iterable, Mapping
from typing import Any

from django import forms

from fleet.checks.support import SupportFile
from fleet.pages.fields import (
    LONGEST_LIST,
    PLAIN_TEXT,
    FilesField,
    FilesInput,
    NamesField,
    ServiceChoiceField,
    choices,
    set_choices,
    trainable_types,
)
from telemetry.errors import FieldError


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
