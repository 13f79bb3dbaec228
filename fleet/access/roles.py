"""Who may do what: roles, who is let in without signing in, and what a bearer token opens."""

import ipaddress
import secrets
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, Group, User
from django.contrib.auth.password_validation import validate_password
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import resolve_url
from django.utils.deprecation import MiddlewareMixin

from fleet.access.tokens import Maker, TokenError, bearer, check_token
from fleet.models import Token
from fleet.models.problem import problem
from fleet.models.token import GRANTS

ASSIGNABLE_ROLES = ("operator", "lead", "admin")


def assignable_users() -> QuerySet[User]:
    """Return the people an alert can be given to, by name."""
    may = Q(groups__name__in=ASSIGNABLE_ROLES) | Q(is_superuser=True)
    return User.objects.filter(may, is_active=True).distinct().order_by("username")


def assignable_names() -> list[str]:
    """Return the names of the people an alert can be given to."""
    return list(assignable_users().values_list("username", flat=True))


class FamiliarWordsValidator:
    """Refuses passwords made of what people who guess at this site try first.

    Django's list of common passwords has few as long as we ask for, and none of our own words.
    """

    WORDS = (
        *("trnwatch", "trainium", "inferentia", "neuron", "trn1", "trn2", "amazon", "aws"),
        *("administrator", "admin", "operator", "viewer", "lead", "root", "user", "demo", "test"),
        *("passwort", "password", "passwd", "secret", "changeme", "letmein", "welcome", "login"),
        *("qwertyuiop", "qwerty", "asdfgh", "1234567890", "123456", "abcdef"),
    )
    MIN_REST, MIN_DIFFERENT = 8, 6

    def validate(self, password: str, user: object = None) -> None:
        """Raise ValidationError where too little is left without the familiar words."""
        rest = password.casefold()
        for word in self.WORDS:
            rest = rest.replace(word, "")
        if len(rest) < self.MIN_REST or len(set(rest)) < self.MIN_DIFFERENT:
            raise ValidationError(self.get_help_text(), code="password_of_familiar_words")

    def get_help_text(self) -> str:
        """Say what is asked for."""
        return (
            "Besides words that are tried first (admin, password, trnwatch, qwerty and the like) "
            f"your password must contain at least {self.MIN_REST} characters, "
            f"{self.MIN_DIFFERENT} of them different."
        )


def random_password(user: User) -> str:
    """Make up a password of 96 random bits that keeps the rules for passwords."""
    while True:
        password = secrets.token_urlsafe(12)
        try:
            validate_password(password, user)
        except ValidationError:
            continue
        return password


# Each may do all that the ones before it may.
ROLES = ("viewer", "operator", "lead", "admin")
# The scopes of the API that each role has, and so the most that a token of such a person has.
SCOPES = {
    "viewer": frozenset({"read"}),
    "operator": GRANTS["act"],
    "lead": GRANTS["lead"],
    "admin": GRANTS["admin"],
}
# Scopes that only machines use. No role bounds them: a fleet stays watched when somebody leaves.
MACHINE_SCOPES = frozenset({"ingest", "scrape"})
DEMO_ADMIN = "admin"

# What a token's deeds stand under on timelines; no person's name has a space.
MACHINE_PREFIX = "token "

# Doors with a lock of their own, or that must open while everything else is shut.
INGEST_VIEWS = frozenset({"ingest-neuron-monitor", "ingest-efa", "ingest-steps"})
PUBLIC_VIEWS = INGEST_VIEWS | {"sign-in", "sign-out", "healthz"}
# The API has a gate of its own: fleet/api/auth.py.
API_NAMESPACE = "api"
# Machines come with a token of scope `scrape`, people sign in.
SCRAPE_VIEWS = frozenset({"metrics", "metrics-neuron", "metrics-node", "sd-prometheus", "readyz"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
FORWARDED = ("X-Forwarded-For", "Forwarded", "X-Real-IP", "X-Forwarded-Host", "Via")

P = ParamSpec("P")
R = TypeVar("R", bound=HttpRequest)
View = Callable[Concatenate[R, P], HttpResponseBase]


def role_of(user: AbstractBaseUser | AnonymousUser) -> str:
    """Return the highest role of a user; whoever was let in may at least read."""
    if not isinstance(user, User):
        return ROLES[0]
    if user.is_superuser:
        return ROLES[-1]
    held = {group.name for group in user.groups.all()}
    return max((role for role in ROLES if role in held), key=ROLES.index, default=ROLES[0])


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
    """Return whose role bounds a token; those made before owners were kept name their maker."""
    is_person = not token.created_by.startswith(MACHINE_PREFIX)
    return token.owner or (token.created_by if is_person else "")


def maker(user: AbstractBaseUser | AnonymousUser) -> Maker:
    """Return a person as the maker of tokens; admins hand out the machines' scopes too."""
    role, name = role_of(user), user.get_username()
    machines = MACHINE_SCOPES if role == ROLES[-1] else frozenset()
    return Maker(name, name, SCOPES[role] | machines)


def has_role(user: AbstractBaseUser | AnonymousUser, role: str) -> bool:
    """Whether a user has at least this role."""
    return ROLES.index(role_of(user)) >= ROLES.index(role)


def requires(role: str) -> Callable[[View[R, P]], View[R, P]]:
    """Let only users of at least this role into a view; others see the 403 page."""

    def guard(view: View[R, P]) -> View[R, P]:
        @wraps(view)
        def guarded(request: R, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            if not has_role(request.user, role):
                mine = role_of(request.user)
                raise PermissionDenied(f"This needs the role {role}; yours is {mine}.")
            return view(request, *args, **kwargs)

        return guarded

    return guard


def access(request: HttpRequest) -> dict[str, Any]:
    """Give templates the role of whoever looks (a context processor)."""
    user = getattr(request, "user", None) or AnonymousUser()
    return {"role": role_of(user)}


def is_loopback(request: HttpRequest) -> bool:
    """Whether the client is on this very machine: its address says so and no proxy is between."""
    if any(header in request.headers for header in FORWARDED):
        return False
    try:
        address = ipaddress.ip_address(request.META.get("REMOTE_ADDR", ""))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


class AccessMiddleware(MiddlewareMixin):
    """Demand that whoever comes has signed in, but for a few doors."""

    def process_view(
        self, request: HttpRequest, view: object, args: object, kwargs: object
    ) -> HttpResponseBase | None:
        """Let the request pass (None), or answer it."""
        match = request.resolver_match
        name = match.url_name if match else None
        if name in PUBLIC_VIEWS or (match and API_NAMESPACE in match.namespaces):
            return None
        if name in SCRAPE_VIEWS and "Authorization" in request.headers:
            return _refuse_token(request)
        if name == "readyz" and is_loopback(request):
            return None
        if request.user.is_authenticated or reads_anonymously(request):
            return None
        return _ask_to_sign_in(request, scraped=name in SCRAPE_VIEWS)


def reads_anonymously(request: HttpRequest) -> bool:
    """Whether this request may read without signing in: the demo, on its own machine."""
    allowed = settings.ANONYMOUS_READING and is_loopback(request)
    return allowed and request.method in SAFE_METHODS


def _refuse_token(request: HttpRequest) -> HttpResponse | None:
    """Check a scraper's token: None if it opens this door."""
    try:
        check_token(bearer(request.headers["Authorization"]), Token.Scope.SCRAPE)
    except TokenError as error:
        return error.response()
    return None


def _ask_to_sign_in(request: HttpRequest, *, scraped: bool) -> HttpResponse:
    """Send people to the sign-in page, and tell machines that they need to name themselves."""
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
    """Create the demo's administrator; give the password, once, only if this call did."""
    user, is_new = User.objects.get_or_create(username=DEMO_ADMIN)
    if not is_new:
        return None
    password = random_password(user)
    user.set_password(password)
    user.save()
    user.groups.add(Group.objects.get(name="admin"))
    return password
