"""Names of classes, and whether their instances may keep memory that Python cannot measure (handles of C libraries).
Nothing here runs code of the classes.
"""

from __future__ import annotations

import sys
from types import MemberDescriptorType
from typing import Any, Final
from zlib import crc32

_flags_of: Final[Any] = type.__dict__["__flags__"].__get__
_module_of: Final[Any] = type.__dict__["__module__"].__get__
_qualname_of: Final[Any] = type.__dict__["__qualname__"].__get__
_basicsize_of: Final[Any] = type.__dict__["__basicsize__"].__get__
_itemsize_of: Final[Any] = type.__dict__["__itemsize__"].__get__
# What the collector keeps in front of every object it knows.
_COLLECTOR_BYTES: Final = 16
_HARMLESS: Final = sys.stdlib_module_names | {"typing_extensions"}
_HEAP_TYPE: Final = 1 << 9
_COLLECTABLE: Final = 1 << 14
_TYPE_SUBCLASS: Final = 1 << 31


# Characters; with what stands around it in the name of a series, as the server takes them.
NAME_LIMIT: Final = 400


class StandIn:
    """Base of the classes that stand for one whose metaclass hashes in its own way: names only, no instances."""


def type_name(cls: type) -> str:
    """``module.Class``, as the wire wants it: ``torch.Tensor``, ``__main__.Agent``, and plain ``list`` of builtins.

    Goes round the metaclass, whose attributes may be properties of the program.
    """
    module = module_name(cls)
    if module is None or module == "builtins":
        return _bounded(qualified_name(cls))
    return _bounded(f"{module}.{qualified_name(cls)}")


def _bounded(name: str) -> str:
    """Generic classes can have very long names. Two that differ in the middle stay two."""
    if len(name) <= NAME_LIMIT:
        return name
    kept = NAME_LIMIT // 2 - 5
    return f"{name[:kept]}~{crc32(name.encode(errors='replace')):08x}~{name[-kept:]}"


def module_name(cls: type) -> str | None:
    """The module a class was made in, when it says so in a plain string."""
    try:
        module = _module_of(cls)
    except AttributeError:
        return None
    # A class body may bind `__module__` to anything.
    return module if type(module) is str else None


def qualified_name(cls: type) -> str:
    return str(_qualname_of(cls))


def is_class(cls: type) -> bool:
    """Whether instances of this type are classes themselves."""
    return bool(_flags_of(cls) & _TYPE_SUBCLASS)


def is_collectable(cls: type) -> bool:
    """Whether the cyclic collector knows instances of this type."""
    return bool(_flags_of(cls) & _COLLECTABLE)


def is_heap_type(cls: type) -> bool:
    """Made by ``class`` (or a C extension's like of it): its instances hold references to it."""
    return bool(_flags_of(cls) & _HEAP_TYPE)


def basic_bytes(cls: type) -> int | None:
    """Bytes of one instance without what it refers to; None for types whose instances differ in size."""
    return None if _itemsize_of(cls) else fixed_bytes(cls)


def fixed_bytes(cls: type) -> int:
    """Bytes that every instance has, also of types whose instances differ in size."""
    return _basic_size(cls) + (_COLLECTOR_BYTES if is_collectable(cls) else 0)


def _basic_size(cls: type) -> int:
    """Return the bytes of the struct that stands for an instance."""
    return int(_basicsize_of(cls))


def hashes_plainly(cls: type) -> bool:
    """Whether a class may be a key of our dictionaries without running code of its metaclass."""
    return is_plain_metaclass(type(cls))


def is_plain_metaclass(meta: type) -> bool:
    """Whether classes of this metaclass are hashed and compared without running code of it.

    The standard library's metaclasses and the one of ``typing_extensions`` (loaded by torch) are known to be harmless.
    """
    return (
        meta is type
        or (
            type.__getattribute__(meta, "__hash__") is type.__hash__
            and type.__getattribute__(meta, "__eq__") is type.__eq__
        )
        or (module_name(meta) or "").partition(".")[0] in _HARMLESS
    )


_mro_of: Final[Any] = type.__dict__["__mro__"].__get__
_base_of: Final[Any] = type.__dict__["__base__"].__get__
_names_of: Final[Any] = type.__dict__["__dict__"].__get__
_POINTER: Final = 8
# Of the standard library: modules whose C types keep buffers, states of codecs, or what a database or the kernel lends.
_STANDARD: Final = frozenset({
    "_bz2", "_ctypes", "_curses", "_dbm", "_elementtree", "_gdbm", "_hashlib", "_io", "_lzma", "_multiprocessing",
    "_socket", "_sqlite3", "_ssl", "_tkinter", "array", "bz2", "ctypes", "lzma", "mmap", "pyexpat", "select", "socket",
    "sqlite3", "ssl", "zlib",
})  # fmt: skip
# Tensors, arrays and graphs are measured by their buffers; these parts of torch are not.
_OF_TORCH: Final = ("Storage", "Script", "Graph")
_MEASURED: Final = frozenset({"builtins", "leakline", "numpy"})
# The pixels of an image of PIL: its C type names no module.
_WITHOUT_MODULE: Final = frozenset({"ImagingCore"})


def hides_memory(cls: type) -> bool:
    """Return True if an instance has a C struct of its own, of a library that says nothing of what it points to.

    Classes made by ``class`` add only attributes, which are objects that can be followed.
    """
    structs = [one for one in _mro_of(cls) if one is not object and _adds_a_struct(one)]
    # What derives from a type of the language is a value like it, as a time stamp of pandas is a datetime.
    return bool(structs) and all(_is_opaque(one) for one in structs)


def _adds_a_struct(cls: type) -> bool:
    names = _names_of(cls)
    fields = sum(type(value) is MemberDescriptorType for value in names.values())
    own = fields + ("__dict__" in names) + ("__weakref__" in names)
    return _basic_size(cls) - _basic_size(_base_of(cls) or object) > _POINTER * own


def _is_opaque(cls: type) -> bool:
    if qualified_name(cls) in _WITHOUT_MODULE:
        return True
    root = (module_name(cls) or "builtins").partition(".")[0]
    if root == "torch":
        return any(part in qualified_name(cls) for part in _OF_TORCH)
    if root in sys.stdlib_module_names:
        return root in _STANDARD
    return root not in _MEASURED
