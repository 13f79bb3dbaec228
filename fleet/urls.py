"""Every address, one name through all layers."""

from django.urls import URLPattern, path

from fleet.api import annotations, ingest
from fleet.views import (
    alerts,
    annotating,
    answering,
    charts,
    deliveries,
    drills,
    handing_over,
    health,
    live,
    metrics,
    nodes,
    notifications,
    overview,
    receivers,
    routes,
    runbooks,
    runs,
    search,
    sign_in,
    silences,
    starting,
)

handler400 = "fleet.views.errors.bad_request"
handler403 = "fleet.views.errors.forbidden"
handler404 = "fleet.views.errors.not_found"
handler500 = "fleet.views.errors.server_error"

urlpatterns: list[URLPattern] = [
    path("", overview.overview, name="overview"),
    path("overview/shares", overview.overview_shares, name="overview-shares"),
    path("live", live.live, name="live"),
    path("metrics", metrics.metrics, name="metrics"),
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path(
        "api/v1/ingest/neuron-monitor", ingest.ingest_neuron_monitor, name="ingest-neuron-monitor"
    ),
    path("api/v1/annotations", annotations.annotations, name="annotations"),
    path("nodes/", nodes.node_list, name="node-list"),
    path("nodes/<str:name>/", nodes.node_detail, name="node-detail"),
    path("nodes/<str:name>/charts/<slug:chart>", charts.node_chart, name="node-chart"),
    path("runs/", runs.run_list, name="run-list"),
    path("runs/<slug:name>/", runs.run_detail, name="run-detail"),
    path("runs/<slug:name>/charts/<slug:chart>", charts.run_chart, name="run-chart"),
    path("runs/<slug:name>/drill/", starting.run_drill, name="run-drill"),
    path("drills/", drills.drill_list, name="drill-list"),
    path("drills/new/", starting.drill_new, name="drill-new"),
    path("drills/preview", starting.drill_preview, name="drill-preview"),
    path("drills/<int:pk>/", drills.drill_detail, name="drill-detail"),
    path("drills/<int:pk>/end/", drills.drill_end, name="drill-end"),
    path("drills/<int:pk>/charts/<slug:chart>", charts.drill_chart, name="drill-chart"),
    path("annotations/add/", annotating.annotation_add, name="annotation-add"),
    path("alerts/", alerts.alert_list, name="alert-list"),
    path("alerts/<int:pk>/", alerts.alert_detail, name="alert-detail"),
    path("alerts/<int:pk>/charts/<slug:chart>", charts.alert_chart, name="alert-chart"),
    path("alerts/<int:pk>/post-mortem.md", alerts.alert_post_mortem, name="alert-post-mortem"),
    path("alerts/<int:pk>/acknowledge/", answering.alert_acknowledge, name="alert-acknowledge"),
    path("alerts/<int:pk>/comment/", answering.alert_comment, name="alert-comment"),
    path(
        "alerts/<int:pk>/unacknowledge/",
        answering.alert_unacknowledge,
        name="alert-unacknowledge",
    ),
    path("alerts/<int:pk>/assign/", answering.alert_assign, name="alert-assign"),
    path("alerts/<int:pk>/silence/", answering.alert_silence, name="alert-silence"),
    path("alerts/<int:pk>/resolve/", answering.alert_resolve, name="alert-resolve"),
    path("silences/", silences.silence_list, name="silence-list"),
    path("silences/new/", silences.silence_new, name="silence-new"),
    path("silences/preview", silences.silence_preview, name="silence-preview"),
    path("silences/<int:pk>/", silences.silence_detail, name="silence-detail"),
    path("silences/<int:pk>/end/", silences.silence_end, name="silence-end"),
    path("hand-over/", handing_over.hand_over, name="hand-over"),
    path("hand-over/markdown", handing_over.hand_over_markdown, name="hand-over-markdown"),
    path("notifications/", notifications.notification_list, name="notification-list"),
    path("notifications/receivers/new/", receivers.receiver_new, name="receiver-new"),
    path("notifications/receivers/<int:pk>/", receivers.receiver_edit, name="receiver-edit"),
    path("notifications/receivers/<int:pk>/test/", receivers.receiver_test, name="receiver-test"),
    path("notifications/routes/new/", routes.route_new, name="route-new"),
    path("notifications/routes/preview", routes.route_preview, name="route-preview"),
    path("notifications/routes/<int:pk>/", routes.route_edit, name="route-edit"),
    path("notifications/deliveries/", deliveries.delivery_list, name="delivery-list"),
    path(
        "notifications/deliveries/settle/",
        deliveries.delivery_settle_all,
        name="delivery-settle-all",
    ),
    path("notifications/deliveries/<int:pk>/", deliveries.delivery_detail, name="delivery-detail"),
    path(
        "notifications/deliveries/<int:pk>/settle/",
        deliveries.delivery_settle,
        name="delivery-settle",
    ),
    path("runbooks/<slug:name>/", runbooks.runbook, name="runbook"),
    path("sign-in/", sign_in.sign_in, name="sign-in"),
    path("sign-out/", sign_in.sign_out, name="sign-out"),
    path("search", search.search, name="search"),
]
