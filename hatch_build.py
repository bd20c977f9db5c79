"""The build hook: a wheel carries `leakline._native` when this machine can compile it, and is pure otherwise."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path("agent_client", "leakline")


class NativeModule(BuildHookInterface[Any]):
    """Adds the compiled module and the platform's tag to a wheel; an editable install gets it in place."""

    made: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        native = _builder(Path(self.root))
        wanted = native.wanted()
        editable = version == "editable"
        folder = Path(self.root) / PACKAGE if editable else Path(tempfile.mkdtemp())
        if not editable:
            self.made = folder
        if wanted is False:
            # What an earlier install left would still be loaded.
            (folder / native.file_name()).unlink(missing_ok=True)
            return
        try:
            path = native.build(folder)
        except native.NotBuilt as reason:
            if wanted:
                raise
            self.app.display_warning(f"leakline without its native module: {reason}")
            return
        if not editable:
            build_data["force_include"][str(path)] = f"leakline/{path.name}"
            build_data["infer_tag"] = True
            build_data["pure_python"] = False

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self.made is not None:
            shutil.rmtree(self.made, ignore_errors=True)


def _builder(root: Path) -> ModuleType:
    """`agent_client/native/build.py`, which is not part of a package."""
    spec = importlib.util.spec_from_file_location(
        "leakline_build_native", root / "agent_client" / "native" / "build.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
