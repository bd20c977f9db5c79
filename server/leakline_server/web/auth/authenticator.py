"""Who asks: the token or the session of a request, looked up once and then remembered for a few seconds.

So the database is asked every few seconds for each token and not for each batch, and a token that was revoked through
another server on the same database lets nobody in any more after these seconds; through this one, at once.

What is wrong is remembered apart, so that it pushes nothing good out. After many failures of an address what was never
made here is refused, and the rest is looked up a few at a time: whoever is good gets in. The failures are counted
here and not by a library, for the bound: attempts from ever new addresses must not fill the memory.
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
    """Of each address: when it may try again is when its failures lie far enough back. From any thread."""

    def __init__(
        self,
        most: int,
        within_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._within, self._clock = most, within_seconds, clock
        self._lock = threading.Lock()
        # Address -> (when its first failure was, how many there were since).
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
        """What was added before it was known is no failure."""
        key = _key(host)
        with self._lock:
            since, count = self._found.pop(key, (0.0, 0))
            if count > 1:
                self._found[key] = since, count - 1

    def may_try(self, host: str) -> None:
        """Raises TooBusy, which says when."""
        wait = self.wait_seconds(host)
        if wait:
            raise TooBusy(
                "too_many_failures",
                f"too many wrong tokens or passwords came from this address; try again in {wait} seconds",
                retry_after_seconds=wait,
            )

    def wait_seconds(self, host: str) -> int:
        """0: it may try."""
        with self._lock:
            since, count = self._found.get(_key(host), (0.0, 0))
        if count < self._most:
            return 0
        return max(0, math.ceil(since + self._within - self._clock()))


def _key(host: str) -> str:
    """Whoever has one address of IPv6 has the 2^64 next to it as well."""
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
        """Raises TooBusy where as many wait as may."""
        if self._waiting >= self._most_waiting:
            raise TooBusy(
                "too_busy",
                "too many are asked who they are at this moment; try again in a second",
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


# How long a revoked token may still be let in by another server.
REMEMBERED_SECONDS: Final = 3.0
# Meanwhile a look at the database is over.
LOOK_SECONDS: Final = 1.0
MAX_REMEMBERED: Final = 10_000
# Tokens and sessions that an address shows for the first time; nobody guesses one, but each costs a look.
MAX_WRONG_TOKENS: Final = 30
WRONG_TOKENS_SECONDS: Final = 60.0
# At a time, of addresses that have failed so often.
MAX_LOOKS: Final = 4
MAX_LOOKS_WAITING: Final = 64
MAX_WRONG_PASSWORDS: Final = 10
WRONG_PASSWORDS_SECONDS: Final = 300.0
# Each takes 64 MiB.
MAX_HASHING: Final = 2
MAX_HASHING_WAITING: Final = 8

Headers = Iterable[tuple[bytes, bytes]]
Kind = Literal["token", "session"]

log = logging.getLogger("leakline")


@dataclass(frozen=True, slots=True)
class Caller:
    """``project`` is the only one an ingest token adds to, ``run`` the only one a link opens; ``until`` in Unix
    seconds.
    """

    scope: Scope
    project: str | None = None
    browser: bool = False
    signed_in: bool = False
    until: float = float("inf")
    run: str | None = None


# Where nobody is asked who they are: everybody may everything.
ANYBODY: Final = Caller("admin")
# Of the request that is being answered.
calling: Final[ContextVar[Caller]] = ContextVar("leakline_caller", default=ANYBODY)


@dataclass(frozen=True, slots=True)
class _Shown:
    """What a request shows; its secret is kept nowhere. ``could_be``: it has the form of what is made here."""

    kind: Kind
    digest: str
    could_be: bool


@dataclass(slots=True)
class _Known:
    """What a look said, for as long as it is not asked again; None: it has to be."""

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
        # Behind https, or said to be: then the cookie goes nowhere else.
        self._secure = (config.public_url or "").startswith("https://")
        self._engine, self._clock = engine, clock
        self._lock = threading.Lock()
        self._known: OrderedDict[_Shown, _Known] = OrderedDict()
        self._wrong: OrderedDict[_Shown, _Known] = OrderedDict()
        # How often something was forgotten: a look that began before has seen what holds no more.
        self._forgotten = 0
        # Whether the last use of a token could not be written, which is in the log then.
        self._notes_no_use = False
        self.failures = Failures(MAX_WRONG_TOKENS, WRONG_TOKENS_SECONDS)
        self._looks = _ConcurrencyLimiter(MAX_LOOKS, MAX_LOOKS_WAITING)
        self.sign_ins = Failures(MAX_WRONG_PASSWORDS, WRONG_PASSWORDS_SECONDS)
        self.hashing = _ConcurrencyLimiter(MAX_HASHING, MAX_HASHING_WAITING)

    def is_secure(self, scheme: str) -> bool:
        return self._secure or scheme == "https"

    def forget(self) -> None:
        """Something was revoked or has ended: the next request of each is looked up again."""
        with self._lock:
            self._forgotten += 1
            for entry in self._known.values():
                entry.found = None

    async def of(self, headers: Headers, scheme: str, host: str) -> Caller:
        """``host``: the address it comes from. Raises Unauthorized, TooBusy after many failures, and Unavailable."""
        all_shown = list(_shown(headers, self.is_secure(scheme)))
        if not all_shown:
            raise Unauthorized(
                "token_missing",
                "this server asks who you are: sign in on its pages, or send a token (LEAKLINE_TOKEN; "
                "leakline token create makes one)",
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
        # It is remembered, and would grow by where it was raised before.
        raise refusals[0].with_traceback(None)

    async def _stranger(self, shown: _Shown, host: str, now: float) -> Caller | Unauthorized:
        """Who was not known a moment ago. Raises TooBusy where its address has failed often, and this fails too."""
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
            # One bad token of many trainings is one failure, however often it is shown.
            if entry is None:
                self.failures.may_try(host)
                self.failures.add(host)
            self._remember(shown, found, now)
        return found

    async def _again(self, shown: _Shown, entry: _Known, now: float) -> Caller | Unauthorized:
        # One request looks it up; those that come meanwhile go by what was known.
        entry.until = now + LOOK_SECONDS
        found = await run_in_threadpool(self._look_up, shown)
        if isinstance(found, Unauthorized):
            self._remember(shown, found, now)
        return found

    def _look_up(self, shown: _Shown) -> Caller | Unauthorized:
        """What is good is remembered, unless something was forgotten meanwhile: it may be that."""
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
                "the database does not answer; try again later",
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
                # A full disk keeps nobody from reading.
                self._tell_no_use(error)
        return found

    def _tell_no_use(self, error: Exception) -> None:
        """Once: every look of every token comes upon it again, and the log may be on the same disk."""
        if disk_space.is_logged(self._engine, error):
            return
        with self._lock:
            was_noted, self._notes_no_use = self._notes_no_use, True
        if not was_noted:
            log.warning("when tokens were used last is not written: %s", without_content(error))

    def _tell_use_again(self) -> None:
        with self._lock:
            was_noted, self._notes_no_use = self._notes_no_use, False
        if was_noted:
            log.warning("when tokens were used last is written again")


def caller_of(token: Token | None, now: float) -> Caller | Unauthorized:
    """Who shows this token, or why it lets nobody in."""
    if token is None:
        return Unauthorized(
            "token_unknown", "this server does not know this token; leakline token create makes one"
        )
    state = token.state_at(now)
    if state != "active":
        return Unauthorized(f"token_{state}", f"the token {token.prefix}… is {state}; make another")
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
    """With the prefix, no page of a sister domain can set one."""
    return "__Host-leakline" if secure else "leakline_session"


def session_digest(headers: Headers, secure: bool) -> str | None:
    """Of the session that a request shows, whether there is one or not."""
    found = _session(headers, secure)
    return None if found is None else digest_of(found)


def link_cookie_name(secure: bool) -> str:
    return "__Secure-leakline_link" if secure else "leakline_link"


def _shown(headers: Headers, secure: bool) -> Iterator[_Shown]:
    """A token; or else a session, and after it a link to a run, for whom a session that is over lets in no more."""
    for name, value in headers:
        if name == b"authorization":
            kind, _, token = value.partition(b" ")
            # Another kind is for what stands in front of this server.
            text = token.strip()[:MAX_TOKEN_CHARACTERS].decode("latin-1")
            if kind.lower() == b"bearer" and text:
                yield _Shown("token", digest_of(text), could_be_token(text))
                return
    session = _session(headers, secure)
    if session is not None:
        yield _Shown("session", digest_of(session), could_be_session(session))
    link = _cookie(headers, link_cookie_name(secure))
    # No other token is one of a cookie: what a browser sends by itself changes nothing.
    if link is not None and link.startswith(f"{PREFIX}_share_"):
        yield _Shown("token", digest_of(link), could_be_token(link))


def _session(headers: Headers, secure: bool) -> str | None:
    return _cookie(headers, cookie_name(secure))


def _cookie(headers: Headers, wanted: str) -> str | None:
    """By hand: the standard library's reader gives all up for one cookie of another program that it cannot read."""
    for header, value in headers:
        if header == b"cookie":
            for pair in value.decode("latin-1").split(";"):
                name, _, text = pair.partition("=")
                if name.strip() == wanted and text.strip():
                    return text.strip()[:MAX_TOKEN_CHARACTERS]
    return None
