"""Every address, one name through all layers."""

from django.urls import URLPattern, path

from fleet.api import ingest
from fleet.views import health, live, overview, search, sign_in

handler400 = "fleet.views.errors.bad_request"
handler403 = "fleet.views.errors.forbidden"
handler404 = "fleet.views.errors.not_found"
handler500 = "fleet.views.errors.server_error"

urlpatterns: list[URLPattern] = [
    path("", overview.overview, name="overview"),
    path("overview/shares", overview.overview_shares, name="overview-shares"),
    path("live", live.live, name="live"),
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path(
        "api/v1/ingest/neuron-monitor", ingest.ingest_neuron_monitor, name="ingest-neuron-monitor"
    ),
    path("sign-in/", sign_in.sign_in, name="sign-in"),
    path("sign-out/", sign_in.sign_out, name="sign-out"),
    path("search", search.search, name="search"),
]
