"""Serving: one process, bound before anything is said, ended by Ctrl-C within two seconds.

uvicorn by itself waits for open streams for ever, or cancels them with a traceback. Here the signal first tells the
streams to end, so that nothing is left to wait for.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Final

import uvicorn
from fastapi import FastAPI

from leakline.errors import BadArgument, LeaklineError

from .app import create_app
from .config import Config, is_loopback
from .store.engine import DATABASE_ERRORS, BadDatabaseUrl
from .store.migrate import NewerDatabase
from .store.rules import TooManyRules
from .store.serving import AlreadyServed, alone_on
from .web.services import Services

BACKLOG: Final = 1024
# A backstop: nothing should need it.
GRACEFUL_SHUTDOWN_SECONDS: Final = 1
SWITCH_SECONDS: Final = 0.001


class CannotServe(LeaklineError):
    """The server cannot start; one line."""


def serve(config: Config, started: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. ``started`` gets the address once requests are answered."""
    refuse_beyond_loopback(config)
    # The analysis computes on a thread of its own, and a batch changes threads a few times until it is answered.
    sys.setswitchinterval(SWITCH_SECONDS)
    listening = _bind(config)
    config = replace(config, port=listening.getsockname()[1])
    with contextlib.ExitStack() as held:
        _serve(_open(config, held), listening, started)


def _open(config: Config, held: contextlib.ExitStack) -> FastAPI:
    """The application on its database, which stays ours until ``held`` ends."""
    try:
        held.enter_context(alone_on(config.database_url))
        return create_app(config)
    except (AlreadyServed, BadDatabaseUrl, NewerDatabase, TooManyRules) as error:
        raise CannotServe(str(error)) from error
    except (*DATABASE_ERRORS, OSError) as error:
        reason = str(getattr(error, "orig", error)).strip().splitlines()[0]
        raise CannotServe(f"cannot open the database: {reason}") from error


def _serve(app: FastAPI, listening: socket.socket, started: Callable[[str], None]) -> None:
    settings = uvicorn.Config(
        app,
        # Explicitly one: uvicorn takes the number from the environment. Several servers are several `leakline serve`.
        workers=1,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_SECONDS,
        ws="none",
        server_header=False,
    )
    _Server(settings, app.state.services, started).run(sockets=[listening])


class _Server(uvicorn.Server):
    def __init__(
        self, settings: uvicorn.Config, services: Services, started: Callable[[str], None]
    ) -> None:
        super().__init__(settings)
        self._services, self._when_started = services, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._when_started(self._services.config.address)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._services.live.close()
        super().handle_exit(sig, frame)


def refuse_beyond_loopback(config: Config) -> None:
    """Without a login, whoever reaches the port reads everything."""
    if config.insecure or is_loopback(config.host):
        return
    raise BadArgument(
        "host",
        config.host,
        "listens beyond this machine, and there is no login yet; use 127.0.0.1 with a tunnel, or set "
        "LEAKLINE_INSECURE=1 behind something that has one",
    )


def _bind(config: Config) -> socket.socket:
    """Bound before the database is opened: a second server on the port must not migrate anything."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        if os.name != "nt":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        why = error.strerror or str(error)
        raise CannotServe(
            f"cannot listen on {config.host}:{config.port} ({why}); choose another with --port"
        ) from error
    return listening
