"""A real web server for tests, in a thread of the test process."""

import gc
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from fleet.api.connections import LimitedProtocol

FINISHING_S = 0.5


@contextmanager
def served(
    application: Any = "fleet.asgi:application",
    protocol: type[LimitedProtocol] = LimitedProtocol,
    *,
    stop_within_s: int = 1,
) -> Iterator[str]:
    """Serve an ASGI application on a free port; gives its address without a slash."""
    config = uvicorn.Config(
        application,
        log_level="warning",
        http=protocol,
        ws="none",
        lifespan="off",
        proxy_headers=False,
        timeout_graceful_shutdown=stop_within_s,
    )
    server = uvicorn.Server(config)
    others = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
            # What the server's own threads still draw they must end while the test's database is
            # open to them, or they leave a connection behind; a pool ends once it is released,
            # and the server holds its loop, whose hub holds one.
            del server
            gc.collect()
            for left in set(threading.enumerate()) - others:
                left.join(timeout=FINISHING_S)
