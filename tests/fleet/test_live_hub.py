"""The live hub: rendered once, sent to all, no slow client delays others."""

import asyncio
import gzip
import itertools
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

import pytest
from django.db import OperationalError

from fleet.pages.live import Hub, Reader, TooManyStreamsError, TopicWatchers, Watcher
from fleet.pages.streaming import SharedGzip, deflated
from fleet.pages.topics import Events, LiveTopic, Topic
from tests.streams import watch

SOON_S = 0.01
# zlib: read the header and trailer of gzip.
GZIP = 31


async def often() -> AsyncGenerator[None]:
    """Tick a hundred times a second."""
    while True:
        await asyncio.sleep(SOON_S)
        yield


def no_head(n_watchers: int) -> Events:
    """Report no data age."""
    return {}


def counting(key: str = "counted") -> tuple[LiveTopic, list[int]]:
    """Create a topic that counts its renderings, and the list of them."""
    counter, rendered = itertools.count(1), list[int]()

    def heat(context: Mapping[str, Any]) -> Mapping[str, Any]:
        rendered.append(next(counter))
        return {"n": rendered[-1]}

    return LiveTopic(key, Topic(dict, "", (), heat=heat)), rendered


def broken() -> LiveTopic:
    """Make a topic whose context cannot be had."""

    def context() -> Mapping[str, Any]:
        msg = "unknown"
        raise LookupError(msg)

    return LiveTopic("broken", Topic(context, "", ()))


async def until(stream: AsyncIterator[bytes], what: bytes) -> None:
    """Read a stream until it contains a text; fail if it ends before."""
    async for shown in stream:
        if what in shown:
            return
    pytest.fail(f"the stream ended without {what!r}")


def test_a_topic_is_rendered_once_however_many_ask_at_the_same_time(db: None) -> None:
    topic, rendered = counting()
    hub = Hub(ticks=often, head=no_head)

    async def scenario() -> list[Events]:
        return await asyncio.gather(*(hub.current_events(topic) for _ in range(50)))

    assert len(watch(scenario())) == 50
    assert rendered == [1]


def test_all_subscribers_get_the_same(db: None) -> None:
    topic, rendered = counting()
    hub = Hub(ticks=often, head=no_head)

    async def tab() -> None:
        await until(hub.stream({0: (topic, await hub.current_events(topic))}), b'"n":5')

    async def scenario() -> None:
        await asyncio.gather(*(tab() for _ in range(20)))

    watch(scenario())

    assert max(rendered) < 20


def test_streams_are_packed_and_each_event_is_packed_once_for_all(db: None) -> None:
    topic, _ = counting()
    hub = Hub(ticks=often, head=no_head, access_every_s=0.0)
    deflated.cache_clear()

    async def tab() -> bytes:
        answers = iter([True] * 5)
        packed, unpacker, text = b"", zlib.decompressobj(wbits=GZIP), b""
        events = await hub.current_events(topic)
        stream = hub.stream(
            {0: (topic, events)}, may_read=lambda: next(answers, False), packer=SharedGzip()
        )
        async for piece in stream:
            packed += piece
            # What has arrived can be read at once.
            text += unpacker.decompress(piece)
        assert gzip.decompress(packed) == text
        return text

    async def scenario() -> list[bytes]:
        return await asyncio.gather(*(tab() for _ in range(20)))

    texts = watch(scenario())

    assert all(b'"n":2' in text for text in texts)
    assert deflated.cache_info().misses < sum(text.count(b"event:") for text in texts) / 5


def test_a_large_topic_is_rendered_less_often_and_delays_no_other(db: None) -> None:
    """It takes an hour of a core: the next time is hours away."""
    large, of_large = counting("large")
    small, of_small = counting("small")
    cpu_s = itertools.chain.from_iterable(itertools.repeat((0.0, 3600.0)))
    hub = Hub(ticks=often, head=no_head, cpu_s=lambda: next(cpu_s) if of_large else 0.0)

    async def scenario() -> None:
        of_others = hub.stream({0: (large, await hub.current_events(large))})
        await until(of_others, b'"n":2')
        hub._cpu_s = lambda: 0.0
        await until(hub.stream({0: (small, await hub.current_events(small))}), b'"n":5')

    watch(scenario())

    assert of_large == [1, 2]
    assert len(of_small) >= 5


def test_when_the_last_one_goes_nothing_is_rendered_any_more(db: None) -> None:
    topic, rendered = counting()
    hub = Hub(ticks=often, head=no_head)

    async def scenario() -> int:
        stream = hub.stream({0: (topic, await hub.current_events(topic))})
        await until(stream, b'"n":3')
        await stream.aclose()
        so_far = len(rendered)
        await asyncio.sleep(10 * SOON_S)
        return len(rendered) - so_far

    assert watch(scenario()) <= 1
    assert hub.n_watchers == 0


def test_a_topic_that_fails_does_not_stop_the_others(db: None) -> None:
    topic, _ = counting()
    hub = Hub(ticks=often, head=no_head)

    async def scenario() -> None:
        waits = asyncio.create_task(until(hub.stream({0: (broken(), {})}), b"never"))
        await until(hub.stream({0: (topic, await hub.current_events(topic))}), b'"n":4')
        waits.cancel()

    watch(scenario())


def test_what_is_wrong_with_a_topic_is_sent_to_the_first_subscriber(db: None) -> None:
    with pytest.raises(LookupError):
        watch(Hub(ticks=often, head=no_head).current_events(broken()))


def test_a_stream_ends_when_its_client_may_no_longer_read(db: None) -> None:
    topic, _ = counting()
    hub = Hub(ticks=often, head=no_head, access_every_s=0.0)
    answers = iter((True, True, False))

    async def scenario() -> list[bytes]:
        events = await hub.current_events(topic)
        return [
            shown
            async for shown in hub.stream({0: (topic, events)}, may_read=lambda: next(answers))
        ]

    assert len(watch(scenario())) == 3
    assert hub.n_watchers == 0


def test_a_stream_goes_on_while_the_database_does_not_respond(db: None) -> None:
    topic, _ = counting()
    hub = Hub(ticks=often, head=no_head, access_every_s=0.0)

    def unavailable() -> bool:
        raise OperationalError

    async def scenario() -> None:
        stream = hub.stream({0: (topic, await hub.current_events(topic))}, may_read=unavailable)
        await until(stream, b'"n":4')
        await stream.aclose()

    watch(scenario())


def test_a_process_takes_only_so_many_streams(db: None) -> None:
    topic, _ = counting()
    hub = Hub(ticks=often, head=no_head, most=1)

    async def scenario() -> None:
        stream = hub.stream({0: (topic, await hub.current_events(topic))})
        await until(stream, b"heat")
        with pytest.raises(TooManyStreamsError):
            await hub.current_events(topic)
        await stream.aclose()

    watch(scenario())


def test_who_reads_slowly_gets_the_newest_of_each() -> None:
    async def scenario() -> list[bytes]:
        reader = Reader(at=0)
        for i in range(1_000):
            reader.offer(0, {"strip": b"strip %d;" % i, "heat": b"heat %d;" % i})
        return await reader.read()

    assert watch(scenario()) == [b"strip 999;", b"heat 999;"]


def test_only_what_changed_is_reported() -> None:
    async def scenario() -> list[bytes]:
        topic, _ = counting()
        reader = Reader(at=0)
        group = TopicWatchers(topic, {"strip": b"a;", "runs": b"b;"}, {Watcher(reader, 0)})
        group.send({"strip": b"a;", "runs": b"c;"})
        return await reader.read()

    assert watch(scenario()) == [b"c;"]
