"""What the page of a trial says of the checks made for it."""

from collections.abc import Sequence

from django import template

from fleet.models import SupportCheck, Trial
from fleet.support.words import headline

register = template.Library()
N_SHOWN = 3


@register.simple_tag
def checks_of(trial: Trial) -> Sequence[SupportCheck]:
    """Return the newest checks of a trial, fetched once."""
    return list(SupportCheck.objects.filter(trial=trial).defer("operators")[:N_SHOWN])


@register.filter
def in_words(check: SupportCheck) -> str:
    """Say what stands: 3 of 47 operators are unsupported, 9 unknown."""
    return headline(check.n_operators, check.n_unsupported, check.n_unknown)


@register.inclusion_tag("fleet/_support_tag.html")
def support_tag(check: SupportCheck) -> dict[str, object]:
    """Mark a check by its worst operator, in shape, word and colour."""
    if check.n_unsupported:
        return {"colour": "bad", "shape": "▲", "word": "unsupported"}
    if check.n_unknown:
        return {"colour": "warn", "shape": "?", "word": "unknown"}
    return {"colour": "ok", "shape": "✓", "word": "supported"}
