"""A plugin of pytest: in this process one module is that of a file instead (`LEAKLINE_MUTANT`, as ``module=file``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType


class _Instead(MetaPathFinder):
    def __init__(self, module: str, file: str) -> None:
        self._module, self._file = module, file

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return spec_from_file_location(name, self._file) if name == self._module else None


if "LEAKLINE_MUTANT" in os.environ:
    module, _, file = os.environ["LEAKLINE_MUTANT"].partition("=")
    if module in sys.modules:
        # Not an exception, which ends pytest as a test does that fails.
        print(f"{module} was imported before it could be changed", file=sys.stderr)
        sys.exit(4)
    sys.meta_path.insert(0, _Instead(module, file))
