"""Checks whether a webhook address may be called. Resolves names, but is independent of HTTP and the database.

A webhook address comes from a person, so it could make the server call services that only the server can reach
(metadata services, databases, routers). Therefore a name is resolved once, *every* address of the name is checked, and
the connection is made to a checked address. Changing the name's addresses between the check and the call has no effect.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from threading import Thread
from typing import Final
from urllib.parse import SplitResult, urlsplit

from ...limits import MAX_WEBHOOK_LENGTH

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
# A function that returns a host name's current addresses, and raises OSError if the name has no addresses.
Resolver = Callable[[str], Sequence[str]]

ALLOW_SETTING: Final = "LEAKLINE_WEBHOOK_ALLOW"
RESOLVE_SECONDS: Final = 3.0

# The networks are listed explicitly, because Python's `is_private` changed between versions.
_REFUSED: Final[dict[str, tuple[str, ...]]] = {
    "this host": ("0.0.0.0/8", "::/128"),
    "loopback": ("127.0.0.0/8", "::1/128"),
    "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10"),
    "carrier-shared": ("100.64.0.0/10",),
    "link-local": ("169.254.0.0/16", "fe80::/10"),
    "protocol-assigned": ("192.0.0.0/24", "192.88.99.0/24", "2001::/23"),
    "documentation": ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20"),
    "benchmarking": ("198.18.0.0/15",),
    "multicast": ("224.0.0.0/4", "ff00::/8"),
    "reserved": ("240.0.0.0/4",),
    "discard": ("100::/64",),
    # A public address at which each Azure machine can read its own secrets.
    "metadata": ("168.63.129.16/32",),
    # Addresses in these networks contain an IPv4 address, to which a gateway would forward the call.
    "translated": ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16"),
    "segment-routing": ("5f00::/16",),
}  # fmt: skip
_REFUSED_NETWORKS: Final = [
    (ip_network(text), word) for word, texts in _REFUSED.items() for text in texts
]
_HOST = re.compile(
    r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*"
)
_BRACKETS = re.compile(r"\[[^\[\]]+\](:[0-9]*)?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.IGNORECASE)


class AddressRefused(ValueError):
    """Raised for an address that must not be called.

    The one-line message gives the reason and, if a setting can allow the address, names that setting.
    """


class AddressUnknown(Exception):
    """Raised when the name has no address at present, but may have an address later."""


@dataclass(frozen=True, slots=True)
class WebhookUrl:
    """The parts of a well-formed webhook address; where the address leads is not checked yet.

    ``target`` is the path and the query. Never log it, because it may contain a secret, as it does for chat services.
    """

    secure: bool
    host: str
    port: int
    target: str = field(repr=False)

    @property
    def origin(self) -> str:
        """Scheme, host and port, which may be displayed and logged."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == (443 if self.secure else 80)
        return f"{'https' if self.secure else 'http'}://{host}{'' if usual else f':{self.port}'}"


@dataclass(frozen=True, slots=True)
class CheckedAddress:
    """A webhook address, and the IP addresses that a request may connect to, in the resolver's order."""

    url: WebhookUrl
    addresses: tuple[str, ...]


def shown(url: str) -> str:
    """Return the scheme, host and port of a webhook address. The path is left out because it may contain a secret."""
    try:
        return parse(url).origin
    except AddressRefused:
        return "with an unusable address"


def networks(text: str) -> tuple[Network, ...]:
    """Parse a comma-separated list of networks. Raises a ValueError that names the invalid network."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def resolve_by_system(host: str) -> list[str]:
    """Return every address that the system's resolver finds for ``host``, without duplicates."""
    rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(row[4][0]) for row in rows))


def check(
    url: str,
    allowed: Sequence[Network] = (),
    resolve: Resolver = resolve_by_system,
    resolve_seconds: float = RESOLVE_SECONDS,
) -> CheckedAddress:
    """Return the addresses that a request to ``url`` may connect to.

    Raises AddressRefused if one of the addresses is neither public nor in ``allowed``, and AddressUnknown if the name
    has no addresses.
    """
    parsed = parse(url)
    found = _resolved(parsed.host, resolve, resolve_seconds)
    if not found:
        raise AddressUnknown(f"{parsed.host} has no address")
    for address in found:
        _must_be_allowed(parsed, address, allowed)
    return CheckedAddress(parsed, tuple(str(address) for address in found))


def parse(url: str) -> WebhookUrl:
    """Split ``url`` into its parts. Raises AddressRefused unless it is a plain http(s) address."""
    if len(url) > MAX_WEBHOOK_LENGTH:
        raise AddressRefused(f"the webhook address is longer than {MAX_WEBHOOK_LENGTH} characters")
    if not url.isascii() or any(c <= " " or c in '\\"<>^`{|}\x7f' for c in url):
        raise AddressRefused(
            "the webhook address contains spaces or invalid characters; percent-encode them"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise AddressRefused(f"the webhook address is malformed: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise AddressRefused("the webhook address must begin with https:// or http://")
    if "@" in parts.netloc:
        raise AddressRefused(
            "the webhook address must not contain a user or password; messages are signed instead"
        )
    secure = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    usual_port = 443 if secure else 80
    return WebhookUrl(secure, _host(parts), usual_port if port is None else port, target)


def _host(parts: SplitResult) -> str:
    host = (parts.hostname or "").removesuffix(".")
    if "[" in parts.netloc:
        if not _BRACKETS.fullmatch(parts.netloc):
            _refuse_host(parts.netloc)
        try:
            # A zone ("%eth0") would select a network interface.
            return str(IPv6Address(host)) if "%" not in host else _refuse_host(host)
        except ValueError:
            _refuse_host(host)
    if not _HOST.fullmatch(host) or len(host) > 253:
        _refuse_host(host)
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        # 2130706433, 0x7f.1 and 0177.0.0.1 all mean 127.0.0.1 to some resolvers and other addresses to others.
        try:
            return str(IPv4Address(host))
        except ValueError:
            raise AddressRefused(
                f"{host} is not a standard IPv4 address; write four decimal numbers, such as 192.0.2.1"
            ) from None
    return host


def _refuse_host(host: str) -> str:
    raise AddressRefused(f"the webhook address has no valid host name: {host!r}")


def _resolved(host: str, resolve: Resolver, seconds: float) -> list[Address]:
    with suppress(ValueError):
        return [_reduced(host)]
    answer: Future[list[Address]] = Future()

    def look_up() -> None:
        try:
            answer.set_result([_reduced(found) for found in resolve(host)])
        except (OSError, ValueError) as error:
            answer.set_exception(error)

    # The system's resolver has no timeout and may take half a minute; the thread ends when the resolver returns.
    Thread(target=look_up, name="leakline-resolve", daemon=True).start()
    try:
        return answer.result(seconds)
    except FutureTimeout:
        raise AddressUnknown(f"looking up {host} took longer than {seconds:g} s") from None
    except (OSError, ValueError) as error:
        raise AddressUnknown(f"{host} cannot be looked up: {error}") from None


def _reduced(text: str) -> Address:
    """Parse an address and unwrap ``::ffff:127.0.0.1``, which the kernel treats as 127.0.0.1."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _must_be_allowed(url: WebhookUrl, address: Address, allowed: Sequence[Network]) -> None:
    if any(address in network for network in allowed):
        return
    leads = "" if url.host == str(address) else f" resolves to {address}, which"
    word = _why_not_public(address)
    if word is not None:
        raise AddressRefused(
            f"{url.host}{leads} is not a public address ({word}); to allow it, add its network to "
            f"{ALLOW_SETTING}, for example {ALLOW_SETTING}={ip_network(address)}"
        )
    if url.port < 1024 and url.port not in (80, 443):
        raise AddressRefused(
            f"port {url.port} is not allowed for webhooks; use port 80, 443 or any port above 1023, "
            f"or add the network of {address} to {ALLOW_SETTING}"
        )


def _why_not_public(address: Address) -> str | None:
    for network, word in _REFUSED_NETWORKS:
        if address in network:
            return word
    return None if address.is_global and not address.is_multicast else "special"
