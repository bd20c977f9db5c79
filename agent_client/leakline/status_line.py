"""A line on stderr after every so many generations: memory, and the counts of the watched classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from .notices import Notices
from .sizes import format_bytes
from .snapshot import Number, Snapshot

NOT_MEASURED: Final = "not measured"
_GPU: Final = ".allocated_bytes"


class StatusLine:
    """Told of every snapshot; speaks at generation ends. A quiet run and all ranks but the first say nothing."""

    def __init__(self, notices: Notices, every: int, watch: Sequence[str]) -> None:
        self._notices, self._every, self._watch = notices, every, tuple(watch)
        self._ended = 0

    def see(self, snapshot: Snapshot) -> None:
        if snapshot.kind != "generation_end":
            return
        self._ended += 1
        if self._ended % self._every == 0:
            self._notices.say(status_line(snapshot, self._watch))


def status_line(snapshot: Snapshot, watch: Sequence[str]) -> str:
    """``generation 4: end: RSS 4.23 GiB, GPU 0 0.15 GiB, TradingEnvironment 0, DDPGAgent 17``."""
    return f"{snapshot.label}: {', '.join(_parts(snapshot.samples, watch))}"


def _parts(samples: Mapping[str, Number], watch: Sequence[str]) -> Iterator[str]:
    resident = samples.get("process.rss_bytes")
    yield f"RSS {NOT_MEASURED if resident is None else format_bytes(resident)}"
    for name in sorted(samples):
        if name.startswith("cuda.") and name.endswith(_GPU):
            device = name.removeprefix("cuda.").removesuffix(_GPU)
            yield f"GPU {device} {format_bytes(samples[name])}"
    for name in watch:
        count = _count(samples, name)
        yield f"{name.rsplit('.', 1)[-1]} {NOT_MEASURED if count is None else f'{count:,}'}"


def _count(samples: Mapping[str, Number], watched: str) -> Number | None:
    """Of a class by its whole name, or of all that end with the name given."""
    exact = samples.get(f"type.{watched}.count")
    if exact is not None:
        return exact
    ending = f".{watched}.count"
    found = [v for name, v in samples.items() if name.startswith("type.") and name.endswith(ending)]
    return sum(found) if found else None
