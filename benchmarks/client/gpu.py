"""Check the client on a real NVIDIA GPU: `make test-gpu`.

    PYTHONPATH=agent_client:. python3 -m benchmarks.client.gpu [--json FILE]

Needs Linux, one NVIDIA GPU with 6 GiB free, and a Python with torch; no network and no other package. Takes less
than eight minutes. docs/memory.md explains the metrics. Each line shows the step, the expected range, the reading and
the verdict: ok, FAIL, or "not known" where the driver does not report the value (in most containers it lists no
processes).

Exit status: 0 all passed, 1 something failed, 77 no NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from leakline.analysis import examine
from leakline.analysis.results import Finding, Verdict
from leakline.analysis.run_history import RunHistory
from leakline.probes.gpu.nvml import read_nvml
from leakline.probes.gpu.nvml_library import Driver
from leakline.probes.gpu.torch_devices import read_cuda
from leakline.report import load, spools_by_run

from .gpu_programs import DEVICE, LEAK_BYTES, MIB, PROGRAMS, REST
from .timing import ratio_interval

GIB: Final = 2**30
ROOT: Final = Path(__file__).resolve().parents[2]
# automake and others use this status for a skipped test.
NO_GPU: Final = 77
# torch rounds requests up to 512 bytes and requests blocks of 2 or 20 MiB from the driver, which allocates 2 MiB
# pages.
ROUNDING: Final = 2 * MIB
# Kernels loaded on first use also need memory, outside the allocator.
MODULES: Final = 64 * MIB
# Size of a CUDA context with current GPUs and drivers.
CONTEXT: Final = (64 * MIB, 4 * GIB)
# Between 1 and 10 MiB, so that torch cuts five of them from one block of 20 MiB.
PIECE: Final = 4 * MIB
PIECES: Final = 250
BLOCK: Final = 20 * MIB
PINNED: Final = 256 * MIB
NEIGHBOUR: Final = 512 * MIB
CALLS: Final = 200
PARTS: Final = ("readings", "trainings", "overhead")
PAIRS: Final = 6
# Largest ratio of training time with and without the client; the lower end of the interval is compared.
MOST_OVERHEAD: Final = 1.05
CHILD_SECONDS: Final = 120
# No pair of the overhead part starts later than this.
BEGIN_SECONDS: Final = 360
# Absent where the driver lists no processes, or lists them by PIDs of another namespace.
MAY_BE_ABSENT: Final = ("gpu.0.process_bytes", "gpu.0.outside_bytes")
RESIDENT: Final = ("RssAnon", "RssFile", "RssShmem")
# Tolerance for the growth per generation, as a share.
OFF: Final = 0.2
LEAKS: Final = ("suspected", "confirmed")
OF_THE_DEVICE: Final = ("gpu", "gpu_fragmentation")


@dataclass(frozen=True, slots=True)
class Check:
    """A reading that must be between ``low`` and ``high``; None (not known) is allowed only with ``may_be_absent``."""

    what: str
    low: float
    high: float
    read: float | None
    may_be_absent: bool = False

    @property
    def result(self) -> str:
        if self.read is None:
            return "not known" if self.may_be_absent else "FAIL"
        return "ok" if self.low <= self.read <= self.high else "FAIL"

    def __str__(self) -> str:
        read = "-" if self.read is None else _number(self.read)
        return f"{self.result:<10}{self.what:<64}{_number(self.low):>16} {_number(self.high):>16} {read:>16}"


def _number(value: float) -> str:
    return f"{value:,.3f}" if abs(value) < 10 and value != round(value) else f"{value:,.0f}"


# Measured values that are not checked.
FIGURES: Final[dict[str, Any]] = {}


class Readings:
    """The readings of device 0 and their change since the last step."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.what = ""
        self.now = self.before = self._read()

    def step(self, what: str) -> None:
        self._torch.cuda.synchronize()
        self.what = what
        self.before, self.now = self.now, self._read()

    def level(self, series: str, low: float, high: float) -> Check:
        return Check(
            f"CUDA in use: {series}", low, high, self.now.get(series), series in MAY_BE_ABSENT
        )

    def grew(self, series: str, by: float, off: float = 0) -> Check:
        """Check the change since the previous step, in bytes or failures."""
        return Check(
            f"{self.what}: {series}",
            by - off,
            by + off,
            self.change(series),
            series in MAY_BE_ABSENT,
        )

    def change(self, series: str) -> float | None:
        known = series in self.now and series in self.before
        return self.now[series] - self.before[series] if known else None

    def _read(self) -> dict[str, float]:
        return {**read_cuda(), **read_nvml()}


def readings_of(torch: Any) -> Iterator[Check]:
    """Check the readings of known allocations. CUDA must not be in use yet."""
    yield from _before_cuda(torch)
    torch.zeros(1, device=DEVICE)
    readings = Readings(torch)
    yield from _in_use(torch, readings)
    yield from _four_tensors(torch, readings)
    yield from _fragments(torch, readings)
    yield from _outside_the_allocator(readings)
    yield from _too_much(torch, readings)
    yield from _pinned(torch)
    yield from _second_process(readings)
    yield _in_a_forked_child()
    FIGURES["microseconds"] = {
        each.__name__: round(_microseconds(each), 1) for each in (read_cuda, read_nvml)
    }


def _before_cuda(torch: Any) -> Iterator[Check]:
    yield Check("CUDA not in use: series of cuda", 0, 0, len(read_cuda()))
    yield Check("CUDA not in use: series of the driver", 2, 4 * 16, len(read_nvml()))
    yield Check("CUDA initialised by the probes", 0, 0, int(torch.cuda.is_initialized()))


def _in_use(torch: Any, readings: Readings) -> Iterator[Check]:
    total = torch.cuda.get_device_properties(0).total_memory
    free, seen = torch.cuda.mem_get_info(0)
    # torch's total excludes memory reserved by the driver.
    yield readings.level("gpu.0.total_bytes", total, 1.05 * total)
    yield readings.level("gpu.0.used_bytes", seen - free - MODULES, seen - free + 0.05 * seen)
    yield readings.level("gpu.0.outside_bytes", *CONTEXT)
    others = [name for name in readings.now if name.split(".")[1] != "0"]
    yield Check("CUDA in use: series of devices that are not in use", 0, 0, len(others))


def _four_tensors(torch: Any, readings: Readings) -> Iterator[Check]:
    kept = [torch.empty(GIB // 4, dtype=torch.uint8, device=DEVICE) for _ in range(4)]
    readings.step("1 GiB in 4 tensors")
    for name in ("allocated", "active", "reserved"):
        yield readings.grew(f"cuda.0.{name}_bytes", GIB, 4 * ROUNDING)
    yield readings.grew("gpu.0.process_bytes", GIB, MODULES)
    yield readings.grew("gpu.0.outside_bytes", 0, MODULES)
    kept.clear()
    readings.step("tensors dropped")
    yield readings.grew("cuda.0.allocated_bytes", -GIB, 4 * ROUNDING)
    yield readings.grew("cuda.0.reserved_bytes", 0)
    torch.cuda.empty_cache()
    readings.step("cache emptied")
    yield readings.grew("cuda.0.reserved_bytes", -GIB, 4 * ROUNDING)
    yield readings.grew("gpu.0.process_bytes", -GIB, MODULES)


def _fragments(torch: Any, readings: Readings) -> Iterator[Check]:
    pieces = [torch.empty(PIECE, dtype=torch.uint8, device=DEVICE) for _ in range(PIECES)]
    readings.step("250 pieces of 4 MiB")
    yield readings.grew("cuda.0.allocated_bytes", PIECES * PIECE, ROUNDING)
    del pieces[::2]
    readings.step("every second piece dropped")
    half = PIECES // 2 * PIECE
    yield readings.grew("cuda.0.allocated_bytes", -half, ROUNDING)
    yield readings.grew("cuda.0.inactive_split_bytes", half, BLOCK)
    yield readings.grew("cuda.0.reserved_bytes", 0)
    torch.cuda.empty_cache()
    readings.step("cache emptied, fragments stay")
    yield readings.grew("cuda.0.reserved_bytes", 0, BLOCK)
    pieces.clear()
    torch.cuda.empty_cache()
    readings.step("pieces dropped")
    yield readings.grew("cuda.0.reserved_bytes", -PIECES * PIECE, BLOCK)


def _outside_the_allocator(readings: Readings) -> Iterator[Check]:
    """Allocate 512 MiB from the driver directly, as libraries do."""
    driver, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
    code = driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(GIB // 2))
    yield Check("512 MiB from the driver: return code", 0, 0, code)
    readings.step("512 MiB from the driver")
    yield readings.grew("cuda.0.reserved_bytes", 0)
    yield readings.grew("gpu.0.outside_bytes", GIB // 2, ROUNDING)
    yield readings.grew("gpu.0.used_bytes", GIB // 2, MODULES)
    driver.cuMemFree_v2(address)
    readings.step("given back")
    yield readings.grew("gpu.0.outside_bytes", -GIB // 2, ROUNDING)


def _too_much(torch: Any, readings: Readings) -> Iterator[Check]:
    """With a limit of 2 GiB, request a size that fits once the cache is emptied, and one that never fits."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(2 * GIB / total, 0)
    cached = torch.empty(GIB, dtype=torch.uint8, device=DEVICE)
    del cached
    fits = torch.empty(GIB + GIB // 2, dtype=torch.uint8, device=DEVICE)
    readings.step("fits once the cache is emptied")
    yield readings.grew("cuda.0.retries", 1)
    yield readings.grew("cuda.0.ooms", 0)
    with suppress(RuntimeError):
        torch.empty(4 * GIB, dtype=torch.uint8, device=DEVICE)
    readings.step("never fits")
    yield readings.grew("cuda.0.ooms", 1)
    del fits
    torch.cuda.set_per_process_memory_fraction(1.0, 0)
    torch.cuda.empty_cache()


def _pinned(torch: Any) -> Iterator[Check]:
    """Pin host memory, write to it, and check where the kernel accounts for it."""
    before = _resident()
    page_locked = torch.empty(PINNED, dtype=torch.uint8, pin_memory=True)
    page_locked.fill_(1)
    now = _resident()
    FIGURES["pinned_resident_bytes"] = {name: now[name] - before[name] for name in RESIDENT}
    grown = sum(now.values()) - sum(before.values())
    yield Check("256 MiB pinned: resident memory", 0.95 * PINNED, 1.1 * PINNED + MODULES, grown)
    yield Check("256 MiB pinned: is pinned", 1, 1, int(page_locked.is_pinned()))


def _resident() -> dict[str, int]:
    """Return the three parts of resident memory in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    found = (line.split() for line in lines)
    sizes = {words[0].rstrip(":"): 1024 * int(words[1]) for words in found if words[-1:] == ["kB"]}
    return {name: sizes.get(name, 0) for name in RESIDENT}


def _second_process(readings: Readings) -> Iterator[Check]:
    """Let another process allocate memory on the same GPU."""
    readings.step("before a second process")
    with _neighbour("hold", str(NEIGHBOUR)):
        readings.step("512 MiB in a second process")
        # The other process's context is included.
        yield Check(
            f"{readings.what}: gpu.0.used_bytes", NEIGHBOUR, NEIGHBOUR + CONTEXT[1], readings.change("gpu.0.used_bytes")
        )  # fmt: skip
        for series in ("cuda.0.allocated_bytes", "cuda.0.reserved_bytes", "gpu.0.process_bytes"):
            yield readings.grew(series, 0)
    readings.step("second process ended")
    yield Check(
        f"{readings.what}: gpu.0.used_bytes", -NEIGHBOUR - CONTEXT[1], -NEIGHBOUR, readings.change("gpu.0.used_bytes")
    )  # fmt: skip


def _in_a_forked_child() -> Check:
    """Check that a forked child without CUDA reports no series of the parent's allocator."""
    child = os.fork()
    if child == 0:
        mine = [
            name for name in (*read_cuda(), *read_nvml()) if "process" in name or "cuda" in name
        ]
        os._exit(len(mine))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Check("forked child: series of a process on the device", 0, 0, code)


def check_leak(verdict: Verdict, rate: float = LEAK_BYTES) -> list[Check]:
    """Check the verdict on tensors kept in a replay buffer on the device."""
    found = [f for f in _leaks(verdict) if f.kind == "gpu"]
    named = [f for f in found if any(s.name.endswith("Tensor") for s in f.suspects)]
    growth = [f.growth_bytes_per_generation.estimate for f in found if f.phase == "collect"]
    return [
        Check("leak: findings of device memory", 1, 1, len(found)),
        Check("leak: of them those that name Tensor", 1, 1, len(named)),
        Check("leak: growth in its phase per generation", (1 - OFF) * rate, (1 + OFF) * rate, sum(growth)),
        *_none("leak", verdict, ("gpu_fragmentation",)),
    ]  # fmt: skip


def check_fragmentation(verdict: Verdict, rate: float = REST) -> list[Check]:
    """Check the verdict on reserved memory that grows while allocated memory does not."""
    found = [f for f in _leaks(verdict) if f.kind == "gpu_fragmentation"]
    growth = [f.growth_bytes_per_generation.estimate for f in found if f.phase == "collect"]
    return [
        Check("fragmented: findings of fragmentation", 1, 1, len(found)),
        Check("fragmented: growth in its phase per generation", (1 - OFF) * rate, (1 + OFF) * rate, sum(growth)),
        *_none("fragmented", verdict, ("gpu",)),
    ]  # fmt: skip


def check_healthy(name: str, verdict: Verdict) -> list[Check]:
    """Check that there are no findings for a device whose memory is bounded, cached, or used by another process."""
    return _none(name, verdict, OF_THE_DEVICE)


def check_pinned(verdict: Verdict) -> list[Check]:
    """Check the verdict on pinned host memory that is kept: a leak of tensors, not of the device."""
    named = [
        f for f in _leaks(verdict) if f.phase == "collect" and any(s.name.endswith("Tensor") for s in f.suspects)
    ]  # fmt: skip
    return [
        Check("pinned: findings that name Tensor", 1, 2, len(named)),
        *_none("pinned", verdict, OF_THE_DEVICE),
    ]


def _leaks(verdict: Verdict) -> list[Finding]:
    return [f for f in verdict.findings if f.status in LEAKS]


def _none(name: str, verdict: Verdict, kinds: Sequence[str]) -> list[Check]:
    found = [f for f in _leaks(verdict) if f.kind in kinds]
    return [Check(f"{name}: false findings of the device", 0, 0, len(found))]


def check_series(name: str, history: RunHistory) -> list[Check]:
    """Check that the device's series were recorded: without them, no verdict could be called healthy."""
    recorded = {series for process in history.processes for series in process.series}
    wanted = ("cuda.0.allocated_bytes", "cuda.0.reserved_bytes", "gpu.0.used_bytes")
    return [Check(f"{name}: series recorded", 3, 3, len(recorded & set(wanted)))]


VERDICTS: Final[Mapping[str, Callable[[Verdict], list[Check]]]] = {
    "leak": check_leak,
    "fragmented": check_fragmentation,
    "pinned": check_pinned,
}


def trainings() -> Iterator[Check]:
    """Record every program with the client, analyse its spool, and check the verdict."""
    for name in PROGRAMS:
        with tempfile.TemporaryDirectory() as folder:
            if name == "neighbour":
                with _neighbour("grow"):
                    done = _finished(name, folder)
            else:
                done = _finished(name, folder)
            yield Check(f"{name}: exit status", 0, 0, done.returncode)
            if done.returncode:
                print(done.stderr[-2000:], file=sys.stderr)
                continue
            (spools,) = spools_by_run(Path(folder))
            history = load(spools).history
        verdict = examine(history)
        FIGURES.setdefault("findings", {})[name] = [_described(f) for f in verdict.findings]
        yield from check_series(name, history)
        check = VERDICTS.get(name)
        yield from check(verdict) if check else check_healthy(name, verdict)


def _described(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind, "status": finding.status, "phase": finding.phase,
        "types": [each.name for each in finding.suspects],
        "bytes_per_generation": round(finding.growth_bytes_per_generation.estimate),
    }  # fmt: skip


def overhead(begin_before: float) -> Iterator[Check]:
    """Time a training with and without the client in pairs; which one of a pair runs first alternates."""
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    for pair in range(PAIRS):
        if pair >= 2 and time.monotonic() > begin_before:
            break
        for how in ("without", "with") if pair % 2 else ("with", "without"):
            with tempfile.TemporaryDirectory() as folder:
                done = _finished("measure", folder, how)
            line = done.stdout.strip().rpartition("\n")[2]
            if done.returncode or not line.startswith("seconds "):
                print(done.stderr[-2000:], file=sys.stderr)
                yield Check(f"overhead: exit status {how} the client", 0, 0, done.returncode or 1)
                return
            seconds[how].append(float(line.split()[1]))
    ratio = ratio_interval(seconds["with"], seconds["without"])
    FIGURES["overhead"] = {**seconds, "ratio": asdict(ratio)}
    low = ratio.middle if ratio.low is None else ratio.low
    yield Check("overhead: time with the client / without, lower end", 0, MOST_OVERHEAD, low)


def _finished(program: str, folder: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = _command(program, *arguments)
    try:
        return subprocess.run(
            command, cwd=ROOT, env=_environment(folder), capture_output=True, text=True,
            timeout=CHILD_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        # The status that timeout(1) uses. The other programs still run.
        return subprocess.CompletedProcess(
            command, 124, "", f"{program}: not done after {CHILD_SECONDS} s"
        )


@contextmanager
def _neighbour(*arguments: str) -> Iterator[None]:
    """Run another process on the GPU; enter the block once it has allocated its memory."""
    child = subprocess.Popen(
        _command(*arguments), cwd=ROOT, env=_environment(""),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        if child.stdout.readline() != "ready\n":
            raise SystemExit("the second process on the card did not start")
        yield
    finally:
        child.kill()
        child.communicate()
        # The driver frees its memory a moment later.
        time.sleep(1)


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.client.gpu_programs", *arguments]


def _environment(folder: str) -> dict[str, str]:
    """Return the environment without our settings and torch's allocator settings, which would affect results."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("LEAKLINE_") and name not in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    }  # fmt: skip
    return {**kept, "LEAKLINE_DIR": folder} if folder else kept


def _microseconds(read: Callable[[], object]) -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        read()
    return 1e6 * (time.perf_counter() - started) / CALLS


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parts", default=",".join(PARTS), help="default: %(default)s")
    parser.add_argument(
        "--json", type=Path, help="write card, driver, torch, checks and figures here"
    )
    options = parser.parse_args(arguments)
    started = time.monotonic()
    torch = _torch()
    if torch is None:
        print("no NVIDIA GPU found: nothing was checked")
        return NO_GPU
    checks: list[Check] = []
    print(f"{'':<10}{'step: figure':<64}{'at least':>16} {'at most':>16} {'read':>16}")
    parts: Mapping[str, Callable[[], Iterator[Check]]] = {
        "readings": lambda: readings_of(torch),
        "trainings": trainings,
        "overhead": lambda: overhead(started + BEGIN_SECONDS),
    }
    for name in options.parts.split(","):
        for check in _guarded(parts[name]):
            checks.append(check)
            print(check, flush=True)
    machine = _machine(torch)
    for name, value in {**machine, **FIGURES}.items():
        print(f"{name}: {json.dumps(value)}")
    if options.json is not None:
        found = [{**asdict(check), "result": check.result} for check in checks]
        whole = {
            **machine,
            "seconds": round(time.monotonic() - started),
            "figures": FIGURES,
            "checks": found,
        }
        options.json.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    return conclude(checks)


def conclude(checks: Iterable[Check]) -> int:
    """Print how many checks passed and failed, and return the exit status."""
    results = [check.result for check in checks]
    unknown = results.count("not known")
    if unknown:
        print(f"{unknown} not known: the driver does not list the processes on the card")
    failed = results.count("FAIL")
    print(f"{results.count('ok')} passed, {failed} failed")
    return 1 if failed or "ok" not in results else 0


def _guarded(part: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """Yield the checks of a part; if it raises, report a failed check so that the next part still runs."""
    try:
        yield from part()
    except (Exception, SystemExit) as error:  # noqa: BLE001
        what = str(error).partition("\n")[0][:60]
        yield Check(f"{type(error).__name__}: {what}", 0, 0, None)


def _torch() -> Any | None:
    """Return torch if it can use an NVIDIA GPU. Does not initialise CUDA: the first checks need it unused."""
    try:
        import torch
    except ImportError:
        return None
    if torch.version.cuda is None or not torch.cuda.device_count():
        return None
    return torch


def _machine(torch: Any) -> dict[str, Any]:
    driver = Driver()
    namespace = Path("/proc/self/ns/pid")
    return {
        "card": torch.cuda.get_device_name(0), "driver": driver.version() if driver.open() else None,
        "torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version(),
        "kernel": platform.release(), "processes": str(namespace.readlink()) if namespace.is_symlink() else None,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
