"""The same samples in the format of each server: complete HTTP requests, ready to be sent.

Leakline's are the client's own: `leakline.snapshot.batch_to_bytes`, gzipped by `leakline.transport.http_delivery`.
VictoriaMetrics and Prometheus receive remote write (protocol buffers encoded here, compressed with snappy), InfluxDB
its line protocol, trackio and MLflow their own JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from leakline.snapshot import (
    CONTENT_TYPE,
    MAGIC,
    PREFIX,
    Batch,
    ProcessIdentity,
    Snapshot,
    batch_to_bytes,
)
from leakline.transport.http_delivery import Body, pack

from .samples import PHASES, SNAPSHOTS_PER_GENERATION, Samples

# Length of a time in milliseconds between 2004 and 2039 as a varint.
_TIME_BYTES: Final = 6
_SAMPLE: Final = np.dtype(
    [("field", "u1"), ("length", "u1"), ("double", "u1"), ("value", "<f8"), ("integer", "u1"),
     ("time", "u1", (_TIME_BYTES,))]
)  # fmt: skip
Compress = Callable[[bytes], bytes]


def request(
    method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> bytes:
    given = {"host": "127.0.0.1", "content-length": str(len(body)), **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def leakline_batch(part: Samples) -> Batch:
    """Return the snapshots as the client's batch, with an empty process name."""
    names = tuple(part.columns)
    rows = zip(*(values.tolist() for values in part.columns.values()), strict=True)
    times = zip(part.times.tolist(), part.monotonic.tolist(), rows, strict=True)
    snapshots = []
    for i, (time, monotonic, row) in enumerate(times, part.first):
        generation, phase = i // SNAPSHOTS_PER_GENERATION, PHASES[i % len(PHASES)]
        label = f"generation {generation}: " + (f"after {phase}" if phase else "end")
        kind = "phase_end" if phase else "generation_end"
        samples = dict(zip(names, row, strict=True))
        snapshots.append(Snapshot(i, time, monotonic, generation, phase, label, kind, samples))
    return Batch(ProcessIdentity("", pid=4711, host="bench"), tuple(snapshots))


def leakline(run: str, part: Samples) -> bytes:
    return leakline_request(run, Written(leakline_batch(part)).body(run))


class Written:
    """An encoded batch without the name of its process, which is filled in for each of many."""

    _NAME: Final = b'"instance":""'

    def __init__(self, batch: Batch) -> None:
        data = batch_to_bytes(batch)
        end = PREFIX.size + PREFIX.unpack_from(data)[1]
        self._before, self._after = data[PREFIX.size : end].rstrip().split(self._NAME)
        self._numbers = data[end:]

    def body(self, instance: str) -> Body:
        """Return the body that the client would send for this batch from the process ``instance``."""
        head = self._before + f'"instance":"{instance}"'.encode() + self._after
        head += b" " * (-len(head) % 8)
        return pack(PREFIX.pack(MAGIC, len(head)) + head + self._numbers, CONTENT_TYPE)


def leakline_request(run: str, body: Body) -> bytes:
    headers = {"content-type": body.content_type}
    if body.compressed:
        headers["content-encoding"] = "gzip"
    return request("POST", f"/api/v1/runs/{run}/batches", body.data, headers)


def remote_write(run: str, part: Samples, compress: Compress, path: str) -> bytes:
    body = compress(write_request(run, part))
    headers = {
        "content-type": "application/x-protobuf",
        "content-encoding": "snappy",
        "x-prometheus-remote-write-version": "0.1.0",
    }
    return request("POST", path, body, headers)


def write_request(run: str, part: Samples) -> bytes:
    """Encode prometheus.WriteRequest: 1 TimeSeries of Labels (1) and Samples (2: double, milliseconds)."""
    entries = np.zeros(part.count, _SAMPLE)
    entries["field"], entries["length"] = 0x12, _SAMPLE.itemsize - 2
    entries["double"], entries["integer"] = 0x09, 0x10
    entries["time"] = _varints(np.round(part.times * 1e3).astype(np.int64))
    whose = _label("run", run)
    written = []
    for name, values in part.columns.items():
        entries["value"] = values
        series = _label("__name__", name.replace(".", "_")) + whose + entries.tobytes()
        written.append(b"\x0a" + varint(len(series)) + series)
    return b"".join(written)


def _label(name: str, value: str) -> bytes:
    fields = _text(0x0A, name) + _text(0x12, value)
    return b"\x0a" + varint(len(fields)) + fields


def _text(tag: int, text: str) -> bytes:
    data = text.encode()
    return bytes((tag,)) + varint(len(data)) + data


def varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def _varints(numbers: Any) -> Any:
    """Encode all numbers in ``_TIME_BYTES`` bytes; times of this century need exactly that many."""
    sevens = (numbers[:, None] >> (7 * np.arange(_TIME_BYTES))) & 0x7F
    sevens[:, :-1] |= 0x80
    return sevens.astype("u1")


def lines(run: str, part: Samples) -> bytes:
    """Return one line per snapshot with all its numbers as fields: the cheapest form for InfluxDB."""
    form = ",".join(
        f"{name}={'%r' if values.dtype.kind == 'f' else '%di'}"
        for name, values in part.columns.items()
    )
    milliseconds = np.round(part.times * 1e3).astype(np.int64).tolist()
    rows = zip(*(values.tolist() for values in part.columns.values()), strict=True)
    written = "\n".join(
        f"snapshot,run={run} {form % row} {time}"
        for row, time in zip(rows, milliseconds, strict=True)
    )
    return request("POST", "/write?db=bench&precision=ms", written.encode())


def trackio(run: str, part: Samples, token: str) -> bytes:
    names = tuple(part.columns)
    rows = zip(*(values.tolist() for values in part.columns.values()), strict=True)
    logs = [
        {"project": "bench", "run": run, "metrics": dict(zip(names, row, strict=True)),
         "step": part.first + i, "config": None}
        for i, row in enumerate(rows)
    ]  # fmt: skip
    body = json.dumps({"args": [], "kwargs": {"logs": logs, "hf_token": None}}).encode()
    headers = {"content-type": "application/json", "x-trackio-write-token": token}
    return request("POST", "/api/bulk_log", body, headers)


def mlflow(run: str, part: Samples) -> bytes:
    """Return a request of at most 1,000 numbers, which are 15 snapshots."""
    milliseconds = np.round(part.times * 1e3).astype(np.int64).tolist()
    metrics = [
        {"key": name, "value": value, "timestamp": milliseconds[i], "step": part.first + i}
        for name, values in part.columns.items()
        for i, value in enumerate(values.tolist())
    ]
    body = json.dumps({"run_id": run, "metrics": metrics}).encode()
    return request(
        "POST", "/api/2.0/mlflow/runs/log-batch", body, {"content-type": "application/json"}
    )
