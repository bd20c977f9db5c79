"""Maps this process's CUDA devices to NVML's cards.

Once the program uses CUDA, torch identifies the card; until then, the environment is read by CUDA's rules. CUDA numbers
the devices visible to a process, whereas NVML numbers all cards of the machine. If the two numberings cannot be matched
without initialising CUDA, the device's metrics are absent, because they might come from another card.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from types import ModuleType
from typing import Any, Final

from .nvml_library import Driver

_WHOLE: Final = "GPU-"
_SLICE: Final = "MIG-"
# CUDA reads numbers as strtoul does: "1gpu2" is 1, and "-1" ends the list.
_NUMBER: Final = re.compile(r"\s*\+?(\d+)")
_OLD_SLICE: Final = re.compile(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)")


def cuda_in_use() -> Any | None:
    """Return ``torch.cuda`` if the program has initialised CUDA, otherwise None.

    The result is also None in a forked child, which cannot use CUDA.
    """
    cuda = sys.modules.get("torch.cuda")
    if type(cuda) is not ModuleType:
        return None
    # The module is incomplete while another thread imports torch.
    is_initialised = vars(cuda).get("is_initialized")
    return cuda if is_initialised is not None and is_initialised() else None


def devices_in_use(cuda: Any) -> list[int]:
    """Return the numbers of devices with a CUDA context of this process."""
    return [index for index in range(cuda.device_count()) if has_context(index)]


def has_context(index: int) -> bool:
    """Return True if this process has a CUDA context on the device.

    The query neither creates a context nor waits for one. If torch does not support the query, the result is True.
    """
    ask = getattr(sys.modules.get("torch._C"), "_cuda_hasPrimaryContext", None)
    return ask is None or bool(ask(index))


def _is_rocm() -> bool:
    """Return True for ROCm, which torch presents as CUDA although NVML does not list its cards."""
    return getattr(sys.modules.get("torch.version"), "hip", None) is not None


class Cards:
    """NVML handles by this process's device numbers, cached between readings."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._opened: object = None
        self._used: dict[int, Any] = {}
        self._asked_with: object = None
        self._listed: dict[int, Any] = {}

    def handles(self) -> dict[int, Any]:
        """Return the NVML handles by device number.

        Before the program uses CUDA, these are all visible devices; afterwards, only the devices in use.
        """
        if _is_rocm():
            return {}
        if self._opened != self._driver.opened:
            self._opened = self._driver.opened
            self._used, self._asked_with = {}, None
        cuda = cuda_in_use()
        if cuda is None:
            return self._by_environment()
        for index in devices_in_use(cuda):
            if index not in self._used:
                self._used[index] = self._by_torch(cuda, index)
        return {index: card for index, card in self._used.items() if card is not None}

    def _by_torch(self, cuda: Any, index: int) -> Any | None:
        """Find the card or slice by its UUID, which torch has reported since version 2.4."""
        name = getattr(cuda.get_device_properties(index), "uuid", None)
        if name is not None:
            slice_ = self._driver.card_by_uuid(f"{_SLICE}{name}")
            if slice_ is not None:
                return slice_
            card = self._driver.card_by_uuid(f"{_WHOLE}{name}")
            if card is not None and not self._driver.is_partitioned(card):
                return card
        # For a partitioned card, older CUDA versions report the entire card's UUID; the environment may name the slice.
        return self._by_environment().get(index)

    def _by_environment(self) -> dict[int, Any]:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        order = os.environ.get("CUDA_DEVICE_ORDER")
        if self._asked_with != (visible, order):
            self._asked_with = (visible, order)
            found = _listed_cards(self._driver, visible, by_bus=order == "PCI_BUS_ID")
            self._listed = {index: card for index, card in enumerate(found) if card is not None}
        return self._listed


def visible_entries(text: str) -> list[int] | list[str]:
    """Return the entries of ``CUDA_VISIBLE_DEVICES`` that CUDA uses: numbers or UUIDs, up to the first invalid entry.

    If a number occurs twice, CUDA makes no device visible, and the list is empty.
    """
    kind = text[:4]
    if kind in (_WHOLE, _SLICE):
        return list(takewhile(lambda name: name.startswith(kind), text.split(",")))
    numbers: list[int] = []
    for entry in text.split(","):
        found = _NUMBER.match(entry)
        if found is None:
            break
        numbers.append(int(found[1]))
    return numbers if _is_without_doubles(numbers) else []


def _listed_cards(driver: Driver, visible: str | None, *, by_bus: bool) -> list[Any | None]:
    """Return the handles in CUDA's device order; an unreadable card is None."""
    cards = _cards(driver)
    entries = list(range(len(cards))) if visible is None else visible_entries(visible)
    if not entries:
        return []
    if isinstance(entries[0], int):
        return _numbered(driver, cards, [int(entry) for entry in entries], by_bus=by_bus)
    names = [str(entry) for entry in entries]
    if names[0].startswith(_SLICE):
        # CUDA uses only one slice per process, the first slice in the list.
        found = _slice_named(driver, cards, names[0])
        return [] if found is None else [found]
    return _named(driver, cards, names)


def _cards(driver: Driver) -> list[Any | None]:
    """Return the handle of every card in the machine; a lost or inaccessible card is None."""
    return [driver.card_at(index) for index in range(driver.count())]


def _numbered(
    driver: Driver, cards: list[Any | None], numbers: list[int], *, by_bus: bool
) -> list[Any | None]:
    known = list(takewhile(lambda number: number < len(cards), numbers))
    answering = [card for card in cards if card is not None]
    if any(driver.is_partitioned(card) for card in answering):
        return [_whole_or_only_slice(driver, answering[0])] if len(cards) == 1 else []
    if len(answering) < len(cards) or not (by_bus or _are_alike(driver, answering)):
        # CUDA leaves out cards that it may not use and sorts the others by its own speed criteria, so the order is
        # unknown.
        return []
    return [cards[number] for number in known]


def _are_alike(driver: Driver, cards: Sequence[Any]) -> bool:
    """Return True if all cards are the same model, so that CUDA's fastest-first order is the bus order."""
    models = {driver.name(card) for card in cards}
    return len(cards) == 1 or (len(models) == 1 and None not in models)


def _named(driver: Driver, cards: list[Any | None], names: list[str]) -> list[Any | None]:
    """Return the cards with these UUID prefixes, up to the first prefix that does not match exactly one card."""
    by_name = _by_uuid(driver, cards)
    found: list[str] = []
    for name in names:
        fitting = [uuid for uuid in by_name if uuid.startswith(name)]
        if len(fitting) != 1:
            break
        found.append(fitting[0])
    if not _is_without_doubles(found):
        return []
    return [_whole_or_only_slice(driver, by_name[uuid]) for uuid in found]


def _slice_named(driver: Driver, cards: Iterable[Any | None], name: str) -> Any | None:
    exact = driver.card_by_uuid(name)
    if exact is not None:
        return exact
    old = _OLD_SLICE.fullmatch(name)
    if old is not None:
        card = driver.card_by_uuid(old[1])
        return None if card is None else _slice_at(driver, card, (int(old[2]), int(old[3])))
    slices = [each for card in cards if card is not None for each in driver.slices(card)]
    fitting = [each for uuid, each in _by_uuid(driver, slices).items() if uuid.startswith(name)]
    return fitting[0] if len(fitting) == 1 else None


def _slice_at(driver: Driver, card: Any, place: tuple[int, int]) -> Any | None:
    """Return the card's slice with these GPU instance and compute instance IDs, or None."""
    return next((each for each in driver.slices(card) if driver.instances(each) == place), None)


def _whole_or_only_slice(driver: Driver, card: Any) -> Any | None:
    """Return the card, or its only slice if the card is partitioned, which is common in containers.

    If the card has several slices, CUDA's choice is unknown, and the result is None.
    """
    if not driver.is_partitioned(card):
        return card
    slices = driver.slices(card)
    return slices[0] if len(slices) == 1 else None


def _by_uuid(driver: Driver, cards: Iterable[Any | None]) -> Mapping[str, Any]:
    named = ((driver.uuid(card), card) for card in cards if card is not None)
    return {uuid: card for uuid, card in named if uuid is not None}


def _is_without_doubles(values: list[Any]) -> bool:
    return len(set(values)) == len(values)
