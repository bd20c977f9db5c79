"""Types whose instances may keep memory that Python cannot measure: handles of C libraries."""

from __future__ import annotations

import sys
from types import MemberDescriptorType
from typing import Any, Final

from leakline.probes.references.class_names import basic_size, module_name, qualified_name

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
    return basic_size(cls) - basic_size(_base_of(cls) or object) > _POINTER * own


def _is_opaque(cls: type) -> bool:
    if qualified_name(cls) in _WITHOUT_MODULE:
        return True
    root = (module_name(cls) or "builtins").partition(".")[0]
    if root == "torch":
        return any(part in qualified_name(cls) for part in _OF_TORCH)
    if root in sys.stdlib_module_names:
        return root in _STANDARD
    return root not in _MEASURED
