"""What an alert is called in other systems: labels that never change while it lasts."""

from fleet.models import Alert


def labels_of(alert: Alert) -> dict[str, str]:
    """Return the labels by which other systems know an alert; without those it does not have."""
    labels = {
        "alertname": alert.rule,
        "trnwatch_alert": str(alert.pk),
        "severity": alert.get_severity_display(),
        "run": alert.run.name if alert.run else "",
        "team": alert.run.team if alert.run else "",
        "node": alert.node.name if alert.node else "",
        "drill": "yes" if alert.is_drill else "",
    }
    return {name: value for name, value in labels.items() if value}
