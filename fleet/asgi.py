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
# It also has a heap for each thread, and each request has a thread: one heap for all of them holds
# what one request needs at most. Threads of Python seldom allocate at the same time.
M_MMAP_THRESHOLD, LARGE_BYTES, M_ARENA_MAX = -3, 1 << 20, -8
with suppress(OSError, AttributeError):
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)

application = with_proxies(settings.TRUSTED_PROXIES)
