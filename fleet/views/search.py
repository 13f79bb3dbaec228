"""Find a node, a run or an alert by a piece of its name."""

from django.db.models import Q
from django.http import HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from fleet.models import Alert, Node, Run
from fleet.views.render import HtmxRequest, render_page
from fleet.words.sentences import told

MOST = 8


@require_safe
def search(request: HtmxRequest) -> HttpResponse:
    """List what matches, the runs first; an empty question lists what is open."""
    asked = request.GET.get("q", "").strip()[:100]
    now = timezone.now()
    alerts = Alert.objects.open().worst_first().select_related("run", "node")
    if asked:
        about = Q(subject__icontains=asked) | Q(rule__icontains=asked) | Q(cause__icontains=asked)
        alerts = alerts.filter(about)
    context = {
        "asked": asked,
        "runs": Run.objects.filter(name__icontains=asked)[:MOST],
        "nodes": Node.objects.filter(name__icontains=asked)[:MOST] if asked else (),
        "alerts": [told(alert, now=now) for alert in alerts[:MOST]],
    }
    return render_page(request, "fleet/search.html", context, partials={"results"})
