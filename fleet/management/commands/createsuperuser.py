"""Make a superuser, as Django does; but hold a password from the environment to the rules too."""

import os
from typing import Any

from django.contrib.auth.management.commands import createsuperuser
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management import CommandError

VARIABLE = "DJANGO_SUPERUSER_PASSWORD"


class Command(createsuperuser.Command):
    def handle(self, *args: Any, **options: Any) -> Any:
        """Check the password from the environment, which Django would not check."""
        if not options["interactive"] and (password := os.environ.get(VARIABLE)):
            name = options.get("username") or os.environ.get("DJANGO_SUPERUSER_USERNAME", "")
            try:
                validate_password(password, User(username=name))
            except ValidationError as error:
                raise CommandError(f"{VARIABLE}: {' '.join(error.messages)}") from error
        return super().handle(*args, **options)
