"""Which modules and classes are the program's own, and not a library's or ours."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from types import ModuleType

from leakline.probes.names import hashes_plainly, is_heap_type, module_name


def user_modules() -> Iterator[tuple[str, ModuleType]]:
    """The program's own modules by name, ``__main__`` first."""
    for name, module in _main_first(dict(sys.modules)):
        # A lazy module is a subclass whose attributes load things: left alone.
        if type(module) is ModuleType and is_user_module(name):
            yield name, module


def user_classes() -> Iterator[type]:
    """Classes made in the program's own modules."""
    for cls in all_classes():
        if is_heap_type(cls) and hashes_plainly(cls) and is_user_module(module_name(cls)):
            yield cls


def is_user_module(name: str | None) -> bool:
    """``__main__``, and what is loaded from outside the standard library and the installed packages."""
    if name is None or name == "leakline" or name.startswith("leakline."):
        return False
    if name == "__main__":
        return True
    module = sys.modules.get(name)
    if type(module) is not ModuleType:
        return False
    file = module.__dict__.get("__file__")
    return type(file) is str and is_user_file(file)


@lru_cache(maxsize=16_384)
def is_user_file(file: str) -> bool:
    """Whether a source file is neither of the standard library nor of an installed package, nor ours."""
    return not file.startswith(("<", *_library_folders()))


def all_classes() -> Iterator[type]:
    """Every class there is: a walk of 5,000 takes a millisecond and looks at no instance."""
    seen = {id(object)}
    waiting: list[type] = [object]
    while waiting:
        # Through `type`, because a metaclass may have its own `__subclasses__`.
        subclasses: list[type] = type.__subclasses__(waiting.pop())
        for cls in subclasses:
            if id(cls) not in seen:
                seen.add(id(cls))
                waiting.append(cls)
                yield cls


def _main_first(modules: dict[str, ModuleType]) -> Iterator[tuple[str, ModuleType]]:
    main = modules.pop("__main__", None)
    if main is not None:
        yield "__main__", main
    yield from modules.items()


@lru_cache(maxsize=1)
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.update(site.getsitepackages(), [site.getusersitepackages()])
    folders.add(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH120, PTH100
    return tuple(folder.rstrip(os.sep) + os.sep for folder in folders if folder)
