"""A line on stderr after every so many generations: memory, counts of the watched classes, growth and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ..snapshot import Number, Snapshot
from ..text_format import NOT_MEASURED, format_bytes, format_change, seen_of, short_name, worded
from .notices import Notices

if TYPE_CHECKING:
    from ..analysis.results import Verdict

NO_VERDICT: Final = "no verdict yet"
_RESIDENT: Final = "process.rss_bytes"
_GPU: Final = ".allocated_bytes"


class StatusLine:
    """Told of every snapshot; speaks at generation ends. A quiet run and all ranks but the first say nothing."""

    def __init__(
        self,
        notices: Notices,
        every: int,
        watch: Sequence[str],
        verdict: Callable[[], Verdict | None] = lambda: None,
    ) -> None:
        """``verdict``: the newest there is. Nothing is worked out for a line."""
        self._notices, self._every, self._watch = notices, every, tuple(watch)
        self._verdict = verdict
        self._ended = 0
        # The first snapshot, and the newest generation end.
        self._first: Snapshot | None = None
        self._before: Snapshot | None = None

    def see(self, snapshot: Snapshot) -> None:
        if snapshot.kind == "baseline":
            self._first = self._before = snapshot
        if snapshot.kind != "generation_end":
            return
        self._ended += 1
        if self._ended % self._every == 0:
            parts = (status_line(snapshot, self._watch), self._growth(snapshot), self._judged())
            self._notices.say("; ".join(parts))
        self._before = snapshot

    def _growth(self, snapshot: Snapshot) -> str:
        """``+1.20 MiB since generation 3: end, +9.31 MiB since baseline``. Ends that were left out are seen by it."""
        since = [self._before, self._first] if self._before is not self._first else [self._first]
        return ", ".join(_grown(before, snapshot) for before in since if before is not None)

    def _judged(self) -> str:
        verdict = self._verdict()
        if verdict is None:
            return NO_VERDICT
        seen = seen_of(verdict.generations, verdict.generations_passed, verdict.unit)
        return f"after {seen} {worded(verdict.status, verdict.summary)}"


def _grown(before: Snapshot, now: Snapshot) -> str:
    then, held = before.samples.get(_RESIDENT), now.samples.get(_RESIDENT)
    if then is None or held is None:
        return f"growth since {before.label} {NOT_MEASURED}"
    return f"{format_change(held - then)} since {before.label}"


def status_line(snapshot: Snapshot, watch: Sequence[str]) -> str:
    """``generation 4: end: RSS 4.23 GiB, GPU 0 0.15 GiB, TradingEnvironment 0, DDPGAgent 17``."""
    return f"{snapshot.label}: {', '.join(_parts(snapshot.samples, watch))}"


def _parts(samples: Mapping[str, Number], watch: Sequence[str]) -> Iterator[str]:
    resident = samples.get(_RESIDENT)
    yield f"RSS {NOT_MEASURED if resident is None else format_bytes(resident)}"
    for name in sorted(samples):
        if name.startswith("cuda.") and name.endswith(_GPU):
            device = name.removeprefix("cuda.").removesuffix(_GPU)
            yield f"GPU {device} {format_bytes(samples[name])}"
    for name in watch:
        count = _count(samples, name)
        yield f"{short_name(name)} {NOT_MEASURED if count is None else f'{count:,}'}"


def _count(samples: Mapping[str, Number], watched: str) -> Number | None:
    """Of a class by its whole name, or of all that end with the name given."""
    exact = samples.get(f"type.{watched}.count")
    if exact is not None:
        return exact
    ending = f".{watched}.count"
    found = [v for name, v in samples.items() if name.startswith("type.") and name.endswith(ending)]
    return sum(found) if found else None
