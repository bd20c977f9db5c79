"""Length, capacity and bytes of containers declared with ``track``, and the number of open pyplot figures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from time import thread_time
from typing import Any, Final
from weakref import ref

from leakline.probes.heap.arrays import array_types
from leakline.probes.heap.marginal_size import is_on_device, marginal_parts
from leakline.probes.heap.tensor_storages import overrides_off, storage_key, tensor_types
from leakline.probes.references.attributes import attributes
from leakline.snapshot import LARGEST_INTEGER, Number

from .references.attributes import is_container, items, newest

# Limit on the objects visited to measure one group of items.
_OBJECTS_VISITED: Final = 2_500
# Items per sampled group, and number of groups. Items are measured in groups because neighbours may share parts, and
# several groups are measured because item sizes vary.
_TOGETHER, _GROUPS = 8, 4
# CPU time limit in seconds for all groups of one container, spent on the training thread.
_SIZING_SECONDS: Final = 0.03
# Maximum length of containers that are searched for a buffer's arrays, for example `self.data["observations"]`.
_SHORT: Final = 64


class TrackedContainer:
    """A container declared by the program, with or without a capacity.

    ``target`` has a length, or is a callable that returns a number or an object with a length. Objects are held by weak
    references where Python allows this. Lists, dicts and callables are held by strong references: a list does not
    support weak references, and a lambda would be freed immediately. A callable should therefore not refer to objects
    that ought to be freed.
    """

    def __init__(
        self,
        name: str,
        target: Any | Callable[[], Any],
        capacity: int | None = None,
        on_device: Callable[[Any], bool] = is_on_device,
    ) -> None:
        self.name = name
        self.capacity = capacity
        self._get = _getter(target)
        self._on_device = on_device
        # (bytes, bytes on devices)
        self._bytes_each: dict[str, tuple[int, int] | None] = {}
        self._sized_at: dict[str, int] = {}

    def read(self) -> dict[str, Number]:
        """Return ``tracked.<name>.length``, ``.capacity`` and ``.bytes``, or {} after the object was freed.

        ``.device_bytes`` is the part of ``.bytes`` in device memory; it is absent if zero.

        The bytes of a plain container are its own size plus its length times the bytes of one more item, estimated from
        a sample. The bytes of any other object are the bytes of the containers and arrays among its attributes. If an
        array is allocated for the entire capacity, only the filled part counts. Bytes are absent if an item could not
        be measured. Raises OverflowError for a length that the server does not accept, and any exception from the
        program's own function.
        """
        target = self._get()
        if target is None:
            return {}
        length = target if type(target) is int else len(target)
        if not 0 <= length <= LARGEST_INTEGER:
            # Leave out the number, because Python refuses to format very large integers.
            raise OverflowError(f"the length of {self.name!r} must be between 0 and 2**53")
        samples: dict[str, Number] = {f"tracked.{self.name}.length": length}
        if self.capacity is not None:
            samples[f"tracked.{self.name}.capacity"] = self.capacity
        if type(target) is not int:
            parts = dict(_parts(target))
            if parts:
                sizes = [self._part_bytes(*part, length) for part in parts.items()]
                known = [size for size in sizes if size is not None]
                if len(known) < len(sizes):
                    return samples
                samples[f"tracked.{self.name}.bytes"] = sum(size for size, _ in known)
                if on_devices := sum(each for _, each in known):
                    samples[f"tracked.{self.name}.device_bytes"] = on_devices
        return samples

    def _part_bytes(self, where: str, part: Any, length: int) -> tuple[int, int] | None:
        """Return a part's (bytes, bytes on devices), or None if they are unknown."""
        if is_container(part):
            each = self._item_bytes(where, part) if len(part) else (0, 0)
            if each is None:
                return None
            return sys.getsizeof(part) + len(part) * each[0], len(part) * each[1]
        size = _buffer_bytes(part)
        shape = part.shape
        if self.capacity and len(shape) and shape[0] == self.capacity:
            size = round(size * min(1.0, length / self.capacity))
        of_torch = any(type(part) is kind for kind in tensor_types())
        return size, size if of_torch and self._on_device(part) else 0

    def _item_bytes(self, where: str, part: Any) -> tuple[int, int] | None:
        """Return the sampled bytes per item. They are measured again when the container's length has doubled.

        If the new measurement is cut short, the previous result remains valid.
        """
        if len(part) >= 2 * self._sized_at.get(where, 0):
            self._bytes_each[where] = self._sampled(part) or self._bytes_each.get(where)
            self._sized_at[where] = len(part)
        return self._bytes_each[where]

    def _sampled(self, part: Any) -> tuple[int, int] | None:
        """Return the bytes of one more item, averaged over groups of the newest items, or None if unknown."""
        sample = newest(part, _TOGETHER * _GROUPS)
        groups = [sample[i : i + _TOGETHER] for i in range(0, len(sample), _TOGETHER)]
        # An incomplete last group would be too small a sample.
        whole = [group for group in groups if len(group) == _TOGETHER] or groups
        ends = thread_time() + _SIZING_SECONDS
        known: list[tuple[int, int]] = []
        for group in whole:
            parts = marginal_parts(
                group, lambda: thread_time() > ends, _OBJECTS_VISITED, self._on_device
            )
            if parts is None:
                # The other groups would probably fail as well.
                break
            known.append(parts)
        if not known:
            return None
        size, on_devices = (round(sum(each) / len(known)) for each in zip(*known, strict=True))
        return size, on_devices


def _getter(target: Any) -> Callable[[], Any]:
    if not hasattr(type(target), "__len__") and callable(target):
        return target  # type: ignore[no-any-return]
    try:
        return ref(target)
    except TypeError:
        return lambda: target


def _parts(target: Any) -> Iterator[tuple[str, Any]]:
    """Yield the object itself if it is a container or array, otherwise such objects among its attributes."""
    if is_container(target) or _is_buffer(target):
        yield "", target
        return
    for name, value in attributes(target).items():
        if _is_buffer(value):
            yield name, value
        elif is_container(value):
            inner = items(value) if len(value) <= _SHORT else []
            if inner and all(map(_is_buffer, inner)):
                yield from ((f"{name}[{i}]", buffer) for i, buffer in enumerate(inner))
            else:
                yield name, value


def _is_buffer(one: object) -> bool:
    return any(type(one) is kind for kind in (*array_types(), *tensor_types()))


def _buffer_bytes(buffer: Any) -> int:
    if not any(type(buffer) is kind for kind in tensor_types()):
        return int(buffer.nbytes)
    with overrides_off():
        key = storage_key(buffer)
    return key[1] if key is not None else 0


def read_figures() -> dict[str, Number]:
    """Return ``figures.open``, the number of open pyplot figures, or {} if the program has not loaded matplotlib."""
    registry: Any = getattr(sys.modules.get("matplotlib._pylab_helpers"), "Gcf", None)
    figures = getattr(registry, "figs", None)
    return {} if figures is None else {"figures.open": len(figures)}
