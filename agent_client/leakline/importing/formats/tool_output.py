"""Reader of system tools' output during training: `ps`, `top -b`, `docker stats`, `free`, `nvidia-smi`.

Each row is the memory of a process, a container, the machine or a GPU. A reading ends when the same row occurs again. A
file with rows of several processes or containers is refused unless the user selects a process or container.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ...snapshot import Number
from ..imported_log import (
    BY_READING,
    BY_TIME,
    MAX_MEMORY_BYTES,
    ImportRefused,
    Log,
    Reading,
    Wishes,
    lines_of,
    moment_of,
    taken,
)
from ..names_and_sizes import factor_of

_AMOUNT: Final = r"[0-9]{1,15}(?:\.[0-9]{1,6})?"
_SIZED: Final = rf"{_AMOUNT}\s?(?:[kKMGT]i?B?|B)"
# USER PID %CPU %MEM VSZ RSS TTY STAT START TIME COMMAND
_PS: Final = re.compile(
    rf"\s*\S+\s+(?P<who>\d+)\s+{_AMOUNT}\s+{_AMOUNT}\s+\d+\s+(?P<size>\d{{1,15}})\s+\S+\s+[RSDZTItWX]\S*\s+\S+\s+"
    r"[\d:-]+\s+(?P<what>\S.*)"
)
# PID USER PR NI VIRT RES SHR S %CPU %MEM TIME+ COMMAND
_TOP: Final = re.compile(
    rf"\s*(?P<who>\d+)\s+\S+\s+(?:rt|-?\d+)\s+-?\d+\s+\S+\s+(?P<size>{_AMOUNT}[kmgtKMGT]?)\s+\S+\s+[RSDZTItX]\s+"
    rf"{_AMOUNT}\s+{_AMOUNT}\s+[\d:.]+\s+(?P<what>\S.*)"
)
# NAME CPU % MEM USAGE / LIMIT MEM % ...
_DOCKER: Final = re.compile(
    rf"(?:\S+\s+)?(?P<who>\S+)\s+{_AMOUNT}%\s+(?P<size>{_SIZED}) / {_SIZED}\s+{_AMOUNT}%"
)
_DOCKER_JSON: Final = re.compile(rf'"MemUsage":\s?"(?P<size>{_SIZED}) / {_SIZED}"')
_DOCKER_NAME: Final = re.compile(r'"Name":\s?"(?P<who>[^"]{1,200})"')
_FREE: Final = re.compile(
    rf"Mem:\s+{_AMOUNT}\S*\s+(?P<size>{_AMOUNT}(?:[KMGT]i?|B)?)\s+{_AMOUNT}\S*\s+{_AMOUNT}"
)
_GPU: Final = re.compile(r"\|\s+(?P<who>\d{1,3})\s+[A-Z]\S*(?:\s\S+)*\s+\S+\s+\|")
_GPU_USED: Final = re.compile(r"\|\s*(?P<size>\d{1,9})MiB\s*/\s*\d{1,9}MiB\s*\|")
_MOMENT: Final = re.compile(
    r"(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?:Z|[+-]\d\d:?\d\d)?)"
    r"|(?P<date>[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?: [A-Z]{2,5})? \d{4})"
)
_SERIES: Final = "process.rss_bytes"
_MACHINE: Final = "the machine"
_LISTED: Final = 8


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    series: str
    # The process or container that uses the memory; empty for a GPU.
    who: str
    size: int
    time: float | None


def is_row(text: str) -> bool:
    """Return True if a line reports memory in the format of one of these tools."""
    return any(pattern.match(text) for pattern in (_PS, _TOP, _DOCKER, _FREE)) or bool(
        _DOCKER_JSON.search(text) or _GPU_USED.search(text)
    )


def read_tools(path: Path, wishes: Wishes) -> Log:
    """Read the output of a tool. Raises ImportRefused."""
    rows = list(_rows(path, wishes))
    # Name each process by its first row, because a process may change its name while it runs.
    labels: dict[str, str] = {}
    rows = [replace(row, who=labels.setdefault(_pid_of(row.who), row.who)) for row in rows]
    who = _chosen(
        path, list(dict.fromkeys(row.who for row in rows if row.series == _SERIES)), wishes
    )
    own = [row for row in rows if row.series != _SERIES or row.who == who]
    readings = taken(path, _readings(own), wishes.every)
    timed = bool(own) and all(row.time is not None for row in own)
    notes = [f"no line counts generations{f', {BY_TIME}' if timed else f' {BY_READING}'}"]
    if who == _MACHINE:
        notes.append(
            "this is the memory of the entire machine, so other programs may cause the growth; "
            "log the memory of the process itself to be sure"
        )
    elif who is not None:
        notes.append(f"only the rows of {who} are read")
    return Log("tools", readings, notes=tuple(notes), is_clock=timed)


def _pid_of(who: str) -> str:
    """Return the id of a process, or the complete name of a container or machine."""
    first = who.split(" ")[0]
    return first if first.isdigit() else who


def _rows(path: Path, wishes: Wishes) -> Iterator[_Row]:
    time, gpu = None, 0
    for number, text in lines_of(path):
        time = _moment(text) or time
        if named := _GPU.match(text):
            gpu = int(named["who"])
        for found, who, factor in _figures(text):
            series = _SERIES if who else f"gpu.{gpu}.used_bytes"
            size = _bytes(path, number, found["size"], factor, wishes)
            yield _Row(number, series, who, size, time)


def _figures(text: str) -> Iterator[tuple[re.Match[str], str, int | None]]:
    """Yield (match, owner of the memory, bytes per unit) for each size.

    The bytes per unit apply to a size without a unit, and are None if they are unknown.
    """
    for pattern in (_PS, _TOP):
        if found := pattern.match(text):
            yield found, f"{found['who']} {found['what'].strip()[:60]}", 2**10
    if found := _DOCKER.match(text):
        yield found, found["who"], 1
    elif found := _DOCKER_JSON.search(text):
        named = _DOCKER_NAME.search(text)
        yield found, named["who"] if named else "the container", 1
    if found := _FREE.match(text):
        yield found, _MACHINE, None
    if found := _GPU_USED.search(text):
        yield found, "", 2**20


def _bytes(path: Path, line: int, text: str, factor: int | None, wishes: Wishes) -> int:
    """Convert a size in these tools' notation to bytes. g and Gi are 2^30 bytes, GB is 10^9 bytes."""
    digits = text.rstrip("BbiKkMmGgTt ")
    unit = text[len(digits) :].strip()
    if unit:
        factor = factor_of(unit if unit.lower().endswith("b") else f"{unit[0]}iB")
    factor = factor or wishes.size_unit
    if factor is None:
        why = "in the output of free has no unit; specify --size-unit MiB for free -m, or KiB for free"
        raise ImportRefused(path, f"{text!r} {why}", line)
    size = round(float(digits) * factor)
    if size > MAX_MEMORY_BYTES:
        raise ImportRefused(path, "contains a size that no process can have", line)
    return size


def _chosen(path: Path, known: Sequence[str], wishes: Wishes) -> str | None:
    """Return the process, container or machine to read, or None if all rows belong to GPUs.

    Raises ImportRefused if the choice is ambiguous.
    """
    wanted = [who for who in known if wishes.run in (who, _pid_of(who))]
    if wishes.run is None and len(known) <= 1:
        return known[0] if known else None
    if len(wanted) == 1:
        return wanted[0]
    listed = ", ".join(known[:_LISTED]) + (", …" if len(known) > _LISTED else "")
    if wishes.run is not None:
        raise ImportRefused(
            path, f"contains no rows of {wishes.run!r}; it contains rows of {listed}"
        )
    raise ImportRefused(
        path, f"has rows of {len(known)} processes or containers ({listed}); choose one with --run {_pid_of(known[0])}"
    )  # fmt: skip


def _readings(rows: Sequence[_Row]) -> Iterator[Reading]:
    """Yield a reading for each group of rows; a new group begins when a series occurs again."""
    together: dict[str, _Row] = {}
    for row in rows:
        if row.series in together:
            yield _reading(together)
            together = {}
        together[row.series] = row
    if together:
        yield _reading(together)


def _reading(together: dict[str, _Row]) -> Reading:
    first = next(iter(together.values()))
    samples: dict[str, Number] = {series: row.size for series, row in together.items()}
    return Reading(first.line, samples, first.time)


def _moment(text: str) -> float | None:
    """Return the time at the start of a line, in ISO format or as `date` prints it, or None.

    Times without a UTC offset are read as UTC.
    """
    found = _MOMENT.match(text.strip())
    if found is None:
        return None
    if found["iso"]:
        return moment_of(found["iso"])
    # Drop the time zone, because its abbreviation is ambiguous.
    *words, year = found["date"].split()
    try:
        moment = datetime.strptime(" ".join([*words[:4], year]), "%a %b %d %H:%M:%S %Y")
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC).timestamp()
