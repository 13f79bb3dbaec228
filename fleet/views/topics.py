"""The table of what can be watched live: one entry per page."""

from collections.abc import Mapping

from fleet.topics import Topic
from fleet.views import (
    alerts,
    budgets,
    compiles,
    deliveries,
    drills,
    handing_over,
    money,
    nodes,
    notifications,
    overview,
    runs,
    silences,
)

TOPICS: Mapping[str, Topic] = {
    # Pages that keep nothing live but the clock and the number of alerts.
    "head": Topic(context=dict, template="", partials=()),
    "overview": Topic(
        context=overview.overview_context,
        template="fleet/overview.html",
        partials=overview.PARTIALS,
        heat=overview.overview_heat,
        points=overview.overview_points,
    ),
    "nodes": Topic(
        context=nodes.nodes_context,
        template="fleet/node_list.html",
        partials=nodes.LIST_PARTIALS,
        filters=nodes.FILTERS,
    ),
    "node": Topic(
        context=nodes.node_context,
        template="fleet/node_detail.html",
        partials=nodes.PARTIALS,
        named=True,
        points=nodes.node_points,
    ),
    "runs": Topic(
        context=runs.runs_context,
        template="fleet/run_list.html",
        partials=runs.LIST_PARTIALS,
    ),
    "run": Topic(
        context=runs.run_context,
        template="fleet/run_detail.html",
        partials=runs.PARTIALS,
        every_s={"money": 5.0},
        named=True,
        points=runs.run_points,
    ),
    "run-money": Topic(
        context=money.money_context,
        template="fleet/run_money.html",
        partials=money.PARTIALS,
        every_s={"money": 5.0},
        named=True,
    ),
    "alerts": Topic(
        context=alerts.alerts_context,
        template="fleet/alert_list.html",
        partials=alerts.LIST_PARTIALS,
        filters=(*alerts.FILTERS, "page"),
    ),
    "compiles": Topic(
        context=compiles.compiles_context,
        template="fleet/compile_list.html",
        partials=compiles.PARTIALS,
        every_s=dict.fromkeys(compiles.PARTIALS, 5.0),
        filters=(*compiles.FILTERS, "page"),
    ),
    "budgets": Topic(
        context=budgets.budgets_context,
        template="fleet/budget_list.html",
        partials=budgets.PARTIALS,
        role="lead",
        every_s={"budgets": 5.0},
    ),
    "drills": Topic(
        context=drills.drills_context,
        template="fleet/drill_list.html",
        partials=drills.LIST_PARTIALS,
        every_s={"card": 5.0},
        filters=(*drills.FILTERS, "page"),
    ),
    "drill": Topic(
        context=drills.drill_context,
        template="fleet/drill_detail.html",
        partials=drills.PARTIALS,
        named=True,
    ),
    "alert": Topic(
        context=alerts.alert_context,
        template="fleet/alert_detail.html",
        partials=alerts.PARTIALS,
        named=True,
    ),
    "silences": Topic(
        context=silences.silences_context,
        template="fleet/silence_list.html",
        partials=silences.LIST_PARTIALS,
    ),
    "silence": Topic(
        context=silences.silence_context,
        template="fleet/silence_detail.html",
        partials=silences.PARTIALS,
        named=True,
    ),
    "hand-over": Topic(
        context=handing_over.shift_context,
        template="fleet/hand_over.html",
        partials=handing_over.LIVE_PARTIALS,
        filters=("hours",),
    ),
    "notifications": Topic(
        context=notifications.notifications_context,
        template="fleet/notification_list.html",
        partials=notifications.PARTIALS,
    ),
    "deliveries": Topic(
        context=deliveries.deliveries_context,
        template="fleet/delivery_list.html",
        partials=deliveries.PARTIALS,
        filters=(*deliveries.FILTERS, "page"),
    ),
}
