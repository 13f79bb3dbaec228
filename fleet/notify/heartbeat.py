"""The dead man's switch: something elsewhere is called for as long as watching is alive."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet.notify.addresses import AddressError
from fleet.notify.channels.alertmanager import PATH, watchdog
from fleet.notify.channels.channel import JSON, encode
from fleet.notify.http import Door, Request, UnreachableError
from fleet.notify.outcomes import OK


@dataclass
class Heartbeat:
    """Calls one address, at most once in a while."""

    url: str
    every: timedelta
    door: Door
    base_url: str
    beat_at: datetime | None = None
    error: str = ""
    _tried_at: datetime | None = None

    def beat(self, *, now: datetime) -> bool:
        """Call if it is time; whether it was, and was answered."""
        if not self.url or (self._tried_at is not None and now - self._tried_at < self.every):
            return False
        self._tried_at = now
        try:
            answer = self.door.post(self._request(now))
        except (AddressError, UnreachableError) as error:
            self.error = str(error)
            return False
        if answer.status not in OK:
            self.error = f"{answer.status} {answer.said}".strip()
            return False
        self.beat_at, self.error = now, ""
        return True

    def _request(self, now: datetime) -> Request:
        """Call, or keep the Watchdog of an Alertmanager firing."""
        if self.url.endswith(PATH):
            return Request(self.url, encode(watchdog(base_url=self.base_url, now=now)), dict(JSON))
        return Request(self.url, b"")
