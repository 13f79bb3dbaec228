"""Static files: collected under hashed names and compressed, to be kept for a year."""

import hashlib
import posixpath
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from django.contrib.staticfiles import finders
from django.core.files.storage import FileSystemStorage
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse, HttpResponseNotFound
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.responders import StaticFile
from whitenoise.storage import CompressedManifestStaticFilesStorage

# What our pages use of other packages, which bring many more files.
THIRD_PARTY = (
    "django_htmx/htmx-2.min.js",
    "vendor/idiomorph/dist/idiomorph-ext.min.js",
    "vendor/uplot/dist/uPlot.esm.js",
    "vendor/uplot/dist/uPlot.min.css",
)
# Static imports of a module, as we write them: one line, from "./name.js".
IMPORTS = re.compile(r'^(?:import|export)\b[^"\n]*"(\.[^"\n]+)";', re.MULTILINE)


Listed = Iterator[tuple[str, FileSystemStorage]]


def used(listed: Iterable[tuple[str, FileSystemStorage]]) -> Listed:
    """Yield our own files and those of ``THIRD_PARTY``."""
    for path, storage in listed:
        name = posixpath.join(getattr(storage, "prefix", None) or "", path)
        if name.startswith("fleet/") or name in THIRD_PARTY:
            yield path, storage


class AppFinder(finders.AppDirectoriesFinder):
    def list(self, ignore_patterns: Iterable[str] | None) -> Listed:
        return used(super().list(ignore_patterns))


class PackageFinder(finders.FileSystemFinder):
    def list(self, ignore_patterns: Iterable[str] | None) -> Listed:
        return used(super().list(ignore_patterns))


class HashedStorage(CompressedManifestStaticFilesStorage):  # type: ignore[misc]
    """Adds a hash to every name, also in the imports of JavaScript modules.

    Where nothing was collected (a checkout that never ran `up`), names stay as they are.
    """

    support_js_module_import_aggregation = True

    def stored_name(self, name: str) -> str:
        return str(super().stored_name(name)) if self.hashed_files else name


class StaticMiddleware(WhiteNoiseMiddleware):  # type: ignore[misc]
    """Serves static files in one piece: WhiteNoise streams them, and ours are small."""

    FOREVER = 365 * 24 * 3600

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        path = request.path_info
        file = self.find_file(path) if self.autorefresh else self.files.get(path)
        if file is not None:
            return self.serve(file, request)
        if path.startswith(self.static_prefix):
            return HttpResponseNotFound("There is no such file.", content_type="text/plain")
        response: HttpResponseBase = self.get_response(request)
        return response

    @staticmethod
    def serve(static_file: StaticFile, request: HttpRequest) -> HttpResponse:
        response = WhiteNoiseMiddleware.serve(static_file, request)
        whole = b"".join(response)
        response.close()
        headers = {**response.headers, "Content-Length": str(len(whole))}
        return HttpResponse(whole, status=response.status_code, headers=headers)


class PageCompressionMiddleware(GZipMiddleware):
    """Compresses pages.

    Not streams, which do it themselves, nor parts of files; nor what has a strong ETag, which
    names the very bytes that were sent.
    """

    def process_response(
        self, request: HttpRequest, response: HttpResponseBase
    ) -> HttpResponseBase:
        is_exact = response.status_code == 206 or response.get("ETag", "").startswith('"')
        if response.streaming or is_exact:
            return response
        return super().process_response(request, response)


def collect_if_needed(folder: Path) -> bool:
    """Collect the static files into ``folder``, unless none has changed since the last time."""
    mark = folder.with_name(f"{folder.name}.mark")
    digest = hashlib.sha256()
    for finder in finders.get_finders():
        for name, storage in finder.list([]):
            facts = Path(storage.path(name)).stat()
            digest.update(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    now = digest.hexdigest()
    is_whole = (folder / HashedStorage.manifest_name).exists()
    if is_whole and mark.exists() and mark.read_text() == now:
        return False
    mark.unlink(missing_ok=True)
    call_command("collectstatic", verbosity=0, interactive=False, clear=True)
    mark.write_text(now)
    return True


@cache
def imported_by(name: str) -> tuple[str, ...]:
    """Return the names of all modules that a module imports, directly or through others."""
    modules, waiting = dict.fromkeys([name]), [name]
    while waiting:
        importer = waiting.pop()
        path = finders.find(importer)
        for address in IMPORTS.findall(Path(path).read_text()) if path else ():
            imported = posixpath.normpath(posixpath.join(posixpath.dirname(importer), address))
            if imported not in modules:
                modules[imported] = None
                waiting.append(imported)
    return tuple(modules)[1:]
