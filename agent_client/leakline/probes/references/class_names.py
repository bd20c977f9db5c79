"""Reads the names and properties of classes without running their code.

`hides_memory` finds classes whose instances may own memory that Python cannot measure, behind a C library's handle.
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
# Size of the header that the collector puts in front of every object that it can track.
_COLLECTOR_BYTES: Final = 16
_HARMLESS: Final = sys.stdlib_module_names | {"typing_extensions"}
_HEAP_TYPE: Final = 1 << 9
_COLLECTABLE: Final = 1 << 14
_TYPE_SUBCLASS: Final = 1 << 31


# Maximum length of a class name in characters. A metric name that contains a class name of this length is still short
# enough for the server.
NAME_LIMIT: Final = 400


class StandIn:
    """Base class of stand-ins for classes whose metaclass defines its own hash.

    A stand-in has a name but no instances.
    """


def type_name(cls: type) -> str:
    """Return the class's name as it is reported: ``torch.Tensor``, ``__main__.Agent``, or ``list`` for a builtin.

    The metaclass is bypassed, because its attributes may be properties that run the program's code.
    """
    module = module_name(cls)
    if module is None or module == "builtins":
        return _bounded(qualified_name(cls))
    return _bounded(f"{module}.{qualified_name(cls)}")


def _bounded(name: str) -> str:
    """Shorten a long name, because names of generic classes can be very long.

    A checksum distinguishes names that differ only in the omitted part.
    """
    if len(name) <= NAME_LIMIT:
        return name
    kept = NAME_LIMIT // 2 - 5
    return f"{name[:kept]}~{crc32(name.encode(errors='replace')):08x}~{name[-kept:]}"


def module_name(cls: type) -> str | None:
    """Return the name of the class's module, or None if this name is not a plain string."""
    try:
        module = _module_of(cls)
    except AttributeError:
        return None
    # A class body may bind `__module__` to an object of any type.
    return module if type(module) is str else None


def qualified_name(cls: type) -> str:
    return str(_qualname_of(cls))


def is_class(cls: type) -> bool:
    """Return True if instances of this type are classes."""
    return bool(_flags_of(cls) & _TYPE_SUBCLASS)


def is_collectable(cls: type) -> bool:
    """Return True if the cyclic collector handles instances of this type."""
    return bool(_flags_of(cls) & _COLLECTABLE)


def is_heap_type(cls: type) -> bool:
    """Return True for a heap type, whose instances hold references to it.

    Heap types are defined by ``class`` statements, or are created at run time by C extensions.
    """
    return bool(_flags_of(cls) & _HEAP_TYPE)


def basic_bytes(cls: type) -> int | None:
    """Return an instance's bytes without its referents, or None if instances of the type differ in size."""
    return None if _itemsize_of(cls) else fixed_bytes(cls)


def fixed_bytes(cls: type) -> int:
    """Return the fixed part of an instance's bytes, even if instances of the type differ in size."""
    return _basic_size(cls) + (_COLLECTOR_BYTES if is_collectable(cls) else 0)


def _basic_size(cls: type) -> int:
    """Return the size of an instance's C struct in bytes."""
    return int(_basicsize_of(cls))


def hashes_plainly(cls: type) -> bool:
    """Return True if hashing and comparing a class runs none of its metaclass's code."""
    return is_plain_metaclass(type(cls))


def is_plain_metaclass(meta: type) -> bool:
    """Return True if hashing and comparing classes of this metaclass runs none of the metaclass's code.

    The metaclasses of the standard library and of ``typing_extensions`` (loaded by torch) are known to be harmless.
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
# Standard library modules whose C types own buffers, codec states, or database or kernel resources.
_STANDARD: Final = frozenset({
    "_bz2", "_ctypes", "_curses", "_dbm", "_elementtree", "_gdbm", "_hashlib", "_io", "_lzma", "_multiprocessing",
    "_socket", "_sqlite3", "_ssl", "_tkinter", "array", "bz2", "ctypes", "lzma", "mmap", "pyexpat", "select", "socket",
    "sqlite3", "ssl", "zlib",
})  # fmt: skip
# A torch class whose name contains one of these may hold memory that is not measured; tensors and autograd graphs are
# measured.
_OF_TORCH: Final = ("Storage", "Script", "Graph")
_MEASURED: Final = frozenset({"builtins", "leakline", "numpy"})
# Names of C types without a module name: ``ImagingCore`` holds the pixel data of a PIL image.
_WITHOUT_MODULE: Final = frozenset({"ImagingCore"})


def hides_memory(cls: type) -> bool:
    """Return True if an instance's C struct may point to memory that its library does not report.

    A ``class`` statement adds only attributes, whose values can be followed.
    """
    structs = [one for one in _mro_of(cls) if one is not object and _adds_a_struct(one)]
    # An instance of a class derived from a built-in type is a plain value; a pandas timestamp, for example, is a
    # datetime.
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
