"""Style sheets, scripts and pictures. Their names do not change with the version, so browsers must ask again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fastapi.staticfiles import StaticFiles
from starlette.responses import Response

from ...paths import CLIENT_SCRIPT


class RevalidatedFiles(StaticFiles):
    """Answers "not modified" by ETag; without the header a browser may keep an old script after an upgrade.

    With the client for programs in JavaScript, as ``js/leakline.js``, which pages of every origin may load.
    """

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        if path == str(Path("js", CLIENT_SCRIPT.name)):
            return str(CLIENT_SCRIPT), CLIENT_SCRIPT.stat()
        return super().lookup_path(path)

    def file_response(
        self, full_path: str | os.PathLike[str], *args: Any, **kwargs: Any
    ) -> Response:
        response = super().file_response(full_path, *args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        if str(full_path) == str(CLIENT_SCRIPT):
            # A script that may not be loaded ends the page's own script, and with it the training.
            response.headers["Access-Control-Allow-Origin"] = "*"
            response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
        return response
