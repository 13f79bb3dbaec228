"""Who is to blame, as part of a sentence: the machine, its part, its figure and its peers'."""

from collections.abc import Mapping

from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet.models import Alert
from fleet.words import wording
from fleet.words.causes import CAUSES, SINGLE_CORE, cause_name
from fleet.words.evidence import Culprit

NOTHING = SafeString("")
# A figure that is not plain from its cause says what it is: a slow core is the busy one.
SAID_OF: Mapping[str, str] = {
    "core_utilization_ratio": "busy ",
    "vcpu_usage_ratio": "its host is busy ",
}


def run_link(alert: Alert) -> SafeString:
    """Link the run an alert is about."""
    if alert.run is None:
        return SafeString("a run")
    return format_html('<a href="{}">{}</a>', alert.run.get_absolute_url(), alert.run.name)


def node_link(alert: Alert) -> SafeString:
    """Link the node an alert blames."""
    if alert.node is None:
        return SafeString("one node")
    return format_html('<a href="{}">{}</a>', alert.node.get_absolute_url(), alert.node.name)


def blamed(alert: Alert) -> SafeString:
    """Name the cause and where it sits; the part only where one is known."""
    template = CAUSES.get(alert.cause)
    if template is None:
        return format_html("{}", cause_name(alert.cause))
    if alert.cause == "throttle" and alert.node and alert.node.cores_per_device == 1:
        template = SINGLE_CORE
    if "{node}" in template and alert.node is None:
        return format_html("{} across the run", cause_name(alert.cause))
    if alert.device is None:
        for part in ("EFA device {device} of ", "device {device} of ", "core {device} of "):
            template = template.replace(part, "")
    return format_html(template, device=alert.device, node=node_link(alert))


def figure_of(culprit: Culprit) -> SafeString:
    """Set the culprit's figure against that of its peers: ``: 142 µs against 17 µs``."""
    if culprit.value is None:
        return NOTHING
    value = SAID_OF.get(culprit.metric or "", "") + wording.figure(culprit.value, culprit.unit)
    if culprit.peers_median is None:
        return format_html(": {}", value)
    peers = wording.figure(culprit.peers_median, culprit.unit)
    if culprit.n_peers == 0:
        return format_html(": {} against {} before", value, peers)
    return format_html(": {} against {} on its peers", value, peers)
