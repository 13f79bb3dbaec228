"""`manage.py up`: run all of trnwatch until Ctrl-C."""

import asyncio
import os
import socket
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from django.conf import settings
from django.contrib.sessions.models import Session
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connection
from redis.exceptions import RedisError

from fleet.access.roles import DEMO_ADMIN, ensure_demo_admin
from fleet.ops import outages, services, sockets, static_files
from fleet.ops.releases import OtherReleaseError
from fleet.ops.services import Services, StartError
from fleet.ops.supervisor import end_leftovers
from fleet.version import VERSION

BAD_INPUT = 2


class Command(BaseCommand):
    help = "Run everything until Ctrl-C. PORT and BIND say where (8000, 127.0.0.1)."
    requires_system_checks = ()

    def handle(self, **_: object) -> None:
        """Take the lock and the port, prepare, then run until stopped."""
        folder: Path = settings.DATA_DIR
        try:
            services.check_disk_space(folder)
            with sockets.Lock(folder / "up.lock") as lock, self._listen() as listener:
                lock.note(self._address(listener))
                self._say_what_is_found(folder)
                # The programs' settings depend on whether static files are there.
                static_files.collect_if_needed(settings.STATIC_ROOT)
                sockets.raise_file_limit()
                # By default a demo, under the host names of this machine.
                defaults = {
                    "TRNWATCH_DEMO": "1",
                    "TRNWATCH_BASE_URL": self._address(listener),
                    "TRNWATCH_ALLOWED_HOSTS": ",".join(
                        sockets.host_names(listener.getsockname()[0])
                    ),
                }
                env = defaults | os.environ
                running = Services(folder, root=settings.ROOT, env=env, say=self._say)
                asyncio.run(
                    running.run(
                        listener,
                        prepare=self._prepare,
                        on_ready=lambda: self._print_welcome(listener),
                    )
                )
        except sockets.AlreadyRunningError as holder:
            msg = f"trnwatch is already running here, at {holder}."
            raise CommandError(msg, returncode=BAD_INPUT) from holder
        except (sockets.SocketError, OtherReleaseError) as error:
            raise CommandError(str(error), returncode=BAD_INPUT) from error
        except DatabaseError as error:
            if not outages.is_outage(error):
                raise
            raise CommandError(outages.database_advice(error), returncode=BAD_INPUT) from error
        except RedisError as error:
            msg = f"Redis does not answer; see REDIS_URL. It says: {error}"
            raise CommandError(msg, returncode=BAD_INPUT) from error
        except services.DiskFullError as error:
            raise CommandError(str(error)) from error
        except (StartError, TimeoutError) as error:
            reason = str(error) or "The first page did not load in time."
            raise CommandError(f"{reason} See {folder / 'log'}.") from error
        except OSError as error:
            if not outages.is_disk_error(error):
                raise
            raise CommandError(outages.disk_advice(error, folder)) from error

    def _say_what_is_found(self, folder: Path) -> None:
        # Other users of this machine could read these until now.
        restricted = settings.PRIVATE_FILES
        if n_files := len(restricted.paths):
            self._say(f"Fixed permissions in {folder}: others could read {n_files} of its paths.")
        if restricted.refused:
            self._say(
                f"{restricted.refused[0]} belongs to another user: make it readable for "
                "trnwatch alone."
            )
        if n_left := end_leftovers(folder):
            self._say(f"Ended {n_left} processes that an earlier `up` had left.")
        for sentence in settings.WITHOUT_EFFECT:
            self._say(sentence)

    def _listen(self) -> socket.socket:
        chosen_port = os.environ.get("PORT")
        bind = os.environ.get("BIND") or "127.0.0.1"
        port = sockets.port_from(chosen_port) if chosen_port else 8000
        listener = sockets.open_listener(bind, port, insist=bool(chosen_port))
        if (chosen := listener.getsockname()[1]) != port:
            self._say(f"Port {port} is in use; using {chosen}. Set PORT to choose another.")
        return listener

    def _prepare(self) -> None:
        """Bring the database up to date; no program runs yet."""
        began_s = time.monotonic()
        services.check_database()
        if n_migrations := services.migrate_if_needed():
            took_s = time.monotonic() - began_s
            self._say(f"The database is up to date: {n_migrations} migrations, {took_s:.1f} s.")
        # If other users could read the session keys in the database, sign all users out.
        if (
            settings.PRIVATE_FILES.was_exposed("trnwatch.sqlite3")
            and Session.objects.all().delete()[0]
        ):
            self._say("Other users could read the database: all users must sign in again.")
        connection.close()

    def _print_welcome(self, listener: socket.socket) -> None:
        password = ensure_demo_admin()
        connection.close()
        how = f"password {password} (shown only once)" if password else "with its password"
        self._print(
            f"\n  trnwatch {VERSION} is live at  {self._address(listener)}\n"
            f"  Sign in as              {DEMO_ADMIN}, {how}\n"
            "  Another password        .venv/bin/python manage.py changepassword admin\n"
            f"  Logs are in             {settings.DATA_DIR / 'log'}\n"
            "  Ctrl-C stops it.\n"
        )

    def _address(self, listener: socket.socket) -> str:
        host, port = listener.getsockname()[:2]
        return sockets.address(host, port)

    def _say(self, text: str) -> None:
        now = datetime.now(UTC).astimezone()
        self._print(f"{now:%H:%M:%S}  {text}")

    def _print(self, text: str) -> None:
        """Print at once; a closed pipe or a full disk is ignored."""
        with suppress(OSError):
            self.stdout.write(text)
            self.stdout.flush()
