"""Adds Leakline's callbacks to training frameworks when the program loads them.

`leakline run`, ``leakline.auto()`` and ``LEAKLINE_AUTO=1`` call `install` once, before or after the frameworks are
imported. A callback that the program has added itself stays the only one. If a framework is not as we expect it, it
trains as if we were not there, and the run is recorded per interval of time.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import inspect
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple

from leakline.runtime.error_boundary import Guard, logger


class _Entry(NamedTuple):
    """The method of a framework that receives the callbacks, and how our callback is added to its argument."""

    module: str  # the method's class is complete when this module has been imported
    owner: str
    method: str
    framework: str  # our module in `leakline.integrations`
    argument: str = "callbacks"


_ENTRIES: Final = (
    _Entry("transformers.trainer", "Trainer", "__init__", "transformers"),
    _Entry("lightning.pytorch.trainer.trainer", "Trainer", "__init__", "lightning"),
    _Entry("keras.src.models.model", "Model", "fit", "keras"),
    _Entry(
        "stable_baselines3.common.base_class", "BaseAlgorithm", "_setup_learn", "sb3", "callback"
    ),
)
_BY_MODULE: Final = {entry.module: entry for entry in _ENTRIES}


def is_wanted() -> bool:
    """Return True if the program has loaded a framework whose training will start a run."""
    return any(module in sys.modules for module in _BY_MODULE)


def install() -> None:
    """Add our callback to the frameworks that the program has imported, and to those that it imports later."""
    if any(type(finder) is _Finder for finder in sys.meta_path):
        return
    for module, entry in _BY_MODULE.items():
        if module in sys.modules:
            _extend(entry, sys.modules[module])
    sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the frameworks' modules as usual, and extends them after they have been executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        entry = _BY_MODULE.get(fullname)
        if entry is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, entry)
                return spec  # type: ignore[no-any-return]
        return None


class _Loader(importlib.abc.Loader):
    """Loads a module with its own loader, then extends it."""

    def __init__(self, loader: Any, entry: _Entry) -> None:
        self._loader, self._entry = loader, entry

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            # From now on, the module looks as if we were not there.
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _extend(self._entry, module)


def _extend(entry: _Entry, module: ModuleType) -> None:
    """Replace the framework's method with one that adds our callback to its argument."""
    owner = getattr(module, entry.owner, None)
    method = getattr(owner, entry.method, None)
    try:
        signature = inspect.signature(method)  # type: ignore[arg-type]
        is_known = entry.argument in signature.parameters
    except (TypeError, ValueError):
        is_known = False
    if not is_known:
        logger.warning(
            "leakline: this version of %s is not supported; its training is recorded per interval of time, not per"
            " epoch or step",
            entry.module.partition(".")[0],
        )
        return
    guard = Guard(f"the automatic callback for {entry.framework}")

    @functools.wraps(method)  # type: ignore[arg-type]
    def extended(*args: Any, **kwargs: Any) -> Any:
        with guard:
            bound = signature.bind(*args, **kwargs)
            given = bound.arguments.get(entry.argument)
            bound.arguments[entry.argument] = _with_ours(entry, given)
            args, kwargs = bound.args, bound.kwargs
        return method(*args, **kwargs)  # type: ignore[misc]

    setattr(owner, entry.method, extended)


def _with_ours(entry: _Entry, given: Any) -> Any:
    """Return the callbacks that the program passes, with ours first unless the program passes ours."""
    ours = importlib.import_module(f"leakline.integrations.{entry.framework}").LeaklineCallback
    if any(isinstance(each, ours) for each in _flat(given)):
        return given
    if given is None:
        return [ours()]
    if isinstance(given, (list, tuple)):
        return [ours(), *given]
    if entry.framework == "keras":
        # A `CallbackList` that the program built itself.
        given.append(ours())
        return given
    if entry.framework == "sb3":
        callbacks: Any = sys.modules["stable_baselines3.common.callbacks"]
        if not isinstance(given, callbacks.BaseCallback):
            given = callbacks.ConvertCallback(given)
    return [ours(), given]


def _flat(given: Any) -> Iterator[Any]:
    """Yield callbacks, including those in lists of the framework."""
    inner = given if isinstance(given, (list, tuple)) else getattr(given, "callbacks", None)
    if isinstance(inner, (list, tuple)):
        for each in inner:
            yield from _flat(each)
    else:
        yield given
