"""The commands in the sections of examples/README.md, and the output that it shows."""

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
README: Final = (EXAMPLES / "README.md").read_text(encoding="utf-8")
BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
# Parts that differ between machines.
SIZE: Final = re.compile(r"-?[\d.]+ (?:B|KiB|MiB|GiB)\b")
PERCENT: Final = re.compile(r"\b\d+ %")


@dataclass(frozen=True)
class Readme:
    """The section of an example; ``promised`` is the first line of output of the last command."""

    example: str
    text: str
    commands: tuple[str, ...]
    promised: str

    def switches(self) -> list[str]:
        """Return the switches of its table."""
        return re.findall(r"^\| `(\w+)` \|", self.text, re.M)

    def run(self, server: str, folder: Path, **environment: str) -> str:
        """Run all commands in ``folder`` and return the output of the comparison."""
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
    text = section_of(example)
    blocks = BLOCK.findall(text)
    (commands,) = (inside for language, inside in blocks if language == "sh")
    (promised,) = (inside for language, inside in blocks if language == "text")
    return Readme(example, text, tuple(commands.splitlines()), promised.strip())


def section_of(example: str) -> str:
    (text,) = (each for each in README.split("\n## ") if f"`{example}`" in each.splitlines()[0])
    return text


def without_numbers(sentence: str) -> str:
    return PERCENT.sub("N %", SIZE.sub("SIZE", sentence))


def _with_python(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment with `python` and `leakline` of the tests on the path."""
    here = str(Path(sys.executable).parent)
    return {**environment, "PATH": os.pathsep.join((here, environment["PATH"]))}
