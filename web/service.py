"""Composition root of the web process: builds all parts, runs and stops them together."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from astraflow.client.local_runs import LocalRuns
from astraflow.contract.errors import InvalidInput
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.config.toml import read_toml
from astraflow.runtime.http.server import listening, serving_http, url_of
from astraflow.runtime.locks import exclusive_lock
from astraflow.runtime.logs import get_logger
from web.accounts.accounts import open_accounts
from web.accounts.openid_provider import PROVIDER_PATH, OpenIdConfig, OpenIdProvider
from web.alerting.delivery import Deliverer
from web.alerting.engine import AlertEngine
from web.alerting.mail import MailConfig, MailSender
from web.alerting.rules import rules_of_file
from web.alerting.store import AlertStore
from web.app import ROUTES, create_app
from web.components.rendering import compile_templates
from web.database.db import open_database
from web.launcher.catalogue import Catalogue
from web.launcher.launcher import Launcher
from web.live.followed_run import FollowedRuns, followed_run
from web.live.machine_runs import MachineRuns
from web.process_settings import Settings
from web.requests.commands import ProcessCache
from web.requests.dependencies import ProcessParts
from web.security.audit_log import AuditLog
from web.security.path_prefix import check_path_prefix
from web.security.retention import Retention

log = get_logger()

PAGE_LOCK = "page.lock"
"""Lock file in the directory of the page."""

SHUTDOWN_TIMEOUT_S = 1
"""Time for requests in flight when the process stops, seconds; sockets are closed at once."""


async def serve(
    settings: Settings, *, stop: asyncio.Event, on_ready: Callable[[str], None], clock: Clock | None = None
) -> None:
    """Runs the web process until `stop` is set. on_ready: called with the login URL once it listens.

    Raises: InvalidInput for an unusable address or directory.
    """
    settings.check()
    check_path_prefix(settings.path_prefix, ROUTES)
    clock = clock or SystemClock()
    with listening(settings.host, settings.port) as listener:
        provider = _provider(settings, listener, clock)
        database = await asyncio.to_thread(open_database, settings.directory, settings.database)
        try:
            audit_log = AuditLog(database, clock=clock)
            await audit_log.record_interrupted()
            mail = _mail(settings)
            alerts = AlertStore(database, clock=clock, audit_log=audit_log, has_mail=mail is not None)
            engine = AlertEngine(alerts, clock=clock)
            if settings.alerts is not None:
                await alerts.replace_file_rules(rules_of_file(settings.alerts))
            local_runs = LocalRuns(settings.runs)
            async with followed_run(settings, database=database, clock=clock, alerts=engine) as first_run:
                followed = FollowedRuns(first_run, database=database, clock=clock, local=local_runs)
                parts = ProcessParts(
                    settings=settings,
                    clock=clock,
                    database=database,
                    audit_log=audit_log,
                    accounts=open_accounts(database, clock=clock, audit_log=audit_log, provider=provider),
                    retention=Retention(database, clock=clock, audit_log=audit_log),
                    catalogue=Catalogue(
                        clock=clock, folders=settings.recipes, join_host=settings.join_host, data=settings.data
                    ),
                    launcher=Launcher(local_runs, clock=clock),
                    cache=ProcessCache(),
                    followed=followed,
                    machine=MachineRuns(
                        local_runs,
                        database,
                        clock=clock,
                        is_followed=followed.is_followed,
                        includes_active=settings.is_read_only,
                    ),
                    alerts=alerts,
                    deliverer=Deliverer(database, clock=clock, address=_address(settings, listener), mail=mail),
                )
                try:
                    with _page_lock(settings.directory):
                        await _run(parts, engine, listener, stop, on_ready)
                finally:
                    await parts.catalogue.close()
        finally:
            database.close()


async def _run(
    parts: ProcessParts,
    engine: AlertEngine,
    listener: socket.socket,
    stop: asyncio.Event,
    on_ready: Callable[[str], None],
) -> None:
    async with asyncio.TaskGroup() as tasks:
        works = [parts.followed.run(), parts.machine.run(), parts.retention.run(), parts.audit_log.run()]
        if not parts.settings.is_read_only:
            works += [engine.run(), parts.deliverer.run()]
        background_tasks = [tasks.create_task(work) for work in works]
        async with serving_http(
            create_app(parts),
            listener,
            drain_s=SHUTDOWN_TIMEOUT_S,
            ws_max_size=1024,  # browsers send no messages
            ws="websockets-sansio",
            ws_per_message_deflate=False,
            ssl_certfile=parts.settings.tls_certificate,
            ssl_keyfile=parts.settings.tls_key,
        ):
            link = await parts.accounts.sessions.first_link()
            on_ready(f"{_address(parts.settings, listener)}/login?token={link}")
            await asyncio.to_thread(compile_templates)
            await stop.wait()
            log.info("web_stopping")
            parts.followed.close()
        for task in background_tasks:
            task.cancel()


@contextmanager
def _page_lock(directory: Path) -> Iterator[None]:
    """Holds the lock of the page's directory, which tells `astraflow ui` that the page runs."""
    refusal = InvalidInput(f"cannot lock {str(directory)!r}: another page serves it", code="web.directory_in_use")
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive_lock(directory / PAGE_LOCK, refusal=refusal))
        except InvalidInput:
            log.warning("directory_in_use", directory=str(directory))
        yield


def _address(settings: Settings, listener: socket.socket) -> str:
    if settings.behind_proxy:
        return settings.behind_proxy
    address = url_of(listener, next(iter(settings.names), settings.host))
    return address.replace("http://", "https://", 1) if settings.has_tls else address


def _mail(settings: Settings) -> MailSender | None:
    """Mail server of the settings; None without one. Raises: InvalidInput for an invalid file."""
    if settings.mail is None:
        return None
    config = MailConfig.parse(read_toml(settings.mail), where=str(settings.mail))
    return MailSender(config, password=settings.mail_password)


def _provider(settings: Settings, listener: socket.socket, clock: Clock) -> OpenIdProvider | None:
    """OpenID provider of the settings; None without one. Raises: InvalidInput for an invalid file."""
    if settings.provider is None:
        return None
    config = OpenIdConfig.parse(read_toml(settings.provider), where=str(settings.provider))
    redirect_uri = f"{_address(settings, listener)}{PROVIDER_PATH}"
    return OpenIdProvider(config, secret=settings.provider_secret, redirect_uri=redirect_uri, clock=clock)
