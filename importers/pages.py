"""The page that imports a run from an uploaded log, table or export: the commands, by a form."""

import re
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.management.base import CommandError
from django.http import HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import path
from django.views.decorators.http import require_http_methods

from fleet.access.roles import requires
from fleet.models import ReadLog
from fleet.pages.fields import FilesField, FilesInput, add_field_error, line_input
from fleet.pages.render import HtmxRequest, render_page
from fleet.runs.imported import coverage_text, log_caveats
from importers.logs.envelopes import CHUNK_BYTES, DAMAGED, opened
from importers.management.commands import import_log, import_run
from importers.management.commands.import_log import NUMBERS, TEXTS
from telemetry.errors import FieldError

COMMANDS = {"log": import_log.Command, "table": import_run.Command}
KINDS = (("log", "training log"), ("table", "table of steps, or export of a tracker"))
LABELS = {
    "--seq-len": "Sequence length",
    "--tp": "Tensor-parallel size",
    "--pp": "Pipeline-parallel size",
}
# As much is read in the process that serves pages: a few seconds.
MOST_UNPACKED = 5
# `--run: 'a b' is not a valid run name`, as the commands say it.
REFUSAL = re.compile(r"(?:--)?([A-Za-z-]+): (.*)", re.DOTALL)


class ImportForm(forms.Form):
    """What the commands take, with their names and their help."""

    field_order = ("files", "kind", "run")
    kind = forms.ChoiceField(label="Kind of file", choices=KINDS)
    run = forms.CharField(
        label="Name of the run that it becomes",
        max_length=60,
        widget=line_input(placeholder="vit-p5-imported"),
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        most_mb = settings.SUPPORT_MAX_BODY_BYTES // 1_000_000
        self.fields["files"] = FilesField(
            label="Files of one run",
            allow_empty_file=True,
            widget=FilesInput(attrs={"required": True}),
            help_text=f"At most {most_mb} MB together, compressed or not.",
        )
        for option, text in TEXTS:
            self.fields[option[2:]] = forms.CharField(
                label=labelled(option), required=False, help_text=sentence(text)
            )
        for option, least, text in NUMBERS:
            self.fields[option[2:]] = forms.IntegerField(
                label=labelled(option), required=False, min_value=least, help_text=sentence(text)
            )
        self.fields["started-at"] = forms.CharField(
            label="Start",
            required=False,
            widget=line_input(placeholder="2026-05-01T12:00:00Z"),
            help_text="If the lines of the log have no times.",
        )
        self.order_fields(self.field_order)

    def imported(self) -> ReadLog:
        """Run the command on the files; raises FieldError with the form's name of a field."""
        given = self.cleaned_data
        command = COMMANDS[given["kind"]]()
        with TemporaryDirectory() as folder:
            paths = []
            for upload in given["files"]:
                # An equals sign would name a column.
                kept = Path(folder) / Path(upload.name).name.replace("=", "-")
                with kept.open("wb") as file:
                    file.writelines(upload.chunks())
                check_size(kept)
                paths.append(str(kept))
            options = [f"--run={given['run']}"]
            options += [
                f"--{name}={value}"
                for name, value in given.items()
                if name not in {"files", "kind", "run"} and value not in {"", None}
            ]
            parser = command.create_parser("manage.py", f"import_{given['kind']}")
            try:
                kept_log = command.imported(vars(parser.parse_args([*options, "--", *paths])))
            except (ValueError, CommandError) as error:
                match = REFUSAL.fullmatch(str(error).replace(f"{folder}/", ""))
                name, message = match.groups() if match else ("files", str(error))
                raise FieldError("files" if name == "FILE" else name, message) from error
        return kept_log


def check_size(file: Path) -> None:
    """Refuse a compressed file of which the text is far larger."""
    most, n = MOST_UNPACKED * settings.SUPPORT_MAX_BODY_BYTES, 0
    with opened(file) as text, suppress(OSError, *DAMAGED):
        while n <= most and (chunk := text.read(CHUNK_BYTES)):
            n += len(chunk)
    if n > most:
        mb = most // 1_000_000
        message = f"{file.name} has more than {mb} MB of text; use manage.py import_log instead"
        raise FieldError("files", message)


def labelled(option: str) -> str:
    return LABELS.get(option) or option[2:].replace("-", " ").capitalize()


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}.".replace("--", "")


@require_http_methods(["GET", "HEAD", "POST"])
@requires("lead")
def run_import(request: HtmxRequest) -> HttpResponseBase:
    """Import a run from uploaded files: leads have no shell."""
    if request.method != "POST":
        return show(request, ImportForm())
    form = ImportForm(request.POST, request.FILES)
    if not form.is_valid():
        return show(request, form)
    try:
        kept = form.imported()
    except FieldError as error:
        add_field_error(form, error)
        return show(request, form)
    messages.success(request, f"{kept.run} imported: {coverage_text(kept)}.")
    for doubt in log_caveats(kept):
        messages.warning(request, doubt)
    return HttpResponseRedirect(kept.run.get_absolute_url())


def show(request: HtmxRequest, form: ImportForm) -> HttpResponse:
    return render_page(request, "runs/run_import.html", {"form": form})


urlpatterns = [path("", run_import, name="run-import")]
