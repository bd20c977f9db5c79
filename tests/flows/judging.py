"""What a verdict said, held against the right answer that was planted."""

from __future__ import annotations

from typing import Any, Final

from leakline.analysis.results import SEVERITY

# Kind that was planted -> kinds that are as right: what piles up may be told by what keeps it, or by what it is.
ALIKE: Final = {
    "objects": ("container", "count_contract"), "container": ("objects",), "arrays": ("container",)
}  # fmt: skip


def severity(status: str) -> int:
    return SEVERITY.index(status)  # type: ignore[arg-type]


def names(finding: dict[str, Any]) -> list[str]:
    return [suspect["name"].removesuffix("[*]") for suspect in finding["suspects"]]


def is_right(finding: dict[str, Any], right: Any) -> bool:
    """The right kind, or one that is as right, the right phase, and a right type or holder first among the suspects."""
    first = names(finding)[:1]
    named = any(
        name == wanted or name.endswith(f".{wanted}") for name in first for wanted in right.names
    )
    called = finding["kind"] in (right.kind, *ALIKE.get(right.kind, ()))
    return called and named and finding["phase"] == right.phase


def accused(verdict: dict[str, Any]) -> list[dict[str, Any]]:
    """Findings that blame something; one of status "ok" says that a growth does not matter."""
    return [finding for finding in verdict["findings"] if finding["status"] != "ok"]


def told(verdict: dict[str, Any]) -> str:
    """What the chain said, for the message of a failed test."""
    lines = [f"{verdict['status']}: {verdict['summary']}"]
    for finding in verdict["findings"]:
        growth = finding["growth_bytes_per_generation"]["estimate"] / 2**20
        start = finding["started_at_generation"]
        lines.append(
            f"{finding['status']} {finding['kind']} in {finding['phase']}: {names(finding)[:4]},"
            f" {growth:.2f} MiB per generation since {start and start['estimate']}"
        )
    return "\n".join(lines)
