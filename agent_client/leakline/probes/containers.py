"""Containers that grow, by the name the program gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from leakline.snapshot import Number


class ContainerWatch:
    """Lengths of the program's own containers, found by naming forward from its roots."""

    def find(
        self,
        frame: FrameType | None = None,
        instances: Mapping[type, Sequence[object]] | None = None,
    ) -> None:
        """Look again for containers: from module globals, the frames of the calling thread, classes, instances."""

    def read(self, frame: FrameType | None = None) -> dict[str, Number]:
        """``container.<path>.length`` of the containers that have grown since they were first seen."""
        return {}


class TrackedContainer:
    """A container the program declared, with or without a capacity."""

    def __init__(
        self, name: str, target: Any | Callable[[], Any], capacity: int | None = None
    ) -> None:
        self.name = name
        self.capacity = capacity
        self._target = target

    def read(self) -> dict[str, Number]:
        """``tracked.<name>.length``, ``.capacity``, ``.bytes``."""
        return {}
