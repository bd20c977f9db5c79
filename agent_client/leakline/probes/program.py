"""Which modules and classes are the program's own, and not a library's or ours."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from types import ModuleType
from typing import Final

from leakline.probes.names import hashes_plainly, is_heap_type, module_name

# What is run as `python -m launcher train.py` is not the program.
_LAUNCHERS: Final = frozenset(
    {"accelerate", "coverage", "deepspeed", "ipykernel", "leakline", "memray", "pytest", "torch"}
)


def user_modules() -> Iterator[tuple[str, ModuleType]]:
    """The program's own modules by name, ``__main__`` first."""
    seen: set[int] = set()
    for name, module in _main_first(dict(sys.modules)):
        # A lazy module is a subclass whose attributes load things: left alone. `__mp_main__` is `__main__` again.
        if type(module) is ModuleType and id(module) not in seen and is_user_module(name):
            seen.add(id(module))
            yield name, module


def user_classes() -> Iterator[type]:
    """Classes made in the program's own modules."""
    # Thousands of classes, hundreds of modules.
    known: dict[str | None, bool] = {}
    for cls in all_classes():
        module = module_name(cls)
        if module not in known:
            known[module] = is_user_module(module)
        if known[module] and is_heap_type(cls) and hashes_plainly(cls):
            yield cls


def is_user_class(cls: type) -> bool:
    """Made by a ``class`` statement of the program's own modules."""
    return is_heap_type(cls) and hashes_plainly(cls) and is_user_module(module_name(cls))


def is_user_module(name: str | None) -> bool:
    """``__main__`` and its package, and what is loaded from outside the standard library and installed packages."""
    if name is None or name.partition(".")[0] == "leakline":
        return False
    if name == "__main__" or name.partition(".")[0] == _main_package():
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


def _main_package() -> str | None:
    # `python -m train` where `train` is an installed package: still the program, not a library.
    main = sys.modules.get("__main__")
    package = main.__dict__.get("__package__") if type(main) is ModuleType else None
    top = package.partition(".")[0] if type(package) is str else ""
    return top if top and top not in _LAUNCHERS else None


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
