"""Device ``i`` of the process is the card that CUDA means; where that cannot be known, it is no card."""

from __future__ import annotations

from typing import Any

import pynvml as real
import pytest
from tests.probes.cards import Machine, Play, play

from leakline.probes.gpu import nvml
from leakline.probes.gpu.device_mapping import visible_entries
from leakline.probes.gpu.nvml import read_nvml

__all__ = ["play"]
A100 = "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f"
FIFTH = "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb04"


def cards(patch: pytest.MonkeyPatch, machine: Machine, visible: str | None) -> dict[int, str]:
    """Device -> UUID of its card."""
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
def test_the_environment_is_read_as_cuda_reads_it(text: str, entries: list[Any]) -> None:
    assert visible_entries(text) == entries


@pytest.mark.parametrize(
    "text", ["", "0,2", "1gpu2,2", "0,-1,1", "0,0", "0,,1", "NoDevFiles", "GPU-a,GPU-b", "GPU-a,1", "MIG-a,MIG-b"]
)  # fmt: skip
def test_the_installed_torch_reads_the_environment_as_we_do(
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
        # Fits all eight; fits none; the same card under two names.
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


def test_an_environment_that_changes_before_cuda_wakes_is_read_anew(
    monkeypatch: pytest.MonkeyPatch, play: Play
) -> None:
    machine = play(without_torch("eight_visible_3_1"))
    assert cards(monkeypatch, machine, "4") == {0: machine.card(4)["uuid"]}
    assert cards(monkeypatch, machine, "5,6") == {i: machine.card(5 + i)["uuid"] for i in range(2)}


def test_a_device_joins_when_the_program_begins_to_use_it_and_torch_says_which_card_it_is(
    monkeypatch: pytest.MonkeyPatch, play: Play
) -> None:
    machine = play(Machine("eight_visible_3_1"))
    assert list(cards(monkeypatch, machine, "3,1")) == [0]
    machine.told["torch"]["devices"][1]["context"] = True
    both = {0: machine.card(3)["uuid"], 1: machine.card(1)["uuid"]}
    assert cards(monkeypatch, machine, "3,1") == both
    # Set for child processes, after this one woke CUDA.
    assert cards(monkeypatch, machine, "6") == both


def test_a_torch_that_does_not_know_names_goes_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, play: Play
) -> None:
    machine = Machine("eight_visible_3_1")
    for device in machine.told["torch"]["devices"]:
        device["uuid"] = None
    play(machine)
    assert cards(monkeypatch, machine, "3,1") == {0: machine.card(3)["uuid"]}


def test_fastest_first_among_unlike_cards_is_not_guessed(
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


def test_a_card_that_is_kept_from_us_leaves_the_numbers_unknown(
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
        # Of several, CUDA takes the first. An abbreviation fits all seven.
        (f"{FIFTH[:-1]}2,{FIFTH}", [2]),
        ("MIG-c6d4", []),
        ("MIG-ffff", []),
        # Drivers before 470: card, GPU instance, compute instance.
        (f"MIG-{A100}/8/0", [1]),
        (f"MIG-{A100}/8/1", []),
        ("MIG-GPU-ffffffff/8/0", []),
        # CUDA takes one of seven, and nobody says which.
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


def test_a_slice_is_found_when_torch_tells_the_name_of_the_whole_card(
    monkeypatch: pytest.MonkeyPatch, play: Play
) -> None:
    machine = Machine("a100_seven_slices")
    machine.told["torch"]["devices"][0]["uuid"] = A100.removeprefix("GPU-")
    play(machine)
    assert cards(monkeypatch, machine, FIFTH) == {0: FIFTH}
    assert read_nvml()["gpu.0.total_bytes"] == machine.card(0)["slices"][4]["total"]


def test_a_rocm_device_has_no_card_of_another_maker(play: Play) -> None:
    machine = Machine("mi300x")
    machine.told["nvml"] = Machine("workstation_mixed").told["nvml"]
    play(machine)
    assert read_nvml() == {}
