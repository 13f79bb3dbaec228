"""The end of a shift: a note for whoever comes next, and the alerts that go to them."""

from datetime import datetime

from django.db import transaction

from fleet.access.people import answering
from fleet.alerting.answers import AlertError, assign
from fleet.models import Alert, HandOver

LONGEST_NOTE = 5000


@transaction.atomic
def hand_over(
    text: str, *, by: str, to: str, since: datetime, now: datetime, gives: bool = False
) -> HandOver:
    """Keep a note of a shift; with ``gives``, all that its writer has goes to ``to``.

    Raises
    ------
    AlertError
        Where there is no text, it is too long, or nobody who may act is called ``to``.
    """
    text = text.strip()
    if not text:
        raise AlertError("note: is empty; write what the next shift should know")
    if len(text) > LONGEST_NOTE:
        raise AlertError(f"note: is longer than {LONGEST_NOTE:,} characters; shorten it")
    if to and not answering().filter(username=to).exists():
        raise AlertError(f"to: nobody who may act is called {to[:40]!r}; choose from the list")
    if gives and not to:
        raise AlertError("to: name whom your alerts go to")
    if gives:
        for alert in Alert.objects.open():
            if alert.owner == by != to:
                assign(alert, to=to, by=by, comment="handed over", now=now)
    return HandOver.objects.create(at=now, since=min(since, now), by=by, to=to, text=text)
