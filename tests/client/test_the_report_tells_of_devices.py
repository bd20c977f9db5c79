"""The text report names each number of a device for what it is, and says what it does not see."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leakline.report import report_text
from leakline.snapshot import Batch, Number, ProcessIdentity, RunHeader, Snapshot
from leakline.spool_file import SpoolFile

DATA = Path(__file__).parents[1] / "data"
GIB = 2**30


def told_of(samples: dict[str, Number], tmp_path: Path) -> list[str]:
    """The lines of the report between process memory and objects."""
    who = ProcessIdentity("instance-1", pid=7, host="box")
    samples = {"process.rss_bytes": GIB, **samples}
    snapshot = Snapshot(1, 1.0, 1.0, 0, None, "generation 0: end", "generation_end", samples)
    path = tmp_path / "run-1" / "instance-1.spool"
    SpoolFile(path, RunHeader("run-1", "erl", "run", "generation", 3, 1.0), who).append(
        Batch(who, (snapshot,), {})
    )
    lines = report_text(path).splitlines()
    if "GPU memory:" not in lines:
        return []
    return lines[lines.index("GPU memory:") + 1 : lines.index("Objects:")]


def test_each_device_is_told_with_its_failures(tmp_path: Path) -> None:
    samples = json.loads((DATA / "gpu_two_h200.json").read_text(encoding="utf-8"))["expected"]
    lines = told_of(samples, tmp_path)
    assert "   GPU 0 allocated, live tensors:           61.50 GiB" in lines
    assert "   GPU 0 outside torch:                      1.50 GiB" in lines
    assert f"   {'GPU 0 allocation retries:':<36}{2:>10}" in lines
    assert "   GPU 1 in use by all, driver:             12.50 GiB" in lines
    assert not any("GPU 1 out of memory" in line for line in lines)
    assert sum("torch sees only what its allocator took" in line for line in lines) == 1


def test_devices_are_told_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    samples: dict[str, Number] = {f"gpu.{i}.used_bytes": GIB for i in (10, 9, 0)}
    told = [line.split()[1] for line in told_of(samples, tmp_path) if "GPU" in line]
    assert told == ["0", "9", "10"]


def test_metal_is_told(tmp_path: Path) -> None:
    lines = told_of({"mps.allocated_bytes": 2 * GIB, "mps.limit_bytes": 48 * GIB}, tmp_path)
    assert "   Metal allocated, live tensors:            2.00 GiB" in lines
    assert "   Metal recommended limit:                 48.00 GiB" in lines


@pytest.mark.parametrize(
    "samples", [{}, {"cuda.0.retries": 0}, {"gpu.mine.used_bytes": 1, "gpu.x": 2}]
)
def test_without_a_device_the_report_has_no_such_part(
    samples: dict[str, Number], tmp_path: Path
) -> None:
    assert told_of(samples, tmp_path) == []
