"""The form that says what happened to a run, on the run's own page."""

from typing import Any

from django import template

from fleet.models import Annotation, Run

register = template.Library()


@register.inclusion_tag("fleet/_annotations.html", takes_context=True)
def run_annotations(context: template.Context, run: Run) -> dict[str, Any]:
    """Offer to annotate a run; what was said stands in its charts, and behind a link."""
    return {
        "run": run,
        "kinds": Annotation.Kind.values,
        "given": {"run": run.name, "back": run.get_absolute_url()},
        "csrf_token": context.get("csrf_token"),
    }
