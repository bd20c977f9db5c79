"""The commands that an example's README has for copying, and the sentence that it says will come out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.flows.conftest import clean_environment

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples"
HEADING: Final = "## Before, after, and the comparison\n"
BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
# What differs from machine to machine.
SIZE: Final = re.compile(r"-?[\d.]+ (?:B|KiB|MiB|GiB)\b")
PERCENT: Final = re.compile(r"\b\d+ %")


@dataclass(frozen=True)
class Readme:
    """``commands``: before, after, comparison. ``promised``: what the last of them says first."""

    example: str
    text: str
    commands: tuple[str, ...]
    promised: str

    def switches(self) -> list[str]:
        """Of its table of leaks, in its order."""
        return re.findall(r"^\| `(\w+)` \|", self.text, re.M)

    def run(self, server: str, folder: Path, **environment: str) -> str:
        """All commands as they stand there, in ``folder``; gives what the comparison printed."""
        said = ""
        for command in self.commands:
            done = subprocess.run(
                ["bash", "-c", command], cwd=folder,
                env=_with_python(clean_environment(LEAKLINE_SERVER=server, **environment)),
                capture_output=True, text=True, timeout=400, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            said = done.stdout
        return said


def readme(example: str) -> Readme:
    text = (EXAMPLES / example / "README.md").read_text(encoding="utf-8")
    blocks = BLOCK.findall(text[text.index(HEADING) :])
    (commands,) = (inside for language, inside in blocks if language == "sh")
    (promised,) = (inside for language, inside in blocks if language == "text")
    return Readme(example, text, tuple(commands.splitlines()), promised.strip())


def without_numbers(sentence: str) -> str:
    return PERCENT.sub("N %", SIZE.sub("SIZE", sentence))


def _with_python(environment: dict[str, str]) -> dict[str, str]:
    """`python` and `leakline` are those that run the tests."""
    here = str(Path(sys.executable).parent)
    return {**environment, "PATH": os.pathsep.join((here, environment["PATH"]))}
