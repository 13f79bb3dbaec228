"""Every setting, in paragraphs; the environment overrides what a deployment must choose."""

import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from fleet.ops import private_files
from fleet.ops.environment import Environment
from fleet.ops.schedules import EachSecond
from telemetry.evidence.budget import PAGES_PER_YEAR
from telemetry.store.placement import store_urls

ROOT = Path(__file__).resolve().parent.parent

ENV = Environment()

# Where this installation keeps what it makes: database, Redis' files, secrets. All that any
# program writes from here on is for its owner alone, and so is what lay there before.
DATA_DIR = Path(ENV.text("TRNWATCH_DATA_DIR") or ROOT / "var")
with private_files.usable(DATA_DIR):
    PRIVATE_FILES = private_files.make_private(DATA_DIR)
FILE_UPLOAD_PERMISSIONS, FILE_UPLOAD_DIRECTORY_PERMISSIONS = 0o600, 0o700


# The demo: a living simulated fleet, and anonymous reading from this machine only.
DEMO = ENV.flag("TRNWATCH_DEMO")
ANONYMOUS_READING = DEMO
# Drills break simulated nodes on purpose; outside the demo they must be asked for.
ALLOW_DRILLS = DEMO or ENV.flag("TRNWATCH_ALLOW_DRILLS")
# Whether agents of suspected nodes are asked for a probe.
REQUEST_PROBES = ENV.flag("TRNWATCH_REQUEST_PROBES")
# Whether workers that allow it are asked for the runtime's trace where an alert names no node.
REQUEST_TRACES = ENV.flag("TRNWATCH_REQUEST_TRACES", default=True)
# Whether operators may request samples of 100 ms of nodes.
REQUEST_SAMPLES = ENV.flag("TRNWATCH_REQUEST_SAMPLES", default=True)

# The error budget: false pages a year that are accepted of the whole fleet; ten times as many
# warnings. From one in a century to one an hour.
FALSE_PAGES_PER_YEAR = ENV.number(
    "TRNWATCH_FALSE_PAGES_PER_YEAR", PAGES_PER_YEAR, least=0.01, most=8760
)
# Slow steps that cost less than this an hour are a warning, not a page. 0: each pages by its rule.
PAGE_FROM_USD_PER_HOUR = ENV.number(
    "TRNWATCH_PAGE_FROM_USD_PER_HOUR", 0.0, least=0.0, most=1_000_000.0
)

# Django
SECRET_KEY = ENV.text("TRNWATCH_SECRET_KEY")
if not SECRET_KEY:
    # Made once for this installation.
    with private_files.usable(DATA_DIR):
        _key_file = DATA_DIR / "secret_key"
        if not _key_file.exists() or not _key_file.stat().st_size:
            private_files.write_once(_key_file, secrets.token_urlsafe(50))
        SECRET_KEY = _key_file.read_text()
SECRET_KEY_FALLBACKS = ENV.names("TRNWATCH_SECRET_KEY_FALLBACKS")
# The key that encrypts addresses and secrets of receivers; default: derived from Django's key.
SEALING_KEY = ENV.text("TRNWATCH_SEALING_KEY")
SEALING_KEY_FALLBACKS = ENV.names("TRNWATCH_SEALING_KEY_FALLBACKS")
DEBUG = ENV.flag("TRNWATCH_DEBUG")
ALLOWED_HOSTS = ENV.names("TRNWATCH_ALLOWED_HOSTS", "127.0.0.1,localhost,[::1]")
CSRF_TRUSTED_ORIGINS = ENV.names("TRNWATCH_ORIGINS")
INSTALLED_APPS = [
    # First, because its createsuperuser replaces Django's.
    "fleet",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_htmx",
    "template_partials",
    "csp",
    "drills",
    "importers",
    "telemetry.store",
]


MIDDLEWARE = [
    "fleet.access.audit.AuditMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "fleet.ops.static_files.PageCompressionMiddleware",
    "fleet.ops.static_files.StaticMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "fleet.access.roles.AccessMiddleware",
    "fleet.pages.errors.ErrorPageMiddleware",
]
ROOT_URLCONF = "fleet.urls"
ASGI_APPLICATION = "fleet.asgi.application"
LOADERS: list[Any] = [
    "django.template.loaders.filesystem.Loader",
    "django.template.loaders.app_directories.Loader",
]
if not DEBUG:
    # Keep parsed templates in memory.
    LOADERS = [("django.template.loaders.cached.Loader", LOADERS)]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "templates"],
        "OPTIONS": {
            "loaders": [("template_partials.loader.Loader", LOADERS)],
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "fleet.access.roles.access",
            ],
            "libraries": {
                "formats": "fleet.pages.templatetags.formats",
                "marks": "fleet.pages.templatetags.marks",
                "shell": "fleet.pages.templatetags.shell",
            },
        },
    }
]
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
USE_I18N = False

# Who comes in: people sign in, machines bring a token. TRNWATCH_TLS=1 says that visitors come
# over https, through a proxy on this machine that says so in X-Forwarded-Proto.
TLS = ENV.flag("TRNWATCH_TLS")
# The proxies whose X-Forwarded-For and X-Forwarded-Proto count: addresses, networks, or "*".
TRUSTED_PROXIES = ENV.names("FORWARDED_ALLOW_IPS", "127.0.0.1,::1" if TLS else "")
LOGIN_URL = "sign-in"
LOGIN_REDIRECT_URL = "/"
# Wherever a password is set. ASVS 5.0 6.2 asks for 8 characters at least; 12 because there is no
# second factor.
AUTH_PASSWORD_VALIDATORS = [
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 12},
    },
    *(
        {"NAME": f"django.contrib.auth.password_validation.{name}"}
        for name in (
            "UserAttributeSimilarityValidator",
            "CommonPasswordValidator",
            "NumericPasswordValidator",
        )
    ),
    {"NAME": "fleet.access.roles.GuessablePasswordValidator"},
]
SESSION_COOKIE_NAME = "trnwatch_session"
SESSION_COOKIE_AGE = 7 * 24 * 3600
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_NAME = "trnwatch_csrf"
CSRF_FAILURE_VIEW = "fleet.pages.errors.csrf_failure"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = TLS
# Monitoring from the same network uses http: it is not redirected.
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$", r"^metrics(/|$)", r"^sd/"]
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if TLS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = TLS
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'none'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "connect-src": ["'self'"],
        "img-src": ["'self'", "data:"],
        "font-src": ["'self'"],
        # The previews of notifications.
        "frame-src": ["'self'"],
        "manifest-src": ["'self'"],
        "form-action": ["'self'"],
        "base-uri": ["'self'"],
        "frame-ancestors": ["'none'"],
    }
}

# Limits of ingest: bytes of one body as sent and unpacked; by token, requests a minute, and CPU
# seconds a minute in each web process. A process computes with one core at a time: 45 s leave a
# quarter of its minute for pages. Two serve, so a token may take 90 s in all: on one core they
# would leave nothing, and there it is half as much.
INGEST_MAX_BODY_BYTES = 10_000_000
INGEST_MAX_UNPACKED_BYTES = 16_000_000
INGEST_REQUESTS_PER_MINUTE = ENV.whole_number("TRNWATCH_INGEST_PER_MINUTE", 60_000)
INGEST_CPU_S_PER_MINUTE = ENV.whole_number("TRNWATCH_INGEST_CPU_PER_MINUTE", 45)
API_REQUESTS_PER_MINUTE = ENV.whole_number("TRNWATCH_API_PER_MINUTE", 3_000)
DATA_UPLOAD_MAX_MEMORY_SIZE = 1_000_000
# Graphs of models, and what probes printed, are the large things that people upload.
SUPPORT_MAX_BODY_BYTES = 10_000_000
DATA_UPLOAD_MAX_NUMBER_FILES = 1_000

# Static files: our own, django-htmx's, and what npm installed by lock file. They are collected
# under hashed names, and compressed (docs/decisions/0026). With TRNWATCH_DEBUG, and where nothing
# was collected, they are served from the source folders; with TRNWATCH_DEBUG they are read again
# for each request.
STATIC_URL = "static/"
STATIC_ROOT = DATA_DIR / "static"
with private_files.usable(DATA_DIR):
    STATIC_ROOT.mkdir(exist_ok=True)
STATICFILES_DIRS = [
    (f"vendor/{package}/dist", ROOT / "node_modules" / package / "dist")
    for package in ("idiomorph", "uplot")
    if (ROOT / "node_modules" / package).is_dir()
]
STATICFILES_FINDERS = ["fleet.ops.static_files.PackageFinder", "fleet.ops.static_files.AppFinder"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "fleet.ops.static_files.HashedStorage"},
}
WHITENOISE_AUTOREFRESH = DEBUG
WHITENOISE_USE_FINDERS = DEBUG or not (STATIC_ROOT / "staticfiles.json").exists()
WHITENOISE_KEEP_ONLY_HASHED_FILES = True
WHITENOISE_MIMETYPES = {".webmanifest": "application/manifest+json"}

# Stores
DATABASES: dict[str, Any] = {
    "default": (
        dj_database_url.parse(url, conn_max_age=60)
        if (url := ENV.text("DATABASE_URL"))
        # Not as a URL: a path may hold a space, a "%", a "#" or a "?".
        else {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": DATA_DIR / "trnwatch.sqlite3",
            "CONN_MAX_AGE": 60,
        }
    )
}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }
else:
    # Either end gives up a connection whose other end has not answered for 10 s, so that the rows
    # of a machine that is cut off are unlocked well before `monitoring_blind` fires (60 s). By
    # default it takes two hours. An option in the address takes precedence.
    _alive = {"keepalives_idle": 5, "keepalives_interval": 1, "keepalives_count": 5}
    _server = {f"tcp_{name}": value for name, value in _alive.items()}
    DATABASES["default"]["OPTIONS"] = {
        **_alive,
        "tcp_user_timeout": 10_000,
        "connect_timeout": 10,
        "options": " ".join(
            f"-c {name}={value}" for name, value in {**_server, "tcp_user_timeout": 10_000}.items()
        ),
        **DATABASES["default"].get("OPTIONS", {}),
    }
# `manage.py up` writes the address of its own Redis here. Whether that keeps its file in the data
# folder, whose disk /readyz then looks at:
_redis_file = DATA_DIR / "redis" / "url"
OWN_REDIS = not ENV.text("REDIS_URL") and _redis_file.exists()
# Samples are hashed over all of them; everything else is in the first, as with a single one.
try:
    REDIS_URL, *REDIS_OTHERS = store_urls(
        ENV.text("REDIS_URL")
        or (_redis_file.read_text() if OWN_REDIS else "redis://127.0.0.1:6379/0")
    )
except ValueError as error:
    raise ImproperlyConfigured(f"REDIS_URL {error}.") from error
HOT_KEEP_S = 15 * 60
DURABLE_KEEP_DAYS = ENV.whole_number("TRNWATCH_KEEP_DAYS", 30)
# Nodes and runs without reports for so long are retired; 0: never.
RETIRE_AFTER_DAYS = ENV.whole_number("TRNWATCH_RETIRE_AFTER_DAYS", 30)

# The long-term store, any that supports PromQL: its address before /api/v1/query_range, and who we
# are there.
LONG_TERM_READ_URL = ENV.text("LONG_TERM_READ_URL")
LONG_TERM_TOKEN_FILE = ENV.text("LONG_TERM_TOKEN_FILE")
# What earlier releases read, and what to do instead: named at start where it is still given.
_AGENT = "let Prometheus, vmagent or Alloy scrape and write (docs/long-term.md), and unset it"
WITHOUT_EFFECT = ENV.without_effect(
    dict.fromkeys(("LONG_TERM_WRITE_URL", "LONG_TERM_EVERY_S", "LONG_TERM_OUR_NAMES_ONLY"), _AGENT)
)

# Notifications: where links in them lead, which private places they may go to (networks and
# names), the mail server, and who is to worry when watching stops.
BASE_URL = ENV.text("TRNWATCH_BASE_URL", "http://127.0.0.1:8000").rstrip("/")
NOTIFY_ALLOW = ENV.names("TRNWATCH_NOTIFY_ALLOW", "127.0.0.0/8,::1" if DEMO else "")
SMTP_URL = ENV.text("TRNWATCH_SMTP_URL")
DEFAULT_FROM_EMAIL = ENV.text("TRNWATCH_MAIL_FROM", "trnwatch@localhost")
HEARTBEAT_URL = ENV.text("TRNWATCH_HEARTBEAT_URL")
HEARTBEAT_EVERY_S = ENV.whole_number("TRNWATCH_HEARTBEAT_EVERY_S", 60)

# Log warnings and errors to stderr.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"brief": {"()": "fleet.ops.outages.BriefOutages"}},
    "formatters": {
        "plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"},
        "line": {"format": "%(message)s"},
    },
    "handlers": {
        "audit": {"class": "logging.StreamHandler", "formatter": "line"},
        "stderr": {"class": "logging.StreamHandler", "formatter": "plain", "filters": ["brief"]},
    },
    "loggers": {"trnwatch.audit": {"handlers": ["audit"], "level": "INFO", "propagate": False}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
}

# Celery
CELERY_BROKER_URL = REDIS_URL
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_TRANSPORT_OPTIONS = {"socket_keepalive": True, "health_check_interval": 5}
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
# So many tasks evaluate the runs, each always the same ones (fleet/alerts/watchers.py).
WATCHERS = ENV.whole_number("TRNWATCH_WATCHERS", 2, least=1, most=64)
# What must come each second waits behind nothing else: a worker takes all of these queues, or
# those that `--queues` names (fleet/ops/services.py).
CELERY_TASK_QUEUES: dict[str, Any] = {"ticks": {}, "watch": {}, "celery": {}}
CELERY_TASK_ROUTES = {
    "telemetry.tasks.start_tick": {"queue": "ticks"},
    "telemetry.tasks.simulate_shards": {"queue": "ticks"},
    "fleet.tasks.assemble_scrapes": {"queue": "ticks"},
    "fleet.tasks.watch_fleet": {"queue": "watch"},
}
# Each worker also has a queue of its own: one of them evaluates the fleet, see `fleet.tasks`.
CELERY_WORKER_DIRECT = True
CELERY_WORKER_CONSUMER = "fleet.celery:Consumer"
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
# By then the second that began is played and stored (31,250 nodes in 0.5 s), and can be evaluated.
WATCHED_AFTER_S = 0.5
# Seconds between the calls of each task. The times of the last calls are kept in memory only: a
# file would stop beat on a full disk. So rare tasks also run at each start.
CELERY_BEAT_SCHEDULER = "fleet.celery:Scheduler"
CELERY_BEAT_SCHEDULE = {
    "start-tick": {"task": "telemetry.tasks.start_tick", "schedule": EachSecond()},
    **{
        f"watch-fleet-{i}": {
            "task": "fleet.tasks.watch_fleet",
            "schedule": EachSecond(WATCHED_AFTER_S),
            "args": (i,),
        }
        for i in range(WATCHERS)
    },
    "assemble-scrapes": {"task": "fleet.tasks.assemble_scrapes", "schedule": 1.0},
    "store-compiles": {"task": "fleet.tasks.store_compiles", "schedule": 5.0},
    "roll-up": {"task": "telemetry.tasks.roll_up", "schedule": 60.0},
    "merge-old-hours": {"task": "telemetry.tasks.merge_old_hours", "schedule": 300.0},
    "copy-clocks": {"task": "fleet.tasks.copy_clocks", "schedule": 60.0},
    "freeze-evidence": {"task": "fleet.tasks.freeze_evidence", "schedule": 20.0},
    "count-durations": {"task": "fleet.tasks.count_durations", "schedule": 60.0},
    "update-costs": {"task": "fleet.tasks.keep_money", "schedule": 60.0},
    "compare-similar-runs": {"task": "fleet.tasks.compare_similar_runs", "schedule": 60.0},
    "update-trials": {"task": "fleet.tasks.update_trials", "schedule": 60.0},
    "advance-preflights": {"task": "fleet.tasks.advance_preflights", "schedule": 1.0},
    "check-preflights": {"task": "fleet.tasks.look_at_preflights", "schedule": 15.0},
    "observe-runs": {"task": "fleet.tasks.observe_runs", "schedule": 60.0},
    "hand-over-plans": {"task": "fleet.tasks.hand_over_plans", "schedule": 30.0},
    "retire-quiet": {
        "task": "fleet.tasks.retire_quiet_rows",
        "schedule": 3600.0,
        "last_run_at": datetime.fromtimestamp(0, UTC),
    },
    "forget": {
        "task": "telemetry.tasks.forget",
        "schedule": 3600.0,
        "last_run_at": datetime.fromtimestamp(0, UTC),
    },
}
