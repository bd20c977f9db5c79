"""Adds the callbacks to frameworks when a training begins, for programs that contain no callback of ours.

`leakline run`, ``leakline.auto()`` and ``LEAKLINE_AUTO=1`` call `install`. It replaces one method of each framework.
Every training calls this method when all callbacks of the program are known. A framework that is imported later is
extended after its import. The run stays open until the program ends, because a program may train several times. In
loops that use torch, JAX or TensorFlow without a framework, the calls of the program are reported to a `Loop`.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, NamedTuple

from leakline.runtime.error_boundary import Guard, logger

from ..run import active
from . import compiled_functions, plain_torch, savers_and_loggers
from .plain_loop import Loop
from .training import is_ours


class _Framework(NamedTuple):
    """The method that every training calls. Its module is complete once ``entry`` has been imported."""

    entry: str
    module: str
    owner: str
    method: str
    ours: str
    # Functions of this file are on the stack if a callback of one training has begun another training.
    file: str


_HANDLER: Final = "transformers.trainer_callback"
_LIST: Final = "keras.src.callbacks.callback_list"
_FRAMEWORKS: Final = {
    framework.entry: framework
    for framework in (
        _Framework(
            "transformers.trainer", _HANDLER, "CallbackHandler", "on_train_begin", "transformers", _HANDLER
        ),
        *(
            _Framework(package, trainer, "Trainer", "fit", "lightning", trainer)
            for package in ("lightning.pytorch", "pytorch_lightning")
            for trainer in (f"{package}.trainer.trainer",)
        ),
        _Framework("keras", _LIST, "CallbackList", "on_train_begin", "keras", _LIST),
        _Framework(
            "stable_baselines3", "stable_baselines3.common.base_class", "BaseAlgorithm", "_init_callback", "sb3",
            "stable_baselines3.common.callbacks",
        ),
    )
}  # fmt: skip

_LIBRARIES: Final[dict[str, Callable[[Loop], None]]] = {
    "torch": plain_torch.watch,
    "jax": compiled_functions.watch_jax,
    "tensorflow": compiled_functions.watch_tensorflow,
    **{
        module: functools.partial(savers_and_loggers.watch, module)
        for module in savers_and_loggers.FUNCTIONS
    },
}
_ENTRIES: Final = (*_FRAMEWORKS, *_LIBRARIES)

_options: dict[str, Any] = {}
# True if the program has asked for callbacks, also in a run that the program itself has started.
_is_asked = False


def install(*, is_asked: bool = False, **options: Any) -> None:
    """Add our callback to each training that begins from now on. ``options``: arguments of the callbacks."""
    global _is_asked
    _is_asked = _is_asked or is_asked
    _options.update(options)
    if any(type(finder) is _Finder for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for entry in _ENTRIES:
        if entry in sys.modules:
            _extend(entry)


def is_loaded() -> bool:
    """Return True if the program has loaded a framework, and will perhaps train with it."""
    return any(entry.partition(".")[0] in sys.modules for entry in _FRAMEWORKS)


class _Finder:
    """Lets the other finders find a framework's module, and extends the framework once the module is imported."""

    def __init__(self) -> None:
        self._asking = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # A finder of another tool may ask all finders, as we do.
        if name not in _ENTRIES or getattr(self._asking, "name", None) == name:
            return None
        self._asking.name = name
        try:
            for finder in list(sys.meta_path):
                find = None if finder is self else getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = None if find is None else find(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader, name)  # type: ignore[assignment]
                    return spec
        finally:
            self._asking.name = None
        return None


class _Loader:
    """Loads a module with its own loader, which is the module's loader again before the module runs."""

    def __init__(self, loader: Any, entry: str) -> None:
        self._loader, self._entry = loader, entry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        for holder, name in ((module.__spec__, "loader"), (module, "__loader__")):
            if getattr(holder, name, None) is self:
                setattr(holder, name, self._loader)
        self._loader.exec_module(module)
        _extend(self._entry)


def _extend(entry: str) -> None:
    """Replace the framework's method by one that first adds our callback."""
    watch = _LIBRARIES.get(entry)
    if watch is not None:
        with Guard(f"finding generations in loops of {entry}"):
            watch(_loop())
        return
    framework = _FRAMEWORKS[entry]
    guard = Guard(f"the automatic callback for {framework.ours}")
    with guard:
        owner = getattr(sys.modules.get(framework.module), framework.owner, None)
        method = getattr(owner, framework.method, None)
        if not callable(method):
            _refuse(framework)
        elif not hasattr(method, "_leakline"):
            extended = (_with_argument if framework.ours == "sb3" else _with_list)(
                method, guard, framework
            )
            extended._leakline = True  # type: ignore[attr-defined]
            setattr(owner, framework.method, extended)


@functools.cache
def _loop() -> Loop:
    """Return the loop of this process."""
    return Loop(lambda: _is_asked)


@functools.cache
def _refuse(framework: _Framework) -> None:
    """Log, only once, that a framework is not as we know it."""
    name = framework.entry.partition(".")[0]
    version = getattr(sys.modules.get(name), "__version__", "of this version")
    logger.warning(
        "leakline: %s %s is not supported, so its epochs, steps and phases are not recorded; use a version that"
        " Leakline supports, or call leakline.init in the program",
        name, version,
    )  # fmt: skip


def _with_list(
    method: Callable[..., Any], guard: Guard, framework: _Framework
) -> Callable[..., Any]:
    """Return a method of the object that holds a training's list of callbacks."""

    @functools.wraps(method)
    def extended(self: Any, *args: Any, **kwargs: Any) -> Any:
        with guard:
            ours = _ours(framework, self.callbacks)
            if ours is not None:
                if framework.ours == "keras":
                    ours.set_params(self.params)
                    ours.set_model(self.model)
                self.callbacks = [ours, *self.callbacks]
        return method(self, *args, **kwargs)

    return extended


def _with_argument(
    method: Callable[..., Any], guard: Guard, framework: _Framework
) -> Callable[..., Any]:
    """Return a method of Stable-Baselines3 that gets the callbacks of a training as its first argument."""

    @functools.wraps(method)
    def extended(self: Any, callback: Any = None, *args: Any, **kwargs: Any) -> Any:
        with guard:
            ours = _ours(framework, callback)
            if ours is not None:
                callback = _listed(ours, callback)
        return method(self, callback, *args, **kwargs)

    return extended


def _listed(ours: Any, given: Any) -> list[Any]:
    """Return the list with our callback and those that the program has passed as None, list, object or function."""
    if given is None or isinstance(given, list):
        return [ours, *(given or ())]
    callbacks: Any = sys.modules["stable_baselines3.common.callbacks"]
    is_object = isinstance(given, callbacks.BaseCallback)
    return [ours, given if is_object else callbacks.ConvertCallback(given)]


def _ours(framework: _Framework, given: Any) -> Any:
    """Return a new callback for a training, or None if the training shall not get one."""
    running = active()
    if running is not None and not (_is_asked or is_ours(running)):
        # The program records itself.
        return None
    try:
        kind = importlib.import_module(f"leakline.integrations.{framework.ours}").LeaklineCallback
    except ImportError:
        _refuse(framework)
        return None
    if any(isinstance(each, kind) for each in _flat(given)) or _is_within(framework):
        return None
    ours = kind(**_options)
    ours._training.leaves_run_open = True
    return ours


def _flat(given: Any) -> Iterator[Any]:
    """Yield callbacks, including those in lists of the framework."""
    inner = given if isinstance(given, (list, tuple)) else getattr(given, "callbacks", None)
    if isinstance(inner, (list, tuple)):
        for each in inner:
            yield from _flat(each)
    else:
        yield given
        # A callback of Stable-Baselines3 may call another one.
        if hasattr(given, "callback"):
            yield from _flat(given.callback)


def _is_within(framework: _Framework) -> bool:
    """Return True if a callback of the same framework begins this training, within another training."""
    file, frame = getattr(sys.modules.get(framework.file), "__file__", None), sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename == file:
            return True
    return False
