"""Who there is to answer for an alert: the people who may act."""

from django.contrib.auth.models import User
from django.db.models import Q, QuerySet

ANSWERING = ("operator", "lead", "admin")


def answering() -> QuerySet[User]:
    """Return the people an alert can be given to, by name."""
    may = Q(groups__name__in=ANSWERING) | Q(is_superuser=True)
    return User.objects.filter(may, is_active=True).distinct().order_by("username")


def names() -> list[str]:
    """Return the names of the people an alert can be given to."""
    return list(answering().values_list("username", flat=True))
