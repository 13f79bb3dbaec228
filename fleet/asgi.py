"""ASGI application of the web server."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "fleet.settings")
django_application = get_asgi_application()

from django.conf import settings  # noqa: E402 - set up only from here on
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware  # noqa: E402

from fleet.api.ingest_asgi import IngestApplication  # noqa: E402


def with_proxies(proxies: list[str]) -> ProxyHeadersMiddleware:
    """Serve trnwatch; only these proxies may set the address and the scheme of a client.

    uvicorn's own default trusts every client on this machine, so it is started with
    `--no-proxy-headers`.
    """
    return ProxyHeadersMiddleware(IngestApplication(django_application), trusted_hosts=proxies)  # type: ignore[arg-type]


application = with_proxies(settings.TRUSTED_PROXIES)
