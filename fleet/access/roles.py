"""Roles and scopes, access without sign-in, and access by bearer token."""

import ipaddress
import secrets
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from django.conf import settings
from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, Group, User
from django.contrib.auth.password_validation import validate_password
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import resolve_url
from django.utils.crypto import constant_time_compare
from django.utils.deprecation import MiddlewareMixin

from fleet.access.audit import explain_problem
from fleet.access.tokens import MACHINE_PREFIX, Maker, TokenError, bearer, check_token
from fleet.models import Token
from fleet.models.problem import problem
from fleet.models.token import GRANTS

ASSIGNABLE_ROLES = ("operator", "lead", "admin")


def assignable_users() -> QuerySet[User]:
    """Return the users who may act on alerts, ordered by name."""
    may = Q(groups__name__in=ASSIGNABLE_ROLES) | Q(is_superuser=True)
    return User.objects.filter(may, is_active=True).distinct().order_by("username")


def assignable_names() -> list[str]:
    return list(assignable_users().values_list("username", flat=True))


class GuessablePasswordValidator:
    """Refuses passwords made of words that an attacker tries first.

    Django's list of common passwords has few long ones, and no words of this product.
    """

    WORDS = (
        *("trnwatch", "trainium", "inferentia", "neuron", "trn1", "trn2", "amazon", "aws"),
        *("administrator", "admin", "operator", "viewer", "lead", "root", "user", "demo", "test"),
        *("passwort", "password", "passwd", "secret", "changeme", "letmein", "welcome", "login"),
        *("qwertyuiop", "qwerty", "asdfgh", "1234567890", "123456", "abcdef"),
    )
    MIN_REST, MIN_DIFFERENT = 8, 6

    def validate(self, password: str, user: object = None) -> None:
        rest = password.casefold()
        for word in self.WORDS:
            rest = rest.replace(word, "")
        if len(rest) < self.MIN_REST or len(set(rest)) < self.MIN_DIFFERENT:
            raise ValidationError(self.get_help_text(), code="password_too_guessable")

    def get_help_text(self) -> str:
        return (
            "Without easily guessed words (admin, password, trnwatch, qwerty and similar), "
            f"your password must still have at least {self.MIN_REST} characters, "
            f"{self.MIN_DIFFERENT} of them different."
        )


def random_password(user: User) -> str:
    """Return a valid password of 96 random bits."""
    while True:
        password = secrets.token_urlsafe(12)
        try:
            validate_password(password, user)
        except ValidationError:
            continue
        return password


# Each role includes the ones before it.
ROLES = ("viewer", "operator", "lead", "admin")
# The API scopes of each role, which limit the tokens of its users.
SCOPES = {
    "viewer": frozenset({"read"}),
    "operator": GRANTS["act"],
    "lead": GRANTS["lead"],
    "admin": GRANTS["admin"],
}
# Scopes of machines. No role limits them: monitoring goes on when a user leaves.
MACHINE_SCOPES = frozenset({"ingest", "scrape"})
DEMO_ADMIN = "admin"

# Views with their own authentication, or without any.
INGEST_VIEWS = frozenset(
    {"ingest-neuron-monitor", "ingest-efa", "ingest-steps", "ingest-prometheus", "ingest-otlp"}
)
PUBLIC_VIEWS = INGEST_VIEWS | {"sign-in", "sign-out", "healthz", "node-file", "push-worker"}
# These check a signature, or a secret, themselves.
PUBLIC_VIEWS |= {"alert-image", "slack-interaction", "device-renew"}
# The API authenticates in fleet/api/auth.py.
API_NAMESPACE = "api"
# Machines need a token of scope `scrape`, people sign in.
SCRAPE_VIEWS = frozenset({"metrics", "metrics-neuron", "metrics-node", "sd-prometheus", "readyz"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
FORWARDED = ("X-Forwarded-For", "Forwarded", "X-Real-IP", "X-Forwarded-Host", "Via")

P = ParamSpec("P")
R = TypeVar("R", bound=HttpRequest)
View = Callable[Concatenate[R, P], HttpResponseBase]


def role_of(user: AbstractBaseUser | AnonymousUser) -> str:
    """Return the highest role of a user; without a group, viewer."""
    if not isinstance(user, User):
        return ROLES[0]
    if user.is_superuser:
        return ROLES[-1]
    names = {group.name for group in user.groups.all()}
    return max((role for role in ROLES if role in names), key=ROLES.index, default=ROLES[0])


def effective_scopes(tokens: Iterable[Token]) -> dict[int, frozenset[str]]:
    """Return what each token allows now, by its key: its scope, as far as its owner's role goes.

    An owner who was deactivated or deleted has no role. A token without an owner was made on the
    command line.
    """
    tokens = list(tokens)
    owners = {owner for token in tokens if (owner := owner_of(token))}
    people = User.objects.filter(username__in=owners, is_active=True).prefetch_related("groups")
    allowed = {user.get_username(): SCOPES[role_of(user)] for user in people} if owners else {}
    return {
        token.pk: token.grants & (allowed.get(owner, frozenset()) | MACHINE_SCOPES)
        if (owner := owner_of(token))
        else token.grants
        for token in tokens
    }


def owner_of(token: Token) -> str:
    """Return the user whose role limits a token; for older tokens, the person who made it."""
    is_person = not token.created_by.startswith(MACHINE_PREFIX)
    return token.owner or (token.created_by if is_person else "")


def maker(user: AbstractBaseUser | AnonymousUser) -> Maker:
    """Return a user as the maker of tokens; admins may also grant machine scopes."""
    role, name = role_of(user), user.get_username()
    machines = MACHINE_SCOPES if role == ROLES[-1] else frozenset()
    return Maker(name, name, SCOPES[role] | machines)


def has_role(user: AbstractBaseUser | AnonymousUser, role: str) -> bool:
    return ROLES.index(role_of(user)) >= ROLES.index(role)


def check_role(user: AbstractBaseUser | AnonymousUser, role: str) -> None:
    """Raise PermissionDenied unless a user has at least this role."""
    if not has_role(user, role):
        if not user.is_authenticated:
            raise PermissionDenied(f"This needs the role {role}. Sign in first.")
        raise PermissionDenied(f"This needs the role {role}; yours is {role_of(user)}.")


def requires(role: str) -> Callable[[View[R, P]], View[R, P]]:
    """Let only users of at least this role into a view; others get the 403 page."""

    def guard(view: View[R, P]) -> View[R, P]:
        @wraps(view)
        def guarded(request: R, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            check_role(request.user, role)
            return view(request, *args, **kwargs)

        return guarded

    return guard


def access(request: HttpRequest) -> dict[str, Any]:
    """Add the role of the user to templates (a context processor)."""
    user = getattr(request, "user", None) or AnonymousUser()
    return {"role": role_of(user)}


def is_loopback(request: HttpRequest) -> bool:
    """Whether the client is on this machine, without a proxy between."""
    if any(header in request.headers for header in FORWARDED):
        return False
    try:
        address = ipaddress.ip_address(request.META.get("REMOTE_ADDR", ""))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


class AccessMiddleware(MiddlewareMixin):
    """Requires sign-in for all views except the public ones."""

    def process_view(
        self, request: HttpRequest, view: object, args: object, kwargs: object
    ) -> HttpResponseBase | None:
        match = request.resolver_match
        name = match.url_name if match else None
        if name in PUBLIC_VIEWS or (match and API_NAMESPACE in match.namespaces):
            return None
        if name in SCRAPE_VIEWS and "Authorization" in request.headers:
            try:
                check_token(bearer(request.headers["Authorization"]), Token.Scope.SCRAPE)
            except TokenError as error:
                explain_problem(request, error)
                return error.response()
            return None
        if name == "readyz" and is_loopback(request):
            return None
        if request.user.is_authenticated or reads_anonymously(request):
            return None
        return _ask_to_sign_in(request, scraped=name in SCRAPE_VIEWS)


def reads_anonymously(request: HttpRequest) -> bool:
    """Whether this request may read without sign-in: in the demo, on this machine."""
    allowed = settings.ANONYMOUS_READING and is_loopback(request)
    return allowed and request.method in SAFE_METHODS


def may_still_read(request: HttpRequest, role: str) -> bool:
    """Whether the client of an open stream could open it now, with at least this role.

    Reads session and user from the database again. Unlike Django, never changes the session:
    its new key could not be sent to the browser.
    """
    key = request.session.session_key
    session = type(request.session)(key)
    user = User.objects.filter(pk=session.get(SESSION_KEY, 0), is_active=True).first()
    if user is None:
        return role == ROLES[0] and reads_anonymously(request)
    hashes = (user.get_session_auth_hash(), *user.get_session_auth_fallback_hash())
    shown = session.get(HASH_SESSION_KEY, "")
    if not any(constant_time_compare(shown, each) for each in hashes):
        return False
    return role == ROLES[0] or has_role(user, role)


def _ask_to_sign_in(request: HttpRequest, *, scraped: bool) -> HttpResponse:
    """Redirect people to the sign-in page; answer machines with 401."""
    if scraped or request.path.startswith("/api/"):
        remedy = "Sign in, or send `Authorization: Bearer <token>`."
        return problem(401, remedy, headers={"WWW-Authenticate": 'Bearer realm="trnwatch"'})
    if request.headers.get("HX-Request") == "true":
        back = request.headers.get("HX-Current-URL", "")
        there = redirect_to_login(back, resolve_url(settings.LOGIN_URL)).url
        return HttpResponse(status=403, headers={"HX-Redirect": there})
    if request.method not in SAFE_METHODS:
        raise PermissionDenied("Sign in to do this.")
    return redirect_to_login(request.get_full_path(), resolve_url(settings.LOGIN_URL))


def ensure_demo_admin() -> str | None:
    """Create the demo's administrator; return the password if it is new."""
    user, is_new = User.objects.get_or_create(username=DEMO_ADMIN)
    if not is_new:
        return None
    password = random_password(user)
    user.set_password(password)
    user.save()
    user.groups.add(Group.objects.get(name="admin"))
    return password
