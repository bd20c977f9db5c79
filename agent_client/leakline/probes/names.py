"""Names of classes, read without running any code of theirs."""

from __future__ import annotations

from typing import Any, Final

_flags_of: Final[Any] = type.__dict__["__flags__"].__get__
_module_of: Final[Any] = type.__dict__["__module__"].__get__
_qualname_of: Final[Any] = type.__dict__["__qualname__"].__get__
_HEAP_TYPE: Final = 1 << 9


def type_name(cls: type) -> str:
    """``module.Class``, as the wire wants it: ``torch.Tensor``, ``__main__.Agent``, and plain ``list`` of builtins.

    Goes round the metaclass, whose attributes may be properties of the program.
    """
    try:
        module = _module_of(cls)
    except AttributeError:
        module = None
    # A class body may bind `__module__` to anything.
    if type(module) is not str or module == "builtins":
        return str(_qualname_of(cls))
    return f"{module}.{_qualname_of(cls)}"


def is_heap_type(cls: type) -> bool:
    """Made by ``class`` (or a C extension's like of it): its instances hold references to it."""
    return bool(_flags_of(cls) & _HEAP_TYPE)


def hashes_plainly(cls: type) -> bool:
    """Whether a class may be a key of our dictionaries without running code of its metaclass."""
    meta = type(cls)
    return meta is type or (
        type.__getattribute__(meta, "__hash__") is type.__hash__
        and type.__getattribute__(meta, "__eq__") is type.__eq__
    )
