"""Allocator, driver and Metal readings are named after the right card; unreported values are absent, never zero."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pynvml as real
import pytest
from benchmarks.client.gpu import main
from tests.probes.cards import CONTAINER_NAMESPACE, DATA, Machine, Play, enter_namespace, play

from leakline.probes.gpu import nvml, nvml_library, torch_devices
from leakline.probes.gpu.device_mapping import visible_entries
from leakline.probes.gpu.nvml import read_nvml
from leakline.probes.gpu.torch_devices import read_cuda, read_mps, read_pinned

__all__ = ["play"]
GIB = 2**30
ROOT = Path(__file__).parents[2]
MACHINES = sorted(path.stem.removeprefix("gpu_") for path in DATA.glob("gpu_*.json"))
MEMORY, PROCESSES = "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses_v3"


def read() -> Mapping[str, float]:
    return {**read_cuda(), **read_nvml()}


def of(prefix: str, samples: Mapping[str, float]) -> Mapping[str, float]:
    return {name: value for name, value in samples.items() if name.startswith(prefix)}


@pytest.fixture
def two(play: Play) -> Callable[[Callable[[Any], object]], Machine]:
    """Return a function that starts a machine with two cards after applying a change."""

    def start(change: Callable[[Any], object] = lambda told: None) -> Machine:
        machine = Machine("two_h200")
        change(machine.told)
        return play(machine)

    return start


Two = Callable[..., Machine]


def enter_container(
    patch: pytest.MonkeyPatch, folder: Path, visible: tuple[int, ...] | None = None
) -> None:
    (folder / "in").mkdir()
    enter_namespace(CONTAINER_NAMESPACE, visible or (1, os.getpid()), patch, folder / "in")


@pytest.mark.parametrize("name", MACHINES)
def test_each_machine_gives_exactly_its_expected_readings(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, play: Play
) -> None:
    machine = play(Machine(name))
    if name == "rtx4090_in_a_container":
        enter_container(monkeypatch, tmp_path)
    assert read() == machine.expected
    assert read() == machine.expected


def test_a_device_without_a_context_is_not_queried_and_not_zero(play: Play) -> None:
    play(Machine("eight_visible_3_1"))
    assert of("cuda.1.", read()) == of("gpu.1.", read()) == {}


@pytest.mark.parametrize("change", [{"initialised": False}, {"backend": "pluggable"}], ids=str)
def test_uninitialized_cuda_and_pluggable_allocators_are_not_queried(
    change: dict[str, Any], two: Two
) -> None:
    machine = two(lambda told: told["torch"].update(change))
    # The module raises on every question that would initialize CUDA; in a forked child the result is the same.
    assert of("cuda.", read()) == {}
    assert read()["gpu.0.process_bytes"] == machine.expected["gpu.0.process_bytes"] > 0
    assert "gpu.0.outside_bytes" not in read()


def test_a_partly_imported_or_mocked_torch_is_not_queried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Mock:
        def __getattr__(self, name: str) -> None:
            raise AssertionError(f"asked for {name}")

    for stand_in in (ModuleType, lambda name: Mock()):
        for name in ("torch.cuda", "torch.mps"):
            monkeypatch.setitem(sys.modules, name, stand_in(name))  # type: ignore[arg-type]
        assert read_cuda() == read_mps() == {}


def test_without_torch_there_are_no_cuda_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "torch.cuda", "torch.mps"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert read_cuda() == read_mps() == {}
    assert "torch" not in sys.modules


def test_the_installed_torch_is_not_queried_before_cuda_starts() -> None:
    import torch

    assert read_cuda() == {}
    assert not torch.cuda.is_initialized()
    for name in ("is_initialized", "device_count", "memory_stats_as_nested_dict", "_is_in_bad_fork",
                 "get_device_properties", "get_allocator_backend"):  # fmt: skip
        assert name in vars(torch.cuda), name
    assert "is_available" in vars(torch.backends.mps)
    assert {*torch_devices._QUESTIONS.values(), "_is_in_bad_fork"} <= set(vars(torch.mps))


def test_counters_missing_from_an_allocator_are_absent(two: Two) -> None:
    two(lambda told: told["torch"].update(backend="cudaMallocAsync"))
    found = of("cuda.0.", read())
    assert set(found) == {f"cuda.0.{name}_bytes" for name in ("allocated", "reserved", "active")}


def test_a_torch_with_fewer_counters_reports_the_others(two: Two) -> None:
    two(lambda told: told["torch"]["devices"][0]["memory_stats"].pop("num_ooms"))
    assert "cuda.0.ooms" not in read() and "cuda.0.retries" in read()


def test_memory_outside_the_allocator_is_never_below_zero(two: Two) -> None:
    two(lambda told: told["nvml"][0]["processes"][0].update(used=GIB))
    assert read()["gpu.0.outside_bytes"] == 0


@pytest.mark.parametrize(
    "process",
    [{"pid": "own", "used": "not available"}, {"pid": "own", "used": 0}, {"pid": 4321, "used": 100 * GIB}],
    ids=["unknown", "zero", "of another process"],
)  # fmt: skip
def test_process_memory_unknown_to_the_driver_is_absent(process: dict[str, Any], two: Two) -> None:
    machine = two(lambda told: told["nvml"][0].update(processes=[process]))
    assert not {"gpu.0.process_bytes", "gpu.0.outside_bytes"} & set(read())
    assert read()["gpu.0.used_bytes"] == machine.expected["gpu.0.used_bytes"]


@pytest.mark.parametrize(
    ("listed", "ours"),
    [
        ({3000001: 5 * GIB, "own": 6 * GIB}, None),
        ({1: 2 * GIB, "own": 6 * GIB}, 6 * GIB),
        ({3000001: 5 * GIB}, 5 * GIB),
        ({3000001: 3 * GIB}, None),
        ({}, None),
    ],
    ids=[
        "a number that equals ours by chance is not ours",
        "a driver that translates the numbers is believed",
        "the only process on our device is ours",
        "a process with less than we have is another",
        "where none is listed ours is unknown",
    ],
)
def test_in_a_container_our_process_is_found_by_namespace(
    listed: dict[int | str, int],
    ours: int | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    play: Play,
) -> None:
    machine = Machine("rtx4090_in_a_container")
    machine.told["nvml"][0]["processes"] = [{"pid": p, "used": used} for p, used in listed.items()]
    play(machine)
    enter_container(monkeypatch, tmp_path)
    assert read().get("gpu.0.process_bytes") == ours


def test_a_process_in_both_lists_of_the_driver_counts_once(two: Two) -> None:
    def change(told: Any) -> None:
        first, second = told["nvml"][:2]
        first["mps_processes"] = first["processes"]
        second["mps_processes"] = second["processes"]
        second["processes"] = [{"pid": 5, "used": GIB}]

    machine = two(change)
    assert read() == machine.expected


@pytest.mark.parametrize(
    ("question", "missing"),
    [(MEMORY, {"used_bytes", "total_bytes"}), (PROCESSES, {"process_bytes", "outside_bytes"})],
)
@pytest.mark.parametrize(
    "error", ["GPU_IS_LOST", "NOT_SUPPORTED", "LIB_RM_VERSION_MISMATCH", "UNINITIALIZED"]
)
def test_a_failing_card_does_not_affect_others(
    error: str, question: str, missing: set[str], two: Two
) -> None:
    machine = two()
    assert read() == machine.expected
    machine.refuse(question, getattr(real, f"NVML_ERROR_{error}"), machine.card(0)["uuid"])
    gone = {f"gpu.0.{name}" for name in missing}
    assert read() == {name: v for name, v in machine.expected.items() if name not in gone}


@pytest.mark.parametrize("error", ["LIB_RM_VERSION_MISMATCH", "DRIVER_NOT_LOADED"])
def test_a_driver_that_fails_to_open_is_not_tried_again(error: str, two: Two) -> None:
    machine = two()
    machine.refuse("nvmlInit_v2", getattr(real, f"NVML_ERROR_{error}"))
    assert read_nvml() == {}
    assert read_nvml() == {}
    assert machine.asked == ["nvmlInit_v2"]


def test_a_driver_closed_by_the_program_is_reopened_a_few_times(two: Two) -> None:
    machine = two()
    read_nvml()
    machine.refuse(MEMORY, real.NVML_ERROR_UNINITIALIZED)
    read_nvml()
    machine.refused.clear()
    assert read() == machine.expected
    assert machine.openings <= nvml_library._OPENINGS_LIMIT
    machine.refuse(MEMORY, real.NVML_ERROR_UNINITIALIZED)
    for _ in range(5):
        read_nvml()
    assert read_nvml() == {}
    assert machine.openings == nvml_library._OPENINGS_LIMIT


@pytest.mark.parametrize("version", ["_v2", ""])
def test_older_drivers_list_processes_by_an_older_function(version: str, two: Two) -> None:
    machine = two()
    for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses"):
        newest = vars(machine.nvml).pop(f"{name}_v3")
        setattr(machine.nvml, f"{name}{version}", newest)
    assert read() == machine.expected


def test_a_driver_without_mig_reads_entire_cards(two: Two) -> None:
    machine = two()
    for name in ("nvmlDeviceGetMigMode", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
                 "nvmlDeviceGetMaxMigDeviceCount"):  # fmt: skip
        delattr(machine.nvml, name)
    assert read() == machine.expected


def test_more_processes_than_fit_the_buffer_are_all_listed(two: Two) -> None:
    crowd = [{"pid": 10_000 + i, "used": GIB} for i in range(100)]
    machine = two(lambda told: told["nvml"][0]["processes"].__setitem__(slice(0, 0), crowd))
    assert read() == machine.expected


@pytest.mark.parametrize("newest", ["_v3", "_v2", ""])
def test_a_compiled_library_is_read_as_its_header_declares_it(
    newest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the layout of the driver's structures is not checked")
    library = tmp_path / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", f"-DPROCESSES=nvmlDeviceGetComputeRunningProcesses{newest}"]
    flags += [] if newest else ["-DOLD"]
    subprocess.run(
        [compiler, *flags, "-o", library, Path(__file__).with_name("driver.c")], check=True
    )
    monkeypatch.setattr(nvml_library, "_LIBRARY", str(library))
    found = nvml_library.Driver()
    assert found.open()
    assert found.version() == "570.86.10"
    assert found.count() == 1
    card = found.card_at(0)
    assert (found.name(card), found.uuid(card)) == ("NVIDIA H100 80GB HBM3", "GPU-8932f937")
    assert found.memory(card) == (3 * GIB, 80 * GIB)
    assert not found.is_partitioned(card) and found.slices(card) == []
    assert found.compute_processes(card) == [(4321, 2 * GIB), (4322, None)]
    assert found.mps_processes(card) == []
    assert found.card_at(1) is None
    by_name = found.card_by_uuid("GPU-8932f937")
    assert by_name is not None and by_name.value == card.value


def test_handles_are_looked_up_once(two: Two) -> None:
    machine = two()
    read_nvml()
    machine.asked.clear()
    read_nvml()
    assert set(machine.asked) == {MEMORY, PROCESSES, "nvmlDeviceGetMPSComputeRunningProcesses_v3"}


def test_after_a_fork_the_driver_is_reopened_and_never_closed(play: Play) -> None:
    machine = play(Machine("workstation_mixed"))
    read_nvml()
    machine.asked.clear()
    child = os.fork()
    if child == 0:
        found = read_nvml()
        right = machine.openings == 2 and found["gpu.0.used_bytes"] == GIB
        right = right and "nvmlDeviceGetHandleByIndex_v2" in machine.asked
        os._exit(0 if right and "nvmlShutdown" not in machine.asked else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_machine_without_a_driver_has_no_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_library, "_LIBRARY", "libno-such-driver.so.1")
    monkeypatch.setattr(nvml, "_driver", nvml_library.Driver())
    assert read_nvml() == {}


def test_the_driver_of_this_machine_is_read_or_absent() -> None:
    samples = read_nvml()
    for card in {name.split(".")[1] for name in samples}:
        assert 0 <= samples[f"gpu.{card}.used_bytes"] <= samples[f"gpu.{card}.total_bytes"]


@pytest.fixture
def metal(monkeypatch: pytest.MonkeyPatch) -> dict[str, int | bool]:
    """A Metal device: change the dictionary to change its readings."""
    told: dict[str, int | bool] = {
        "available": True, "forked": False,
        "allocated": 3 * GIB, "driver": 4 * GIB, "limit": 48 * GIB,
    }  # fmt: skip
    module, backend = ModuleType("torch.mps"), ModuleType("torch.backends.mps")
    vars(backend).update(is_available=lambda: told["available"])
    vars(module).update(
        _is_in_bad_fork=lambda: told["forked"],
        current_allocated_memory=lambda: told["allocated"],
        driver_allocated_memory=lambda: told["driver"],
        recommended_max_memory=lambda: told["limit"],
    )
    monkeypatch.setitem(sys.modules, "torch.mps", module)
    monkeypatch.setitem(sys.modules, "torch.backends.mps", backend)
    monkeypatch.setattr(torch_devices, "_used", set())
    return told


def test_metal_reports_tensors_driver_and_limit(metal: dict[str, int | bool]) -> None:
    assert read_mps() == {
        "mps.allocated_bytes": 3 * GIB, "mps.driver_bytes": 4 * GIB, "mps.limit_bytes": 48 * GIB,
    }  # fmt: skip


@pytest.mark.parametrize("change", [{"available": False}, {"forked": True}, {"allocated": 0}])
def test_an_unused_metal_device_is_absent(
    change: dict[str, int | bool], metal: dict[str, int | bool]
) -> None:
    metal.update(change)
    assert read_mps() == {}


def test_an_emptied_metal_device_is_zero(metal: dict[str, int | bool]) -> None:
    read_mps()
    metal["allocated"] = 0
    assert read_mps()["mps.allocated_bytes"] == 0


def test_a_torch_without_a_limit_reports_the_rest(metal: dict[str, int | bool]) -> None:
    del sys.modules["torch.mps"].recommended_max_memory
    assert set(read_mps()) == {"mps.allocated_bytes", "mps.driver_bytes"}


# -- `make test-gpu` in full: without a GPU, and on a simulated card

# Python imports this module at startup, also in the trainings that the check starts.
SITE = """
import os, sys
if "benchmarks.client" in " ".join(sys.orig_argv):
    from pathlib import Path
    from tests.probes.simulated_cuda import hurry, install
    install(Path(os.environ["SIMULATED_CARD"]))
    hurry()
"""


def check_simulated(parts: str, folder: Path) -> dict[str, Any]:
    """Run these parts on a simulated card and return the JSON that was written."""
    site, card, results = folder / "site", folder / "card", folder / "results.json"
    site.mkdir()
    card.mkdir()
    (site / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    paths = os.pathsep.join((str(site), "agent_client", "."))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.client.gpu", "--parts", parts, "--json", str(results)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        # With more threads torch would spend the time waiting on a shared machine.
        env={**os.environ, "PYTHONPATH": paths, "SIMULATED_CARD": str(card), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
    passed = sum(each["result"] == "ok" for each in found["checks"])
    assert done.stdout.splitlines()[-1] == f"{passed} passed, 0 failed"
    return found


def test_without_a_gpu_no_check_passes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    monkeypatch.setattr(torch.version, "cuda", None)
    assert main([]) == 77
    assert capsys.readouterr().out == "no NVIDIA GPU found: nothing was checked\n"


@pytest.mark.long
@pytest.mark.flow
def test_known_allocations_are_read_on_a_simulated_card(tmp_path: Path) -> None:
    found = check_simulated("readings", tmp_path)
    assert found["card"] == "Simulated GPU" and found["driver"] == "570.86.10"
    assert found["figures"]["pinned_resident_bytes"]["RssAnon"] >= 250 * 2**20
    assert {"read_cuda", "read_nvml"} == set(found["figures"]["microseconds"])
    assert len(found["checks"]) >= 35


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_trainings_are_judged_on_a_simulated_card(tmp_path: Path) -> None:
    found = check_simulated("trainings", tmp_path)
    assert {name for name, findings in found["figures"]["findings"].items() if findings} >= {
        "leak",
        "fragmented",
        "pinned",
    }


# -- device i of the process maps to the card that CUDA uses; if that cannot be known, to no card


A100 = "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f"
FIFTH = "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb04"


def cards(patch: pytest.MonkeyPatch, machine: Machine, visible: str | None) -> dict[int, str]:
    """Return device -> UUID of its card."""
    if visible is None:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        patch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert nvml._driver.open()
    return {index: machine.part(card)["uuid"] for index, card in nvml._cards.handles().items()}


def without_torch(name: str) -> Machine:
    machine = Machine(name)
    del machine.told["torch"]
    machine.modules.clear()
    return machine


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", []),
        ("0", [0]),
        (" 2 ,0", [2, 0]),
        ("1gpu2,2ampere", [1, 2]),
        ("+1", [1]),
        ("-1", []),
        ("0,-1,1", [0]),
        ("0,,1", [0]),
        ("0,1,0", []),
        ("NoDevFiles", []),
        ("0,GPU-8932f937", [0]),
        ("GPU-8932f937,0", ["GPU-8932f937"]),
        ("GPU-a,MIG-b,GPU-c", ["GPU-a"]),
        ("MIG-a,MIG-b", ["MIG-a", "MIG-b"]),
        ("MIG-GPU-a/7/0", ["MIG-GPU-a/7/0"]),
    ],
)
def test_visible_devices_are_parsed_as_by_cuda(text: str, entries: list[Any]) -> None:
    assert visible_entries(text) == entries


@pytest.mark.parametrize(
    "text", ["", "0,2", "1gpu2,2", "0,-1,1", "0,0", "0,,1", "NoDevFiles", "GPU-a,GPU-b", "GPU-a,1", "MIG-a,MIG-b"]
)  # fmt: skip
def test_the_installed_torch_parses_visible_devices_as_we_do(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    assert visible_entries(text) == torch.cuda._parse_visible_devices()


@pytest.mark.parametrize(
    ("visible", "numbers"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("", []),
        ("3,1", [3, 1]),
        ("1,9,0", [1]),
        ("2,2", []),
        ("GPU-2c3d5e7f-1a2b-4c5d-8e6f-0123456789a2,GPU-0", [2, 0]),
        # Matches all eight; matches none; the same card under two names.
        ("GPU-", []),
        ("GPU-1,GPU-f,GPU-2", [1]),
        ("GPU-1c,GPU-1", []),
    ],
)
def test_cards_are_numbered_as_the_process_sees_them(
    visible: str | None, numbers: list[int], monkeypatch: pytest.MonkeyPatch, play: Play
) -> None:
    machine = play(without_torch("eight_visible_3_1"))
    found = cards(monkeypatch, machine, visible)
    assert found == {i: machine.card(number)["uuid"] for i, number in enumerate(numbers)}


def test_visible_devices_changed_before_cuda_starts_are_read_again(
    monkeypatch: pytest.MonkeyPatch, play: Play
) -> None:
    machine = play(without_torch("eight_visible_3_1"))
    assert cards(monkeypatch, machine, "4") == {0: machine.card(4)["uuid"]}
    assert cards(monkeypatch, machine, "5,6") == {i: machine.card(5 + i)["uuid"] for i in range(2)}


def test_a_device_is_mapped_once_the_program_uses_it(
    monkeypatch: pytest.MonkeyPatch, play: Play
) -> None:
    machine = play(Machine("eight_visible_3_1"))
    assert list(cards(monkeypatch, machine, "3,1")) == [0]
    machine.told["torch"]["devices"][1]["context"] = True
    both = {0: machine.card(3)["uuid"], 1: machine.card(1)["uuid"]}
    assert cards(monkeypatch, machine, "3,1") == both
    # Set for child processes, after this one initialized CUDA.
    assert cards(monkeypatch, machine, "6") == both


def test_without_uuids_from_torch_the_environment_decides(
    monkeypatch: pytest.MonkeyPatch, play: Play
) -> None:
    machine = Machine("eight_visible_3_1")
    for device in machine.told["torch"]["devices"]:
        device["uuid"] = None
    play(machine)
    assert cards(monkeypatch, machine, "3,1") == {0: machine.card(3)["uuid"]}


def test_the_order_of_unequal_cards_by_speed_is_not_guessed(
    monkeypatch: pytest.MonkeyPatch, play: Play
) -> None:
    machine = play(Machine("workstation_mixed"))
    slow, fast = (machine.card(i)["uuid"] for i in range(2))
    assert cards(monkeypatch, machine, None) == {0: slow, 1: fast}
    assert cards(monkeypatch, machine, "1,0") == {0: fast, 1: slow}
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert cards(monkeypatch, machine, None) == cards(monkeypatch, machine, "0") == {}
    assert cards(monkeypatch, machine, fast) == {0: fast}
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    assert cards(monkeypatch, machine, None) == {}


def test_an_inaccessible_card_leaves_device_numbers_unknown(
    monkeypatch: pytest.MonkeyPatch, play: Play
) -> None:
    machine = play(without_torch("eight_visible_3_1"))
    known = machine.nvml.nvmlDeviceGetHandleByIndex_v2

    def third_is_kept(index: Any, handle: Any) -> int:
        return real.NVML_ERROR_NO_PERMISSION if index.value == 2 else int(known(index, handle))

    machine.nvml.nvmlDeviceGetHandleByIndex_v2 = third_is_kept
    assert cards(monkeypatch, machine, "4") == {}
    named = machine.card(4)["uuid"]
    assert cards(monkeypatch, machine, named) == {0: named}


@pytest.mark.parametrize(
    ("visible", "slices"),
    [
        (FIFTH, [4]),
        # Of several, CUDA takes the first. An abbreviation matches all seven.
        (f"{FIFTH[:-1]}2,{FIFTH}", [2]),
        ("MIG-c6d4", []),
        ("MIG-ffff", []),
        # Format of drivers before 470: card, GPU instance, compute instance.
        (f"MIG-{A100}/8/0", [1]),
        (f"MIG-{A100}/8/1", []),
        ("MIG-GPU-ffffffff/8/0", []),
        # CUDA takes one of the seven slices, and it is unknown which.
        (None, []),
        ("0", []),
        (A100, []),
        ("", []),
    ],
)
def test_a_slice_is_found_by_each_of_its_names(
    visible: str | None, slices: list[int], monkeypatch: pytest.MonkeyPatch, play: Play
) -> None:
    machine = play(without_torch("a100_seven_slices"))
    found = cards(monkeypatch, machine, visible)
    assert list(found.values()) == [machine.card(0)["slices"][i]["uuid"] for i in slices]


@pytest.mark.parametrize("visible", [None, "0"])
def test_the_only_slice_of_the_only_card_is_the_device(
    visible: str | None, monkeypatch: pytest.MonkeyPatch, play: Play
) -> None:
    machine = without_torch("a100_seven_slices")
    machine.told["nvml"][0]["slices"] = machine.told["nvml"][0]["slices"][4:5]
    play(machine)
    assert cards(monkeypatch, machine, visible) == {0: FIFTH}


def test_a_slice_is_found_if_torch_reports_only_its_card(
    monkeypatch: pytest.MonkeyPatch, play: Play
) -> None:
    machine = Machine("a100_seven_slices")
    machine.told["torch"]["devices"][0]["uuid"] = A100.removeprefix("GPU-")
    play(machine)
    assert cards(monkeypatch, machine, FIFTH) == {0: FIFTH}
    assert read_nvml()["gpu.0.total_bytes"] == machine.card(0)["slices"][4]["total"]


def test_a_rocm_device_is_not_mapped_to_an_nvidia_card(play: Play) -> None:
    machine = Machine("mi300x")
    machine.told["nvml"] = Machine("workstation_mixed").told["nvml"]
    play(machine)
    assert read_nvml() == {}


@pytest.mark.parametrize(
    ("statistics", "expected"),
    [
        ({"active_bytes.current": 4, "allocated_bytes.current": 8}, (4, 8)),
        ({"allocated_bytes.current": 4, "reserved_bytes.current": 8}, (4, 8)),
        ({}, None),
    ],
    ids=["newer torch", "older torch", "nothing reported"],
)
def test_pinned_memory_is_read_by_the_documented_names(
    statistics: dict[str, int], expected: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use a module with the documented interface; this is not a test on a GPU."""
    asked = []
    cuda: Any = ModuleType("torch.cuda")
    cuda.is_initialized = lambda: False
    cuda.host_memory_stats = lambda: asked.append(1) or statistics
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    assert read_pinned() == {}
    assert not asked, "before the program has initialised CUDA, nothing is asked"
    cuda.is_initialized = lambda: True
    names = ("pinned.allocated_bytes", "pinned.reserved_bytes")
    assert read_pinned() == ({} if expected is None else dict(zip(names, expected, strict=True)))
    del cuda.host_memory_stats
    assert read_pinned() == {}, "an older torch"
