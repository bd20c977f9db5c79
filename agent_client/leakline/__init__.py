"""Live memory telemetry for training runs.

PYTEST_DONT_REWRITE: `leakline run` imports this package before pytest and its plugin are loaded, and the package
contains no test assertions to rewrite.
"""

from __future__ import annotations

import os
from typing import Any

from .errors import BadArgument, LeaklineError
from .run import Run, current, init

__version__ = "0.1.0"
__all__ = ["BadArgument", "LeaklineError", "Run", "__version__", "auto", "current", "init"]


def auto() -> None:
    """Record training with PyTorch, Lightning, Transformers, Stable-Baselines3 or Keras without other changes."""
    from .integrations.automatic import install

    install(is_asked=True)


def load_ipython_extension(shell: Any) -> None:
    """Add ``%%leakline NAME`` to a notebook, which records a cell as a phase. IPython calls this at ``%load_ext``."""

    def run_cell(line: str, cell: str) -> Any:
        import ast

        # As in `%%time`: the value of a last expression is the output of the cell, and an exception stops the notebook.
        text = shell.transform_cell(cell)
        body = shell.transform_ast(shell.compile.ast_parse(text)).body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        file = shell.compile.cache(text, shell.execution_count, raw_code=cell)
        names = shell.user_ns
        with current().phase(line.strip() or "cell"):
            exec(shell.compile(ast.Module(body, []), file, "exec"), names)
            if last is not None:
                return eval(shell.compile(ast.Expression(last.value), file, "eval"), names)
        return None

    shell.register_magic_function(run_cell, "cell", "leakline")


if os.environ.get("LEAKLINE_AUTO") == "1":
    auto()
