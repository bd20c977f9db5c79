"""Conversion of an OpenTelemetry metrics request to snapshots with our series names, one process per resource. Pure.

    resource            service.name, service.instance.id (or host.name and process.pid)    -> a run, with one process
    data points         at the same time                                                    -> a snapshot
    leakline.generation a gauge at the same time, or an attribute of a point                -> its generation
    leakline.phase      an attribute of a point                                             -> its phase

`NAMES` is the only place that maps metrics of the semantic conventions, because several of their names have changed.
A metric named `leakline.` plus one of our series names maps to that series. All other metrics are ignored.

`opentelemetry-proto` is an optional extra, imported inside the functions of this module.
"""

from __future__ import annotations

import hashlib
import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, TypeGuard

import msgspec

from leakline.core.environment import command_line
from leakline.snapshot import LARGEST_FLOAT, ProcessIdentity, RunHeader, Snapshot

from ..errors import InvalidField, Malformed, TooLarge, Unsupported
from ..limits import MAX_ENVIRONMENT_BYTES
from ..limits import MAX_OTLP_DEPTH as MAX_DEPTH
from ..limits import MAX_OTLP_POINTS as MAX_POINTS
from ..limits import MAX_OTLP_RESOURCES as MAX_RESOURCES
from ..limits import MAX_OTLP_SERIES as MAX_SERIES
from ..limits import MAX_OTLP_SNAPSHOTS as MAX_SNAPSHOTS
from ..text_cleaning import redacted, without_control

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
# All points of one collection are measured within this time, one after another.
TOGETHER_SECONDS: Final = 0.5
_NOT_RECORDED: Final = 1

# (metric, distinguishing attribute, attribute value) -> series; attribute and value may be empty.
NAMES: Final[Mapping[tuple[str, str, str], str]] = {
    ("process.memory.usage", "", ""): "process.rss_bytes",
    ("process.memory.virtual", "", ""): "process.vms_bytes",
    ("process.runtime.cpython.memory", "type", "rss"): "process.rss_bytes",
    ("process.runtime.cpython.memory", "type", "vms"): "process.vms_bytes",
    ("process.thread.count", "", ""): "process.threads",
    ("process.runtime.cpython.thread_count", "", ""): "process.threads",
    ("process.unix.file_descriptor.count", "", ""): "process.open_files",
    ("process.open_file_descriptor.count", "", ""): "process.open_files",
    ("container.memory.usage", "", ""): "cgroup.used_bytes",
    ("system.memory.limit", "", ""): "system.total_bytes",
    ("system.memory.linux.available", "", ""): "system.available_bytes",
    ("leakline.torch.cuda.allocated", "", ""): "cuda.0.allocated_bytes",
    ("leakline.torch.cuda.reserved", "", ""): "cuda.0.reserved_bytes",
}  # fmt: skip
# Metrics of a device; the device index is an attribute.
_DEVICES: Final = {
    "hw.gpu.memory.usage": "gpu.{}.used_bytes", "hw.gpu.memory.limit": "gpu.{}.total_bytes",
    "leakline.torch.cuda.allocated": "cuda.{}.allocated_bytes",
    "leakline.torch.cuda.reserved": "cuda.{}.reserved_bytes",
}  # fmt: skip
_DEVICE_ATTRIBUTES: Final = ("leakline.device", "hw.id", "gpu", "device")
_COMMAND_LINE: Final = "process.command_line"
_OWN: Final = "leakline."
_GENERATION: Final = "leakline.generation"
_OURS: Final = re.compile(
    r"(?:process|children|allocator|cgroup|system|python|tensors|arrays|figures|tfjs|js|type|tracked|gauge|cuda|gpu|shm|pinned)\.\S{1,400}"
)
_UNITS: Final = {
    "": 1, "By": 1, "KiBy": 2**10, "MiBy": 2**20, "GiBy": 2**30, "kBy": 10**3, "MBy": 10**6, "GBy": 10**9,
}  # fmt: skip
_INTEGERS: Final = re.compile(
    r".*(?:_bytes|\.bytes|\.count|\.length|\.threads|\.open_files|\.open)"
)


@dataclass(frozen=True, slots=True)
class ResourceSnapshots:
    """A resource in a request: its run and its snapshots in order. The store numbers the snapshots.

    ``names_project`` is True if the resource names a project. Otherwise the project is the name of the service, unless
    the token determines the project.
    """

    header: RunHeader
    process: ProcessIdentity
    snapshots: tuple[Snapshot, ...]
    names_project: bool

    def of_project(self, project: str) -> ResourceSnapshots:
        """Return the resource with a run id for this project; two projects may use the same service and instance."""
        named = f"{project}\n{self.process.instance}".encode()
        run_id = f"otlp-{hashlib.sha256(named).hexdigest()[:20]}"
        return replace(self, header=replace(self.header, id=run_id, project=project))


def is_installed() -> bool:
    try:
        import opentelemetry.proto.collector.metrics.v1.metrics_service_pb2  # noqa: F401
    except ImportError:
        return False
    return True


def read_request(body: bytes, content_type: str) -> tuple[ResourceSnapshots, ...]:
    """Parse an export request. Raises Unsupported, Malformed, InvalidField and TooLarge."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    request = ExportMetricsServiceRequest()
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in (PROTOBUF, JSON):
        raise Unsupported(
            "unsupported_media_type", f"content-type {kind[:60]!r} is not supported; send {PROTOBUF} or {JSON}",
            {"accepted": [PROTOBUF, JSON]},
        )  # fmt: skip
    _parse(request, body, kind)
    if len(request.resource_metrics) > MAX_RESOURCES:
        raise _too_many("resources", len(request.resource_metrics), MAX_RESOURCES)
    return tuple(_snapshots_of(i, resource) for i, resource in enumerate(request.resource_metrics))


def answer(content_type: str, nothing_of_ours: bool, late: int = 0) -> bytes:
    """Return the body of a successful response, encoded like the request. ``late`` is the number of outdated points."""
    from google.protobuf import json_format
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceResponse,
    )

    response = ExportMetricsServiceResponse()
    if nothing_of_ours:
        response.partial_success.error_message = (
            "none of these metrics is a supported memory metric; see docs/other-tools.md"
        )
    elif late:
        response.partial_success.rejected_data_points = late
        why = f"data points older than their run's stored data were rejected ({late})"
        response.partial_success.error_message = f"{why}; export in chronological order"
    if content_type == JSON:
        return str(json_format.MessageToJson(response, indent=None)).encode()
    return bytes(response.SerializeToString())


def _parse(request: Any, body: bytes, kind: str) -> None:
    from google.protobuf import json_format
    from google.protobuf.message import DecodeError

    if kind == JSON and not body.lstrip().startswith(b"{"):
        # The JSON parser would accept a string as a message without fields.
        raise Malformed(
            "malformed_otlp",
            "the body is not an OTLP metrics request in JSON: it must be an object",
        )
    try:
        if kind == PROTOBUF:
            request.ParseFromString(body)
        else:
            json_format.Parse(
                body, request, ignore_unknown_fields=True, max_recursion_depth=MAX_DEPTH
            )
    except (DecodeError, json_format.ParseError, UnicodeError, RecursionError) as error:
        # UnicodeError is raised for a lone surrogate: the parser repeats the surrogate in its message, and it cannot be
        # encoded.
        what = "JSON" if kind == JSON else "protobuf"
        why = " ".join(str(error).encode("utf-8", "replace").decode().split())[:200]
        raise Malformed(
            "malformed_otlp", f"the body is not an OTLP metrics request in {what}: {why}"
        ) from error


def _too_many(what: str, count: int, limit: int) -> TooLarge:
    return TooLarge(
        "request_too_large", f"{count} {what} in one request; export at most {limit} at a time", {"limit": limit}
    )  # fmt: skip


def _snapshots_of(at: int, resource: Any) -> ResourceSnapshots:
    attributes = {
        pair.key: value
        for pair in resource.resource.attributes
        if (value := _plain(pair.value)) is not None
    }
    service = _text(attributes, "service.name", "unknown_service")
    instance = _instance(at, attributes)
    pid = attributes.get("process.pid")
    digest = hashlib.sha256(f"{service}\n{instance}".encode()).hexdigest()
    snapshots = tuple(_snapshots(_points(resource)))
    if len(snapshots) > MAX_SNAPSHOTS:
        raise _too_many("snapshots of a resource", len(snapshots), MAX_SNAPSHOTS)
    project = _text(attributes, "leakline.project", "")
    header = RunHeader(
        id="",
        project="",
        name=_text(attributes, "leakline.run_name", f"{service} {instance}"[:128]),
        unit=_text(attributes, "leakline.unit", "generation"),
        total=None,
        started_at=snapshots[0].time if snapshots else 0.0,
        tags=("otlp",),
        environment={"otlp": _environment(attributes)},
    )  # fmt: skip
    process = ProcessIdentity(
        instance=f"otlp-{digest[:40]}",
        pid=pid if _is_integer(pid) and 0 <= pid < 2**31 else 0,
        host=_text(attributes, "host.name", ""),
    )
    resource_snapshots = ResourceSnapshots(header, process, snapshots, bool(project))
    return resource_snapshots.of_project(project or _text(attributes, "service.namespace", service))


def _environment(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the redacted attributes, up to the maximum size of an attempt's environment."""
    found: dict[str, Any] = {}
    # Reserve some space for the enclosing braces and the key.
    room = MAX_ENVIRONMENT_BYTES - 64
    for key, value in islice(attributes.items(), 64):
        name = without_control(key)[:200]
        text = without_control(value) if isinstance(value, str) else value
        if key == _COMMAND_LINE and isinstance(text, str):
            # A secret may follow the option that names it.
            text = " ".join(command_line(text.split()))
        cleaned = redacted({name: text})
        room -= len(msgspec.json.encode(cleaned))
        if room < 0:
            break
        found |= cleaned
    return found


def _instance(at: int, attributes: Mapping[str, Any]) -> str:
    instance = _text(attributes, "service.instance.id", "")
    if instance:
        return instance
    host, pid = _text(attributes, "host.name", ""), attributes.get("process.pid")
    if pid is None:
        raise InvalidField(
            f"resourceMetrics[{at}].resource.service.instance.id", None,
            "is missing, and so is process.pid: set OTEL_RESOURCE_ATTRIBUTES=service.instance.id=… for each process",
        )  # fmt: skip
    return f"{host}:{pid}" if host else str(pid)


def _text(attributes: Mapping[str, Any], key: str, default: str) -> str:
    return without_control(str(attributes.get(key, "")))[:128].strip() or default


def _plain(value: Any) -> str | int | float | bool | None:
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return str(value.string_value)[:400]
    if kind in ("int_value", "bool_value"):
        return getattr(value, kind)  # type: ignore[no-any-return]
    number = value.double_value if kind == "double_value" else math.nan
    return float(number) if math.isfinite(number) else None


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class _Point:
    time: float
    series: str
    value: float
    generation: int | None
    phase: str | None


def _points(resource: Any) -> list[_Point]:
    """Return the points of memory metrics with their generations, ordered by time."""
    found: list[_Point] = []
    generations: list[tuple[float, int]] = []
    for scope in resource.scope_metrics:
        for metric in scope.metrics:
            kind = metric.WhichOneof("data")
            if kind not in ("gauge", "sum"):
                continue
            points = getattr(metric, kind).data_points
            if len(found) + len(generations) + len(points) > MAX_POINTS:
                raise _too_many(
                    "data points", len(found) + len(generations) + len(points), MAX_POINTS
                )
            if metric.name == _GENERATION:
                generations += [
                    (point.time_unix_nano / 1e9, int(_value(point)))
                    for point in points
                    if _is_whole(point)
                ]
            else:
                found.extend(_of_metric(metric, points))
    if (series := len({point.series for point in found})) > MAX_SERIES:
        raise _too_many("series", series, MAX_SERIES)
    found.sort(key=lambda point: point.time)
    return list(_newest_generations(_with_generations(found, sorted(generations))))


def _value(point: Any) -> float:
    return float(getattr(point, point.WhichOneof("value") or "as_int"))


def _is_whole(point: Any) -> bool:
    value = _value(point)
    return not point.flags & _NOT_RECORDED and value.is_integer() and abs(value) <= 2**53


def _with_generations(
    points: list[_Point], generations: list[tuple[float, int]]
) -> Iterator[_Point]:
    """Yield each point with the generation that was reported nearest in time within the same collection."""
    times = [time for time, _ in generations]
    for point in points:
        at = bisect_left(times, point.time)
        near = [
            generations[i]
            for i in (at - 1, at)
            if 0 <= i < len(generations) and abs(times[i] - point.time) <= TOGETHER_SECONDS
        ]
        if point.generation is not None or not near:
            yield point
        else:
            nearest = min(near, key=lambda pair: abs(pair[0] - point.time))
            yield replace(point, generation=nearest[1])


def _newest_generations(points: Iterable[_Point]) -> Iterator[_Point]:
    """Keep only the points of each collection's newest generation: SDKs repeat every attribute set's last value
    forever.
    """
    moment: list[_Point] = []
    for point in points:
        if moment and point.time - moment[0].time > TOGETHER_SECONDS:
            yield from _of_newest(moment)
            moment = []
        moment.append(point)
    yield from _of_newest(moment)


def _of_newest(moment: list[_Point]) -> Iterator[_Point]:
    newest = max((p.generation for p in moment if p.generation is not None), default=None)
    return (p for p in moment if p.generation in (None, newest))


def _of_metric(metric: Any, points: Iterable[Any]) -> Iterator[_Point]:
    for point in points:
        if point.flags & _NOT_RECORDED:
            continue
        attributes = {pair.key: _plain(pair.value) for pair in point.attributes}
        series = _series_of(metric.name, attributes)
        value = _value(point)
        if series is None or not math.isfinite(value):
            continue
        scale = _UNITS.get(metric.unit, 1) if series.endswith("bytes") else 1
        generation, phase = attributes.get(_GENERATION), attributes.get("leakline.phase")
        yield _Point(
            point.time_unix_nano / 1e9, series, value * scale,
            generation if _is_integer(generation) and abs(generation) <= 2**53 else None,
            without_control(str(phase))[:256] if phase else None,
        )  # fmt: skip


def _series_of(name: str, attributes: Mapping[str, Any]) -> str | None:
    device = next((attributes[key] for key in _DEVICE_ATTRIBUTES if key in attributes), None)
    if name in _DEVICES and re.fullmatch(r"\d{1,3}", str(device)):
        return _DEVICES[name].format(int(str(device)))
    for (known, key, wanted), series in NAMES.items():
        if known == name and (not key or attributes.get(key) == wanted):
            return series
    own = without_control(name.removeprefix(_OWN))
    return own if name.startswith(_OWN) and _OURS.fullmatch(own) else None


def _snapshots(points: Iterable[_Point]) -> Iterator[Snapshot]:
    """Combine points of the same time, generation and phase into snapshots; no series occurs twice in a snapshot."""
    together: dict[str, _Point] = {}
    first: _Point | None = None
    for point in points:
        if first is not None and (point.series in together or not _belong(first, point)):
            yield _snapshot(list(together.values()))
            together, first = {}, None
        first = first or point
        together[point.series] = point
    if together:
        yield _snapshot(list(together.values()))


def _belong(first: _Point, point: _Point) -> bool:
    where = (first.generation, first.phase) == (point.generation, point.phase)
    return where and point.time - first.time <= TOGETHER_SECONDS


def _snapshot(points: list[_Point]) -> Snapshot:
    last = points[-1]
    label = last.phase or ""
    kind = "phase_end" if last.phase else "sample"
    samples = {point.series: _sample(point) for point in points}
    time = max(0.0, last.time)
    return Snapshot(0, time, time, last.generation, last.phase, label, kind, samples)


def _sample(point: _Point) -> int | float:
    if _INTEGERS.fullmatch(point.series):
        return round(max(-(2.0**53), min(point.value, 2.0**53)))
    return max(-LARGEST_FLOAT, min(point.value, LARGEST_FLOAT))
