"""Reports to the `Loop` what a training loop in plain PyTorch does, for programs without callbacks.

`watch` replaces the functions that each such loop calls: iterating over a `DataLoader`, ``backward``,
``Optimizer.step`` and ``Module.eval``. The original functions do all of the work.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from .plain_loop import Loop, replace


def watch(loop: Loop) -> None:
    """Replace the functions of torch, which has been imported."""
    torch: Any = sys.modules["torch"]
    loaders: Any = sys.modules["torch.utils.data.dataloader"]
    optimizers: Any = sys.modules["torch.optim.optimizer"]
    # The compiler inlines the functions that it compiles, and must find nothing of ours in them.
    compiling = loop.is_compiling = torch.compiler.is_compiling
    has_gradients: Callable[[], bool] = torch.is_grad_enabled
    report = loop.report

    def begins(method: Any) -> Any:
        @functools.wraps(method)
        def begins_pass(self: Any) -> Any:
            report(loop.begins_pass, self)
            iterator = method(self)
            report(loop.began_pass, self, iterator)
            return iterator

        return begins_pass

    def makes(method: Any) -> Any:
        # A loader of another package may not call the ``__iter__`` of torch.
        @functools.wraps(method)
        def makes_iterator(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            report(loop.begins_pass, loader)
            method(self, loader, *args, **kwargs)
            report(loop.began_pass, loader, self)

        return makes_iterator

    def fetches(method: Any) -> Any:
        @functools.wraps(method)
        def fetches_batch(self: Any) -> Any:
            report(loop.fetches, self, has_gradients())
            try:
                batch = method(self)
            except StopIteration:
                report(loop.ended_pass, self)
                raise
            report(loop.fetched, self, has_gradients())
            return batch

        return fetches_batch

    def before_step(*_: Any) -> None:
        if not compiling():
            report(loop.steps)

    def after_step(*_: Any) -> None:
        if not compiling():
            report(loop.stepped)

    for owner, name, around in (
        (loaders.DataLoader, "__iter__", begins),
        (loaders._BaseDataLoaderIter, "__init__", makes),
        (loaders._BaseDataLoaderIter, "__next__", fetches),
        (torch.autograd, "backward", loop.around(loop.goes_backward, loop.went_backward)),
        (optimizers.Optimizer, "__init__", loop.around(loop.makes_optimizer)),
        (torch.nn.Module, "eval", loop.around(loop.evaluates)),
        (torch, "save", loop.around(loop.saves, loop.saved)),
    ):
        replace(owner, name, around)
    optimizers.register_optimizer_step_pre_hook(before_step)
    optimizers.register_optimizer_step_post_hook(after_step)
