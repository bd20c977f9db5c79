"""Lookup of a request's token or session; the result is cached for a few seconds.

The database is therefore queried once every few seconds per token rather than for every batch. A token
revoked on this server is rejected immediately; a token revoked on another server that shares the
database may be accepted until the cached result expires.

Rejected tokens are cached separately, so that they cannot evict valid ones. After many failures
from an address, strings that cannot be tokens of this server are rejected without a lookup. All
other strings are looked up a few at a time, so valid tokens still work. Failures are counted here
rather than by a library, so that requests from ever-changing addresses cannot exhaust memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Literal, cast

from starlette.concurrency import run_in_threadpool

from ...config import Config
from ...errors import TooBusy, Unauthorized, Unavailable
from ...security.credentials import (
    MAX_TOKEN_CHARACTERS,
    PREFIX,
    Scope,
    could_be_session,
    could_be_token,
    digest_of,
)
from ...store import access
from ...store.access import Token
from ...store.engine import DATABASE_ERRORS, Engine, without_content
from ...store.maintenance import disk_space, quarantine

MAX_ADDRESSES: Final = 10_000


class Failures:
    """A thread-safe rate limiter that counts failed attempts by address."""

    def __init__(
        self,
        most: int,
        within_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._within, self._clock = most, within_seconds, clock
        self._lock = threading.Lock()
        # Address -> (time of the first failure, number of failures).
        self._found: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def add(self, host: str) -> None:
        key, now = _key(host), self._clock()
        with self._lock:
            since, count = self._found.pop(key, (now, 0))
            if now - since >= self._within:
                since, count = now, 0
            self._found[key] = since, count + 1
            if len(self._found) > MAX_ADDRESSES:
                self._found.popitem(last=False)

    def take_back(self, host: str) -> None:
        """Undo one `add` for an attempt that was not a failure."""
        key = _key(host)
        with self._lock:
            since, count = self._found.pop(key, (0.0, 0))
            if count > 1:
                self._found[key] = since, count - 1

    def may_try(self, host: str) -> None:
        """Raise TooBusy, with the waiting time, if the address has had too many failures."""
        wait = self.wait_seconds(host)
        if wait:
            raise TooBusy(
                "too_many_failures",
                f"too many wrong tokens or passwords from this address; retry in {wait} seconds",
                retry_after_seconds=wait,
            )

    def wait_seconds(self, host: str) -> int:
        """Return the seconds until the next attempt is allowed, or 0 if no wait is needed."""
        with self._lock:
            since, count = self._found.get(_key(host), (0.0, 0))
        if count < self._most:
            return 0
        return max(0, math.ceil(since + self._within - self._clock()))


def _key(host: str) -> str:
    """Return the key that groups failures by address.

    All IPv6 addresses in a /64 network share a key, because such a network has one owner.
    """
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host
    if found.version == 6 and not found.ipv4_mapped:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


class _ConcurrencyLimiter:
    def __init__(self, at_once: int, most_waiting: int) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._waiting, self._most_waiting = 0, most_waiting

    @contextlib.asynccontextmanager
    async def through(self) -> AsyncIterator[None]:
        """Hold a slot inside the context. Raises TooBusy if too many requests are waiting."""
        if self._waiting >= self._most_waiting:
            raise TooBusy(
                "too_busy",
                "too many concurrent attempts to authenticate; retry in a second",
                retry_after_seconds=1,
            )
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._free.release()


# How long a token revoked on one server may still be accepted by another server.
REMEMBERED_SECONDS: Final = 3.0
# How long the old result stays valid while one request repeats the lookup.
LOOK_SECONDS: Final = 1.0
MAX_REMEMBERED: Final = 10_000
# The limit on invalid tokens and sessions per address. Guessing a valid token is not feasible, but
# each attempt costs a lookup.
MAX_WRONG_TOKENS: Final = 30
WRONG_TOKENS_SECONDS: Final = 60.0
# Maximum number of concurrent lookups for addresses that have exceeded the limit above.
MAX_LOOKS: Final = 4
MAX_LOOKS_WAITING: Final = 64
MAX_WRONG_PASSWORDS: Final = 10
WRONG_PASSWORDS_SECONDS: Final = 300.0
# Computing a password hash takes 64 MiB of memory.
MAX_HASHING: Final = 2
MAX_HASHING_WAITING: Final = 8

Headers = Iterable[tuple[bytes, bytes]]
Kind = Literal["token", "session"]

log = logging.getLogger("leakline")


@dataclass(frozen=True, slots=True)
class Caller:
    """The principal of a request.

    ``project`` is the only project that an ingest token can add to, and ``run`` is the only run
    that a link can open. ``until`` is the expiry time in Unix seconds.
    """

    scope: Scope
    project: str | None = None
    browser: bool = False
    signed_in: bool = False
    until: float = float("inf")
    run: str | None = None


# With authentication off, everyone may do everything.
ANYBODY: Final = Caller("admin")
# The principal of the current request.
calling: Final[ContextVar[Caller]] = ContextVar("leakline_caller", default=ANYBODY)


@dataclass(frozen=True, slots=True)
class _Shown:
    """The credentials of a request, identified by a digest: the secret itself is not kept.

    ``could_be`` is True if the secret has the format of this server's tokens or sessions.
    """

    kind: Kind
    digest: str
    could_be: bool


@dataclass(slots=True)
class _Known:
    """The cached result of a lookup; ``found`` is None if the lookup must be repeated."""

    until: float
    found: Caller | Unauthorized | None

    def holds_at(self, now: float) -> Caller | Unauthorized | None:
        if now >= self.until or (isinstance(self.found, Caller) and now >= self.found.until):
            return None
        return self.found


class Callers:
    def __init__(
        self, engine: Engine, config: Config, clock: Callable[[], float] = time.time
    ) -> None:
        self.asked = config.asks_who_it_is
        # True if the public URL uses https; cookies are then only sent over https.
        self._secure = (config.public_url or "").startswith("https://")
        self._engine, self._clock = engine, clock
        self._lock = threading.Lock()
        self._known: OrderedDict[_Shown, _Known] = OrderedDict()
        self._wrong: OrderedDict[_Shown, _Known] = OrderedDict()
        # Incremented by `forget`: a lookup that began before `forget` was called may have an outdated result.
        self._forgotten = 0
        # True if the last use of a token could not be stored; the failure is logged only once.
        self._notes_no_use = False
        self.failures = Failures(MAX_WRONG_TOKENS, WRONG_TOKENS_SECONDS)
        self._looks = _ConcurrencyLimiter(MAX_LOOKS, MAX_LOOKS_WAITING)
        self.sign_ins = Failures(MAX_WRONG_PASSWORDS, WRONG_PASSWORDS_SECONDS)
        self.hashing = _ConcurrencyLimiter(MAX_HASHING, MAX_HASHING_WAITING)

    def is_secure(self, scheme: str) -> bool:
        return self._secure or scheme == "https"

    def forget(self) -> None:
        """Invalidate all cached results; call this after a token is revoked or a session ends."""
        with self._lock:
            self._forgotten += 1
            for entry in self._known.values():
                entry.found = None

    async def of(self, headers: Headers, scheme: str, host: str) -> Caller:
        """Return the principal of a request from address ``host``.

        Raises Unauthorized, TooBusy after many failures, and Unavailable if the database fails.
        """
        all_shown = list(_shown(headers, self.is_secure(scheme)))
        if not all_shown:
            raise Unauthorized(
                "token_missing",
                "this server requires authentication: sign in on its pages, or create a token with "
                "leakline token create and set LEAKLINE_TOKEN",
            )
        refusals = []
        for shown in all_shown:
            entry, now = self._known.get(shown), self._clock()
            if entry is None:
                found = await self._stranger(shown, host, now)
            else:
                found = entry.holds_at(now) or await self._again(shown, entry, now)
            if isinstance(found, Caller):
                return found
            refusals.append(found)
        # The error is cached, and its traceback would grow each time it is raised.
        raise refusals[0].with_traceback(None)

    async def _stranger(self, shown: _Shown, host: str, now: float) -> Caller | Unauthorized:
        """Look up credentials that are not cached as valid.

        Raises TooBusy if the credentials are rejected and the address has had too many failures.
        """
        entry = self._wrong.get(shown)
        found = None if entry is None else entry.holds_at(now)
        if found is not None:
            return found
        if not shown.could_be:
            found = _unknown(shown.kind)
        elif self.failures.wait_seconds(host):
            async with self._looks.through():
                found = await run_in_threadpool(self._look_up, shown)
        else:
            found = await run_in_threadpool(self._look_up, shown)
        if isinstance(found, Unauthorized):
            # An invalid token counts as one failure, even if many training runs send it repeatedly.
            if entry is None:
                self.failures.may_try(host)
                self.failures.add(host)
            self._remember(shown, found, now)
        return found

    async def _again(self, shown: _Shown, entry: _Known, now: float) -> Caller | Unauthorized:
        # One request repeats the lookup; concurrent requests use the old result.
        entry.until = now + LOOK_SECONDS
        found = await run_in_threadpool(self._look_up, shown)
        if isinstance(found, Unauthorized):
            self._remember(shown, found, now)
        return found

    def _look_up(self, shown: _Shown) -> Caller | Unauthorized:
        """Look up credentials. A valid result is cached unless `forget` was called in the meantime."""
        now, forgotten = self._clock(), self._forgotten
        try:
            if shown.kind == "token":
                found = self._by_token(access.find_token(self._engine, shown.digest), now)
            else:
                found = _by_session(access.find_session(self._engine, shown.digest), now)
        except DATABASE_ERRORS as error:
            if not quarantine.after(self._engine, error):
                log.error("database: %s", without_content(error))
            raise Unavailable(
                "database_unavailable",
                "the database is not responding; try again later",
                retry_after_seconds=2,
            ) from error
        if isinstance(found, Caller):
            self._remember(shown, found, now, forgotten)
        return found

    def _remember(
        self, shown: _Shown, found: Caller | Unauthorized, now: float, forgotten: int | None = None
    ) -> None:
        those, others = self._known, self._wrong
        if isinstance(found, Unauthorized):
            those, others = others, those
        with self._lock:
            if forgotten not in (None, self._forgotten):
                return
            others.pop(shown, None)
            those.pop(shown, None)
            those[shown] = _Known(now + REMEMBERED_SECONDS, found)
            if len(those) > MAX_REMEMBERED:
                those.popitem(last=False)

    def _by_token(self, token: Token | None, now: float) -> Caller | Unauthorized:
        found = caller_of(token, now)
        if token is not None and isinstance(found, Caller):
            try:
                if access.note_use(self._engine, token, now):
                    self._tell_use_again()
            except DATABASE_ERRORS as error:
                # Reading must still work when the disk is full.
                self._tell_no_use(error)
        return found

    def _tell_no_use(self, error: Exception) -> None:
        """Log only the first failure: every lookup would repeat the message."""
        if disk_space.is_logged(self._engine, error):
            return
        with self._lock:
            was_noted, self._notes_no_use = self._notes_no_use, True
        if not was_noted:
            log.warning("cannot store when tokens were last used: %s", without_content(error))

    def _tell_use_again(self) -> None:
        with self._lock:
            was_noted, self._notes_no_use = self._notes_no_use, False
        if was_noted:
            log.warning("the last-used times of tokens are being stored again")


def caller_of(token: Token | None, now: float) -> Caller | Unauthorized:
    """Return the principal of a token, or the error that rejects the token."""
    if token is None:
        return Unauthorized(
            "token_unknown",
            "this server does not know this token; create a token with leakline token create",
        )
    state = token.state_at(now)
    if state != "active":
        return Unauthorized(
            f"token_{state}", f"the token {token.prefix}… is {state}; create a new token"
        )
    until = float("inf") if token.expires_at is None else token.expires_at
    return Caller(
        cast(Scope, token.scope), token.project, token.browser, until=until, run=token.run_id
    )


def _unknown(kind: Kind) -> Caller | Unauthorized:
    return caller_of(None, 0.0) if kind == "token" else _by_session(None, 0.0)


def _by_session(session: access.Session | None, now: float) -> Caller | Unauthorized:
    over = Unauthorized("session_over", "you are signed out; sign in again")
    if session is None or now >= session.expires_at:
        return over
    if session.token is None:
        return Caller("admin", signed_in=True, until=session.expires_at)
    found = caller_of(session.token, now)
    if isinstance(found, Unauthorized):
        return over
    until = min(found.until, session.expires_at)
    return Caller(found.scope, found.project, signed_in=True, until=until)


def cookie_name(secure: bool) -> str:
    """Return the session cookie's name.

    If ``secure``, it has the ``__Host-`` prefix, so that sibling domains cannot set the cookie.
    """
    return "__Host-leakline" if secure else "leakline_session"


def session_digest(headers: Headers, secure: bool) -> str | None:
    """Return the digest of a request's session id, or None without a session cookie."""
    found = _session(headers, secure)
    return None if found is None else digest_of(found)


def link_cookie_name(secure: bool) -> str:
    return "__Secure-leakline_link" if secure else "leakline_link"


def _shown(headers: Headers, secure: bool) -> Iterator[_Shown]:
    """Yield a request's bearer token or, without a bearer token, its session and its link token.

    The link token works even after the session has ended.
    """
    for name, value in headers:
        if name == b"authorization":
            kind, _, token = value.partition(b" ")
            # Other authentication schemes are meant for a proxy in front of this server.
            text = token.strip()[:MAX_TOKEN_CHARACTERS].decode("latin-1")
            if kind.lower() == b"bearer" and text:
                yield _Shown("token", digest_of(text), could_be_token(text))
                return
    session = _session(headers, secure)
    if session is not None:
        yield _Shown("session", digest_of(session), could_be_session(session))
    link = _cookie(headers, link_cookie_name(secure))
    # Other tokens are not accepted from cookies: credentials that browsers send automatically must
    # not allow changes.
    if link is not None and link.startswith(f"{PREFIX}_share_"):
        yield _Shown("token", digest_of(link), could_be_token(link))


def _session(headers: Headers, secure: bool) -> str | None:
    return _cookie(headers, cookie_name(secure))


def _cookie(headers: Headers, wanted: str) -> str | None:
    """Return the value of a cookie, or None if the request has no such cookie.

    The standard library's parser is not used: it returns nothing if any cookie is invalid.
    """
    for header, value in headers:
        if header == b"cookie":
            for pair in value.decode("latin-1").split(";"):
                name, _, text = pair.partition("=")
                if name.strip() == wanted and text.strip():
                    return text.strip()[:MAX_TOKEN_CHARACTERS]
    return None
