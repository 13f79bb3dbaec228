"""What each kind of receiver speaks."""

from fleet.models import Receiver
from fleet.notify.channels.alertmanager import Alertmanager
from fleet.notify.channels.channel import Channel
from fleet.notify.channels.mail import Mail
from fleet.notify.channels.pagerduty import PagerDuty
from fleet.notify.channels.slack import Slack
from fleet.notify.channels.webhook import Webhook

CHANNELS: dict[str, Channel] = {
    Receiver.Kind.WEBHOOK: Webhook(),
    Receiver.Kind.SLACK: Slack(),
    Receiver.Kind.PAGERDUTY: PagerDuty(),
    Receiver.Kind.ALERTMANAGER: Alertmanager(),
    Receiver.Kind.EMAIL: Mail(),
}

__all__ = ["CHANNELS", "Channel"]
