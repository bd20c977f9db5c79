"""Batches of version 1 of the wire format, in JSON columns, as sent by older clients and JavaScript."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from leakline.snapshot import JSON_VERSION, Batch


def batch_to_wire(batch: Batch) -> dict[str, Any]:
    snapshots = batch.snapshots
    names = dict.fromkeys(name for s in snapshots for name in s.samples)
    common = ("time", "monotonic", "generation", "phase", "label", "kind")
    series = {name: [s.samples.get(name) for s in snapshots] for name in names}
    return {
        "version": JSON_VERSION,
        "process": asdict(batch.process),
        "first_sequence": batch.first_sequence,
        "count": len(snapshots),
        "columns": {**{c: [getattr(s, c) for s in snapshots] for c in common}, "series": series},
        "events": [asdict(e) for s in snapshots for e in s.events],
        "large_objects": [asdict(o) for s in snapshots for o in s.large_objects],
        "census": [asdict(s.census) for s in snapshots if s.census is not None],
        "holders": [asdict(h) for s in snapshots for h in s.holders],
        "lost": dict(batch.lost),
    }
