"""The build hook: a wheel carries the native modules when this machine can compile them, and is pure otherwise."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeModules(BuildHookInterface[Any]):
    """Adds the compiled modules and the platform's tag to a wheel; an editable install gets them in place."""

    made: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        native = _builder(Path(self.root))
        if version != "editable":
            self.made = Path(tempfile.mkdtemp())
        for module in native.MODULES.values():
            package = module.package.name
            path = self._build(native, module, self.made / package if self.made else module.package)
            if path is not None and self.made:
                build_data["force_include"][str(path)] = f"{package}/{path.name}"
                build_data["infer_tag"] = True
                build_data["pure_python"] = False

    def _build(self, native: ModuleType, module: Any, folder: Path) -> Path | None:
        wanted = native.wanted()
        if wanted is False:
            # What an earlier install left would still be loaded.
            (folder / module.file_name).unlink(missing_ok=True)
            return None
        try:
            path: Path = native.build(folder, module)
        except native.NotBuilt as reason:
            # Without glibc, this library cannot be built.
            if wanted and module != native.MALLOC:
                raise
            self.app.display_warning(f"{module.package.name} without {module.file_name}: {reason}")
            return None
        return path

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
