"""Style sheets, scripts and pictures. Their names do not change with the version, so browsers must ask again."""

from __future__ import annotations

from typing import Any

from fastapi.staticfiles import StaticFiles
from starlette.responses import Response


class RevalidatedFiles(StaticFiles):
    """Answers "not modified" by ETag; without the header a browser may keep an old script after an upgrade."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response
