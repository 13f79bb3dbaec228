"""One stream of server-sent events, as a browser tab opens it."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Event:
    """One event, and the Unix second at which it arrived whole."""

    name: str
    data: str
    at_s: float


class Refused(Exception):  # noqa: N818
    """The server answered, but not with a stream."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


@asynccontextmanager
async def stream(address: str, *topics: str) -> AsyncIterator[AsyncGenerator[Event]]:
    """Open ``/live`` for topics and give their events; closing it is closing the tab."""
    server = urlsplit(address)
    reader, writer = await asyncio.open_connection(server.hostname, server.port)
    try:
        # HTTP/1.0: no chunks, so that the bytes are the events themselves.
        query = "&".join(f"topic={quote(topic)}" for topic in topics)
        asked = f"GET /live?{query} HTTP/1.0\r\nHost: {server.netloc}\r\n\r\n"
        writer.write(asked.encode())
        status = int((await reader.readline()).split()[1])
        while (await reader.readline()).strip():
            pass
        if status != 200:
            raise Refused(status)
        yield events(reader)
    finally:
        writer.close()


async def events(reader: asyncio.StreamReader) -> AsyncGenerator[Event]:
    """Yield the events of an open stream, comments left out."""
    while True:
        lines = (await reader.readuntil(b"\n\n")).decode().splitlines()
        names = [line[7:] for line in lines if line.startswith("event: ")]
        data = "\n".join(line[6:] for line in lines if line.startswith("data: "))
        if names:
            yield Event(names[0], data, time.time())


def watch(scenario: Coroutine[Any, Any, T], *, timeout_s: float = 20.0) -> T:
    """Play a story of tabs that open and close."""

    async def finish() -> T:
        async with asyncio.timeout(timeout_s):
            return await scenario

    # In a thread of its own: a browser of other tests may hold this one's event loop.
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, finish()).result()


async def first(stream: AsyncGenerator[Event], name: str) -> Event:
    """Wait for the next event of a name."""
    async for event in stream:
        if event.name == name:
            return event
    msg = f"the stream ended without {name}"
    raise AssertionError(msg)
