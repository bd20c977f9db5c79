"""Runs the server: one process that binds its port before anything else and ends within two seconds of Ctrl-C.

By default, uvicorn waits forever for open streams, or cancels them with a traceback. Here the signal handler ends the
streams first, so that there is nothing left to wait for.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import FrameType
from typing import Final

import uvicorn
from fastapi import FastAPI

from leakline.errors import BadArgument, LeaklineError

from . import logs
from .app import create_app
from .client_connections import Connection
from .config import Config, Network, is_loopback, misspelt
from .limits import MAX_CONNECTIONS
from .store import access
from .store.alerts.assertions import TooManyRules
from .store.engine import (
    DATABASE_ERRORS,
    BadDatabaseUrl,
    is_out_of_space,
    is_undecodable,
    may_answer_soon,
    open_engine,
    ping,
    without_content,
)
from .store.maintenance import disk_space
from .store.migrate import NewerDatabase
from .store.sqlite_file import AlreadyServed, alone_on
from .web.services import Services
from .workers.analysis_process import return_freed_memory

# The same value as in nginx. Most clients send every few seconds, and a new connection costs as much as a snapshot.
KEEP_ALIVE_SECONDS: Final = 75
# File descriptor limits to try until one is permitted: the usual soft limit is low, and each client keeps a connection
# open.
OPEN: Final = (65_536, 10_240)
# Descriptors reserved for the database, stream wake-ups, static files and the log.
KEPT_FILES: Final = 256
# A backstop for uvicorn's shutdown that should never be needed.
GRACEFUL_SHUTDOWN_SECONDS: Final = 1
# The waits for Postgres at startup and shutdown. Shutdown can be short because acknowledged data is already committed.
POSTGRES_SECONDS: Final = 30.0
POSTGRES_PAUSE_SECONDS: Final = 1.0
SILENT_END_SECONDS: Final = 5.0
LAST_WORD_SECONDS: Final = 0.5
SWITCH_SECONDS: Final = 0.001
# Operating system errors for a full disk and an exceeded quota.
FULL: Final = (errno.ENOSPC, errno.EDQUOT)
# With ten thousand runs, a million objects are cached. A full collection pauses all responses for a fifth of a second
# and is rarely worth it, because most garbage is young. Therefore it runs only once in 800,000 allocations, and only if
# long-lived objects have grown by a quarter, which bounds the garbage that survived young collections.
YOUNG_OBJECTS: Final = 2_000
YOUNG_PER_MIDDLE: Final = 20
MIDDLE_PER_ALL: Final = 20


log = logging.getLogger("leakline")


class CannotServe(LeaklineError):
    """Raised when the server cannot start; the message is one line."""


def serve(config: Config, started: Callable[[Config], None]) -> None:
    """Serve until SIGINT or SIGTERM. ``started`` is called with the actual port once the server answers requests."""
    logs.configure(config.log_format, config.log_level)
    refuse_without_a_login(config)
    for sentence in misspelt():
        log.warning(sentence)
    if config.advice_to_move is not None:
        log.warning(config.advice_to_move)
    if config.asks_nobody_of_the_public:
        log.warning(
            "LEAKLINE_PUBLIC_URL can be reached from other machines and authentication is off: set LEAKLINE_LOGIN=1, "
            "unless a proxy in front of the server authenticates users"
        )
    if config.takes_all_viewers_for_one:
        log.warning(
            "LEAKLINE_PUBLIC_URL is https, so a proxy is in front of this server, but it is not trusted: set "
            "LEAKLINE_TRUSTED_PROXIES to the proxy's address (such as 127.0.0.1); otherwise ten wrong passwords from "
            "one person block sign-in for everybody"
        )
    # Sealing keeps its own thread busy, and a batch switches threads several times before it is answered.
    sys.setswitchinterval(SWITCH_SECONDS)
    listening = _bind(config)
    config = replace(config, port=listening.getsockname()[1])
    with _ending_on_signal(), contextlib.ExitStack() as held:
        app = open_app(config, held)
        most = _allow_connections()
        return_freed_memory()
        _collect_rarely()
        _serve(app, listening, most, config.trusted_proxies, started)


@contextlib.contextmanager
def _ending_on_signal() -> Iterator[None]:
    """Exit cleanly on SIGTERM, so that resources are released.

    While requests are served, uvicorn handles the signal and raises it again when it has finished.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def open_app(config: Config, held: contextlib.ExitStack) -> FastAPI:
    """Create the application; the lock on its database is held until ``held`` closes."""
    _await_postgres(config.database_url)
    try:
        held.enter_context(alone_on(config.database_url))
        return create_app(config, looks_apart=True)
    except (AlreadyServed, BadDatabaseUrl, NewerDatabase, TooManyRules) as error:
        raise CannotServe(str(error)) from error
    except (*DATABASE_ERRORS, OSError) as error:
        raise CannotServe(_cannot_open(error)) from error


def _await_postgres(url: str) -> None:
    """Wait until Postgres answers, because Postgres may have been started at the same time as the server.

    Raises CannotServe with the last error. The code that opens the database reports other problems.
    """
    if disk_space.file_of(url) is not None:
        return
    try:
        engine = open_engine(url)
    except BadDatabaseUrl as error:
        raise CannotServe(str(error)) from error
    until, warned = time.monotonic() + POSTGRES_SECONDS, False
    try:
        while True:
            try:
                ping(engine)
                return
            except DATABASE_ERRORS as error:
                if not may_answer_soon(error) or time.monotonic() > until:
                    raise CannotServe(_cannot_open(error)) from error
                if not warned:
                    log.warning(
                        "%s is not responding; retrying for up to %.0f seconds",
                        " ".join(disk_space.called(engine)), POSTGRES_SECONDS,
                    )  # fmt: skip
                warned = True
                time.sleep(POSTGRES_PAUSE_SECONDS)
    finally:
        engine.dispose()


def _cannot_open(error: Exception) -> str:
    if is_out_of_space(error) or getattr(error, "errno", None) in FULL:
        return (
            "cannot open the database: the disk is full, and opening it needs space (32 KiB, more after an upgrade "
            "or with a new password); free disk space, then start the server again"
        )
    if is_undecodable(error):
        return "cannot open the database: some text stored in it is damaged; restore a backup"
    return f"cannot open the database: {without_content(error)}"


def _allow_connections() -> int:
    """Raise the limit of open files as far as permitted, and return the number of connections to accept."""
    try:
        import resource
    except ImportError:
        # Windows has no such limit.
        return MAX_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in OPEN:
        wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            break
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
            break
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, max(soft - KEPT_FILES, soft // 2))


def _collect_rarely() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_PER_MIDDLE, MIDDLE_PER_ALL)


def _serve(
    app: FastAPI,
    listening: socket.socket,
    most: int,
    proxies: Sequence[Network],
    started: Callable[[Config], None],
) -> None:
    settings = uvicorn.Config(
        app,
        http=Connection,
        limit_concurrency=most,
        # The number of workers is set explicitly because uvicorn otherwise reads it from the environment. To scale,
        # start `leakline serve` several times.
        workers=1,
        # `logs.py` handles uvicorn's log records as well.
        log_config=None,
        log_level="warning",
        access_log=False,
        # By default uvicorn trusts proxy headers from localhost and FORWARDED_ALLOW_IPS; we use only our own setting.
        proxy_headers=bool(proxies),
        forwarded_allow_ips=believed(proxies),
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_SECONDS,
        ws="none",
        server_header=False,
    )
    _Server(settings, app.state.services, started).run(sockets=[listening])


def believed(proxies: Sequence[Network]) -> list[str]:
    """Return the networks in uvicorn's format.

    IPv4 networks are also listed as mapped IPv6 networks, because dual-stack sockets report mapped addresses.
    """
    mapped = [f"::ffff:{n.network_address}/{96 + n.prefixlen}" for n in proxies if n.version == 4]
    return [*map(str, proxies), *mapped]


class _Server(uvicorn.Server):
    def __init__(
        self, settings: uvicorn.Config, services: Services, started: Callable[[Config], None]
    ) -> None:
        super().__init__(settings)
        self._services, self._when_started = services, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._when_started(self._services.config)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._services.live.close()
        if self._services.engine.dialect.name == "postgresql":
            _end_without_it(130 if sig == signal.SIGINT else 0)
        super().handle_exit(sig, frame)


def _end_without_it(status: int) -> None:
    """Exit the process if a normal shutdown hangs: a wait for an unresponsive Postgres cannot be interrupted."""

    def end() -> None:
        # Logging may block as well if standard error is a pipe that nobody reads.
        said = "the database is not responding; exiting without waiting for it"
        warning_thread = threading.Thread(target=log.warning, args=(said,), daemon=True)
        warning_thread.start()
        warning_thread.join(LAST_WORD_SECONDS)
        os._exit(status)

    timer = threading.Timer(SILENT_END_SECONDS, end)
    timer.daemon = True
    timer.start()


def refuse_without_a_login(config: Config) -> None:
    """Raise BadArgument if authentication is required but no credentials exist. The database is not changed."""
    if not config.asks_who_it_is or config.admin_password is not None or _can_sign_in(config):
        return
    place = disk_space.place_of(config.database_url)
    make = (
        "create a login in this database first (leakline password or leakline token create --scope admin, with the "
        "--database-url of the server; or LEAKLINE_ADMIN_PASSWORD)"
    )
    if is_loopback(config.host):
        said = f"requires sign-in, but no login exists in {place}: {make}"
        raise BadArgument("LEAKLINE_LOGIN", "1", said)
    raise BadArgument(
        "host",
        config.host,
        f"is reachable from other machines, but no login exists in {place}: {make}, use 127.0.0.1 with a tunnel, or "
        "set LEAKLINE_INSECURE=1 behind a proxy that authenticates users",
    )


def _can_sign_in(config: Config) -> bool:
    """Return True if the database contains a credential. Raises CannotServe."""
    if disk_space.missing_file(config.database_url) is not None:
        return False
    _await_postgres(config.database_url)
    try:
        engine = open_engine(config.database_url)
        try:
            return access.can_sign_in(engine, time.time())
        finally:
            engine.dispose()
    except BadDatabaseUrl as error:
        raise CannotServe(str(error)) from error
    except (*DATABASE_ERRORS, OSError) as error:
        if is_undecodable(error):
            # A damaged credential counts as a credential. Startup quarantines it, so nobody can sign in with it, but
            # sign-in is still required, so the server is not left open.
            return True
        raise CannotServe(_cannot_open(error)) from error


def _bind(config: Config) -> socket.socket:
    """Bind the socket before the database is opened: a second server on the port must not migrate the database."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        if os.name != "nt":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()
    except OSError as error:
        why = error.strerror or str(error)
        raise CannotServe(
            f"cannot listen on {config.host}:{config.port} ({why}); choose another port with --port"
        ) from error
    return listening
