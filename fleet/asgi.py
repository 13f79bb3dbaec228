"""The door for web servers."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "fleet.settings")
django_application = get_asgi_application()

from fleet.api.door import Door  # noqa: E402 - models can be imported only from here on

application = Door(django_application)
