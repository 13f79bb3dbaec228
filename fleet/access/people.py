"""People: create, change the role of, disable, and reset the password of an account.

Each change is recorded: ``by`` is the account that made it, empty for the command line.
"""

from datetime import datetime

from django.contrib.auth.models import Group, User
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.exceptions import ValidationError
from django.db import transaction

from fleet.access import audit
from fleet.access.roles import ROLES, random_password, role_of
from fleet.models import ConfigurationChange
from telemetry.errors import FieldError

ADMIN = ROLES[-1]
LONGEST_NAME = 150


@transaction.atomic
def create_person(name: str, role: str, *, by: str, now: datetime) -> tuple[User, str]:
    """Create an account with a random password; return both.

    Raises FieldError where the name is invalid or taken.
    """
    # As it will be stored: letters of other widths are the same.
    name = User.normalize_username(name)
    try:
        UnicodeUsernameValidator()(name)
    except ValidationError as error:
        raise FieldError("name", error.messages[0]) from error
    if len(name) > LONGEST_NAME:
        raise FieldError("name", f"give {LONGEST_NAME} characters or fewer")
    if User.objects.filter(username__iexact=name).exists():
        raise FieldError("name", f"{name} already has an account.")
    password = random_password(User(username=name))
    user = User.objects.create_user(name, password=password)
    user.groups.add(Group.objects.get(name=_known(role)))
    _record(f"account {name} created with role {role}", by=by, now=now)
    return user, password


@transaction.atomic
def change_role(user: User, role: str, *, by: str, now: datetime) -> None:
    """Give a user one role instead of the earlier ones; it holds from the next request on.

    Raises FieldError for the last admin, and for a superuser, whose role is that of an admin.
    """
    group = Group.objects.get(name=_known(role))
    if role != ADMIN:
        _keep_an_admin(user)
        if user.is_superuser:
            raise FieldError("role", f"{user} is a superuser, who is an admin in any role")
    before = role_of(user)
    user.groups.remove(*user.groups.filter(name__in=ROLES))
    user.groups.add(group)
    if role != before:
        _record(f"role of {user}: {role} instead of {before or 'none'}", by=by, now=now)


@transaction.atomic
def set_active(user: User, *, is_active: bool, by: str, now: datetime) -> None:
    """Disable or enable an account: a disabled one cannot sign in, and its sessions end.

    Its open event streams end too, within a minute.

    Raises FieldError for the last admin.
    """
    if not is_active:
        _keep_an_admin(user)
    user.is_active = is_active
    user.save(update_fields=["is_active"])
    _record(f"account {user} {'enabled' if is_active else 'disabled'}", by=by, now=now)


@transaction.atomic
def reset_password(user: User, *, by: str, now: datetime) -> str:
    """Set a random password and return it. The user's sessions end."""
    password = random_password(user)
    user.set_password(password)
    user.save(update_fields=["password"])
    _record(f"password of {user} reset", by=by, now=now)
    return password


def _record(text: str, *, by: str, now: datetime) -> None:
    kind = ConfigurationChange.Kind.PEOPLE
    ConfigurationChange.objects.create(at=now, by=by, kind=kind, text=text)
    audit.note("account_change", "ok", who=by, detail=text)


def _known(role: str) -> str:
    if role not in ROLES:
        raise FieldError("role", f"{role[:40]!r} is not known; choose {', '.join(ROLES)}")
    return role


def _keep_an_admin(user: User) -> None:
    # Locked, so that two admins cannot disable each other.
    people = User.objects.select_for_update().filter(is_active=True)
    admins = [each for each in people.prefetch_related("groups") if role_of(each) == ADMIN]
    if [admin.pk for admin in admins] == [user.pk]:
        raise FieldError("role", f"{user} is the last admin; make someone else one first")
