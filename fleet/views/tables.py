"""A chart's figures as a page, for a person who followed its link rather than a script."""

import msgspec
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from fleet.charts.tables import table_of


def chart_table(request: HttpRequest, body: bytes | str) -> HttpResponse | None:
    """Answer with the page of a chart's figures; None where JSON is what is asked for.

    The address tells whose chart it is: ``/runs/llama/charts/share``, ``/overview/shares``.
    """
    if request.get_preferred_type(["application/json", "text/html"]) != "text/html":
        return None
    page, _, chart = request.path.rpartition("/")
    owner, _, _ = page.rpartition("/charts")
    name = owner.rpartition("/")[2]
    title = chart.replace("-", " ").capitalize()
    query = request.GET.urlencode()
    context = {
        "title": f"{title} of {name or 'the fleet'}",
        "of": name or "the fleet",
        "back": f"{owner}/{f'?{query}' if query else ''}",
        "table": table_of(msgspec.json.decode(body)),
    }
    return render(request, "fleet/chart_table.html", context)
