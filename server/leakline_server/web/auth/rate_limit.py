"""Failures to be let in, by address: after some, the answer is to wait.

Kept by hand and not by a library for its bound: who tries from ever new addresses must not fill the memory.
"""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from ...errors import TooBusy

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
    """Whoever has one address of IPv6 has the 2^64 beside it as well."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host
    if found.version == 6 and not found.ipv4_mapped:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
