"""Files for the tests of importing, and where the recorded ones lie."""

from __future__ import annotations

from pathlib import Path

FILES = Path(__file__).resolve().parents[1] / "data" / "imports"


def table(tmp_path: Path, text: str, name: str = "memory.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def leaking(rows: int = 30) -> str:
    return "epoch,rss_mb\n" + "".join(f"{i},{500 + 20 * i}\n" for i in range(rows))
