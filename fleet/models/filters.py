"""Labels and retirement of nodes and runs, and lookups of the list filters that all share."""

import re
from collections.abc import Mapping
from typing import Self, TypeVar

from django.db import models
from django.db.models import Q, TextField, Value
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast
from django.db.models.lookups import Exact, GreaterThan, IContains

LABEL_NAME = r"[A-Za-z][A-Za-z0-9_]{0,39}"
LABEL = re.compile(rf"({LABEL_NAME})(?:=([^\x00-\x1f\x7f]*))?")
# Labels of one node or run; a sender may report as many at a time.
MAX_LABELS = 24
M = TypeVar("M", bound=models.Model)


class LabeledQuerySet(models.QuerySet[M]):
    def unretired(self) -> Self:
        return self.filter(retired_at=None)


class Labeled(models.Model):
    """What nodes and runs have in common: labels, and that they may be retired."""

    labels = models.JSONField(
        default=dict,
        db_default=Value({}, models.JSONField()),
        blank=True,
        help_text="Its surroundings: pod, namespace, Slurm job and so on, by label name.",
    )
    retired_at = models.DateTimeField(
        null=True, blank=True, help_text="Since when lists leave it out. A report clears this."
    )
    retired_by = models.CharField(
        max_length=150,
        blank=True,
        db_default="",
        help_text="Who retired it or brought it back. Empty: automatic.",
    )

    class Meta:
        abstract = True


def given(**lookups: object) -> dict[str, object]:
    """Leave out empty values: a filter field without a value selects everything."""
    return {name: value for name, value in lookups.items() if value}


def label_q(text: str, *, of: str = "", zone: str = "") -> Q:
    """Select rows by a label: ``namespace=ml``, or ``namespace`` for any value.

    ``of`` is the path to the labeled row, as in ``node__``; ``zone`` is its column for the label
    of that name. A text that is no label selects nothing.
    """
    match = LABEL.fullmatch(text)
    if match is None:
        return Q(pk__in=[])
    name, value = match.groups()
    if name == "zone" and zone:
        return Q(**{f"{of}{zone}": value}) if value else Q(**{f"{of}{zone}__gt": ""})
    label = KeyTextTransform(name, f"{of}labels")
    return Q(Exact(label, Value(value))) if value else Q(GreaterThan(label, Value("")))


def labels_contain(text: str) -> Q:
    """Select rows with a label whose name or value contains a text."""
    return Q(IContains(Cast("labels", TextField()), text))


def merged_labels(held: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Return labels with new values; an empty value removes a label. New ones come first."""
    both = {**new, **{name: value for name, value in held.items() if name not in new}}
    return dict(sorted([item for item in both.items() if item[1]][:MAX_LABELS]))
