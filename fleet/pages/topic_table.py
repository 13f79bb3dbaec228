"""The table of what can be watched live: one entry per page."""

from collections.abc import Mapping

from fleet.pages import (
    alerts,
    compiles,
    costs,
    drills,
    handover,
    nodes,
    notifications,
    overview,
    runs,
    silences,
)
from fleet.pages.topics import Topic

TOPICS: Mapping[str, Topic] = {
    # Pages that keep nothing live but the clock and the number of alerts.
    "head": Topic(context=dict, template="", partials=()),
    "overview": Topic(
        context=overview.overview_context,
        template="pages/overview.html",
        partials=overview.PARTIALS,
        heat=overview.overview_heat,
        points=overview.overview_points,
    ),
    "nodes": Topic(
        context=nodes.nodes_context,
        template="nodes/node_list.html",
        partials=nodes.LIST_PARTIALS,
        filters=nodes.FILTERS,
    ),
    "node": Topic(
        context=nodes.node_context,
        template="nodes/node_detail.html",
        partials=nodes.PARTIALS,
        named=True,
        points=nodes.node_points,
    ),
    "runs": Topic(
        context=runs.runs_context,
        template="runs/run_list.html",
        partials=runs.LIST_PARTIALS,
    ),
    "run": Topic(
        context=runs.run_context,
        template="runs/run_detail.html",
        partials=runs.PARTIALS,
        every_s={"money": 5.0},
        named=True,
        points=runs.run_points,
    ),
    "run-money": Topic(
        context=costs.money_context,
        template="runs/run_money.html",
        partials=costs.MONEY_PARTIALS,
        every_s={"money": 5.0},
        named=True,
    ),
    "alerts": Topic(
        context=alerts.alerts_context,
        template="alerts/alert_list.html",
        partials=alerts.LIST_PARTIALS,
        filters=(*alerts.FILTERS, "page"),
    ),
    "compiles": Topic(
        context=compiles.compiles_context,
        template="runs/compile_list.html",
        partials=compiles.PARTIALS,
        every_s=dict.fromkeys(compiles.PARTIALS, 5.0),
        filters=(*compiles.FILTERS, "page"),
    ),
    "budgets": Topic(
        context=costs.budgets_context,
        template="costs/budget_list.html",
        partials=costs.PARTIALS,
        role="lead",
        every_s={"budgets": 5.0},
    ),
    "drills": Topic(
        context=drills.drills_context,
        template="simulation/drill_list.html",
        partials=drills.LIST_PARTIALS,
        every_s={"card": 5.0},
        filters=(*drills.FILTERS, "page"),
    ),
    "drill": Topic(
        context=drills.drill_context,
        template="simulation/drill_detail.html",
        partials=drills.PARTIALS,
        named=True,
    ),
    "alert": Topic(
        context=alerts.alert_context,
        template="alerts/alert_detail.html",
        partials=alerts.PARTIALS,
        named=True,
    ),
    "silences": Topic(
        context=silences.silences_context,
        template="alerts/silence_list.html",
        partials=silences.LIST_PARTIALS,
    ),
    "silence": Topic(
        context=silences.silence_context,
        template="alerts/silence_detail.html",
        partials=silences.PARTIALS,
        named=True,
    ),
    "hand-over": Topic(
        context=handover.shift_context,
        template="alerts/handover.html",
        partials=handover.LIVE_PARTIALS,
        filters=("hours",),
    ),
    "notifications": Topic(
        context=notifications.notifications_context,
        template="notifications/notification_list.html",
        partials=notifications.NOTIFICATIONS_PARTIALS,
    ),
    "deliveries": Topic(
        context=notifications.deliveries_context,
        template="notifications/delivery_list.html",
        partials=notifications.PARTIALS,
        filters=(*notifications.FILTERS, "page"),
    ),
}
