"""People: those who may act on an alert, and what passwords they may have."""

import secrets

from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet

ANSWERING = ("operator", "lead", "admin")


def answering() -> QuerySet[User]:
    """Return the people an alert can be given to, by name."""
    may = Q(groups__name__in=ANSWERING) | Q(is_superuser=True)
    return User.objects.filter(may, is_active=True).distinct().order_by("username")


def names() -> list[str]:
    """Return the names of the people an alert can be given to."""
    return list(answering().values_list("username", flat=True))


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
