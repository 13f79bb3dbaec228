"""What people tell of a run's length: tokens of an epoch, and of the whole training."""

from datetime import datetime

from django.db import transaction

from fleet.annotating import Said, annotate
from fleet.models import Annotation, Run

WORDS = {"tokens_per_epoch": "tokens per epoch", "planned_tokens": "planned tokens"}
FIELDS = tuple(WORDS)
MOST = 10**18
SCALES = {"K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}


class LengthError(ValueError):
    """A number of tokens that cannot be; ``field`` is the one to mend."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


def tokens_in(field: str, text: str) -> int | None:
    """Read a number of tokens as people write it; None where it is empty.

    Examples
    --------
    >>> tokens_in("tokens_per_epoch", "1.4 T"), tokens_in("tokens_per_epoch", "2,500,000")
    (1400000000000, 2500000)
    """
    written = text.replace(",", "").replace(" ", "").replace("_", "").upper()
    if not written:
        return None
    scale = SCALES.get(written[-1], 1)
    digits = written[:-1] if written[-1] in SCALES else written
    try:
        # Whole numbers beyond 2**53 keep their last digits.
        number = int(digits) * scale if digits.isdecimal() else round(float(digits) * scale)
    except (ValueError, OverflowError):
        number = 0
    if not 0 < number <= MOST:
        raise LengthError(
            field, "give a number of tokens, as 300,000,000 or 300B; nothing clears it"
        )
    return number


def tell_length(run: Run, given: dict[str, str], *, by: str, now: datetime) -> bool:
    """Keep what somebody tells of a run's length, noted on the run; whether anything changes."""
    told = {field: tokens_in(field, given.get(field, "")) for field in FIELDS}
    if all(getattr(run, field) == value for field, value in told.items()):
        return False
    said = ", ".join(f"{WORDS[field]}: {_written(value)}" for field, value in told.items())
    with transaction.atomic():
        Run.objects.filter(pk=run.pk).update(**told)
        annotate(Said(Annotation.Kind.NOTE, said, now, run=run.name), by=by, now=now)
    return True


def _written(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"
