"""What each kind of receiver takes: whether it groups for itself, and what it wants to hear."""

from dataclasses import dataclass

from fleet.models import Delivery, Receiver

KIND = Delivery.Kind
EVERYTHING = frozenset(KIND)


@dataclass(frozen=True, slots=True)
class Traits:
    """How a kind of receiver likes its notifications."""

    takes: frozenset[Delivery.Kind]
    is_grouped: bool = True
    is_reminded: bool = True


# PagerDuty and Alertmanager keep alerts of their own, group and escalate: one alert at a time.
TRAITS = {
    Receiver.Kind.WEBHOOK: Traits(EVERYTHING),
    Receiver.Kind.SLACK: Traits(EVERYTHING),
    Receiver.Kind.EMAIL: Traits(EVERYTHING - {KIND.ACKNOWLEDGED}),
    Receiver.Kind.PAGERDUTY: Traits(EVERYTHING, is_grouped=False, is_reminded=False),
    Receiver.Kind.ALERTMANAGER: Traits(
        frozenset({KIND.FIRING, KIND.CHANGED, KIND.RESOLVED, KIND.TEST}),
        is_grouped=False,
        is_reminded=False,
    ),
}


def traits_of(receiver: Receiver) -> Traits:
    """Return what a receiver takes."""
    return TRAITS[Receiver.Kind(receiver.kind)]
