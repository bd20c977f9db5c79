"""What the commands that can stop a build share: named conditions, exit status 3, a file in JUnit's format."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..errors import LeaklineError
from ..report.facts import finding_line
from ..report.junit import Case, junit

GATE_STATUS: Final = 3
LEAKING: Final = "leaking"
REFUTED: Final = "refuted"
LEAKING_STATUSES: Final = ("suspected", "confirmed")


def add_gate(parser: argparse.ArgumentParser, conditions: Sequence[str]) -> None:
    parser.add_argument(
        "--fail-on", type=_conditions(conditions), default=(), metavar="CONDITIONS",
        help=f"exit with status {GATE_STATUS} when one holds; of {', '.join(conditions)}, with commas between",
    )  # fmt: skip
    parser.add_argument(
        "--junit", type=Path, metavar="FILE",
        help=f"write the conditions as test cases; without --fail-on that of {LEAKING}",
    )  # fmt: skip


def asked_of(options: argparse.Namespace) -> tuple[str, ...]:
    """The conditions to look at: those that close the gate, or for a file alone the first."""
    return options.fail_on or ((LEAKING,) if options.junit else ())


def write_junit(
    path: Path, suite: str, asked: Sequence[str], held: Sequence[str], answer: Mapping[str, Any],
    properties: Mapping[str, object], findings: Sequence[Mapping[str, Any]],
) -> None:  # fmt: skip
    """Raises LeaklineError when the file cannot be written."""
    details = [finding_line(finding) for finding in findings]
    cases = [
        Case(condition, answer["summary"] if condition in held else "", details)
        for condition in asked
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(junit(suite, cases, properties), encoding="utf-8")
    except OSError as error:
        raise LeaklineError(
            f"{path} cannot be written ({error.strerror}); name another FILE"
        ) from None


def _conditions(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        wanted = tuple(part.strip() for part in text.split(",") if part.strip())
        unknown = [part for part in wanted if part not in known]
        if unknown or not wanted:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown) or text!r} is no condition; use some of {', '.join(known)}"
            )
        return wanted

    return read
