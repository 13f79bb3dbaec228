"""What the page of a run shows of its precision and flags, and of runs that had others."""

from typing import Any

from fleet.like.words import likes_of
from fleet.models import Run


def like_context(run: Run) -> dict[str, Any]:
    """Return a run's settings beside those of its like, as they were last worked out.

    Ask for the run together with ``like_runs``: it costs no question of its own then.
    """
    return {"likes": likes_of(run)}
