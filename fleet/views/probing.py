"""Files of probes on real nodes, handed in by browser: judged, and kept as a preflight."""

from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.views.decorators.http import require_POST

from fleet.access.rights import requires
from fleet.preflight.archives import unpacked
from fleet.preflight.asking import PreflightError
from fleet.preflight.files import keep
from fleet.views.preflights import show, whole_number
from fleet.views.render import HtmxRequest
from fleet.words.wording import counted

GIVEN = ("instance_type", "take")


@require_POST
@requires("operator")
def preflight_files(request: HtmxRequest) -> HttpResponse:
    """Judge what probes printed; nothing is kept of what cannot be read."""
    given = {name: request.POST.get(f"files_{name}", "")[:200].strip() for name in GIVEN}
    uploads = [each for each in request.FILES.getlist("files") if isinstance(each, UploadedFile)]
    try:
        preflight = keep(
            unpacked((each.name or "file", each.read()) for each in uploads),
            instance_type=given["instance_type"],
            take=whole_number(given["take"]),
            by=request.user.get_username(),
            now=timezone.now(),
        )
    except PreflightError as error:
        return show(request, of_files=given, error=error)
    messages.success(request, f"{counted(len(uploads), 'file')} read and judged.")
    return HttpResponseRedirect(preflight.get_absolute_url())
