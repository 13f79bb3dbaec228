"""ASGI application of the web server."""

import ctypes
import os
from contextlib import suppress

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


# After it has freed a large block once, glibc takes the next ones from heaps that it never gives
# back: a hundred megabytes after a hundred large bodies. With a fixed threshold it returns each.
M_MMAP_THRESHOLD, LARGE_BYTES = -3, 1 << 20
with suppress(OSError, AttributeError):
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)

application = with_proxies(settings.TRUSTED_PROXIES)
