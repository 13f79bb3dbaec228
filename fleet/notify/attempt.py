"""One attempt to send one delivery: fix its words, send them, judge the answer."""

from dataclasses import dataclass
from datetime import datetime

from fleet.models import Delivery, Receiver, Told
from fleet.notify.addresses import AddressError
from fleet.notify.channels import CHANNELS
from fleet.notify.channels.channel import Body
from fleet.notify.claims import fix_body
from fleet.notify.http import Door, UnreachableError
from fleet.notify.notice import Notice, notice_of
from fleet.notify.outcomes import Outcome, outcome_of

LOCKED = "target: sealed with a key that is not set; see TRNWATCH_SEALING_KEY_FALLBACKS"


@dataclass(frozen=True, slots=True)
class Courier:
    """Sends notifications through one door, with links that begin with one address."""

    door: Door
    base_url: str

    def attempt(self, delivery: Delivery, *, now: datetime) -> Outcome | None:
        """Send a delivery that is ours once; None where it is no longer ours."""
        body: Body | None = delivery.body
        if body is None:
            body = CHANNELS[delivery.receiver.kind].render(self._notice(delivery, now=now))
            if not fix_body(delivery, body):
                return None
        return self.send(delivery.receiver, body, key=delivery.key, now=now)

    def send(self, receiver: Receiver, body: Body, *, key: str, now: datetime) -> Outcome:
        """Send what was written; whatever goes wrong is an outcome too."""
        channel = CHANNELS[receiver.kind]
        if receiver.is_locked:
            return Outcome(why=LOCKED)
        try:
            answer = channel.send(receiver, body, key=key, at=now, door=self.door)
        except AddressError as error:
            return Outcome(is_final=True, why=str(error))
        except UnreachableError as error:
            return Outcome(why=str(error))
        return outcome_of(answer, is_confirmed=channel.confirms(answer), now=now)

    def _notice(self, delivery: Delivery, *, now: datetime) -> Notice:
        known = Told.objects.filter(receiver=delivery.receiver, alert__deliveries=delivery)
        labels = dict(known.order_by("since").values_list("alert_id", "labels"))
        return notice_of(delivery, labels, base_url=self.base_url, now=now)
