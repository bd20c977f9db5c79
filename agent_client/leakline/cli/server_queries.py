"""Shared parts of the commands that query a server: the address option, requests, and the resolution of run names."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from ..errors import LeaklineError, ServerRefused
from ..settings import resolve
from ..transport.http_delivery import API, request_json


class Asker:
    """Client of one server. Every request may raise ServerUnreachable or ServerRefused."""

    def __init__(self, server: str | None) -> None:
        settings = resolve(server=server)
        self.server, self._token = settings.server, settings.token
        self._ca_file = settings.ca_file

    def get(self, path: str, query: Mapping[str, object] | None = None) -> dict[str, Any]:
        return self._request(path, query, API)

    def markdown(self, path: str, query: Mapping[str, object] | None = None) -> str:
        """Return a Markdown report. Unlike in `get`, ``path`` is not relative to the API prefix."""
        return str(self._request(path, query, "").get("markdown", ""))

    def _request(self, path: str, query: Mapping[str, object] | None, base: str) -> dict[str, Any]:
        known = {name: value for name, value in (query or {}).items() if value is not None}
        asked = f"{path}?{urlencode(known)}" if known else path
        return request_json(
            self.server, "GET", asked, token=self._token, ca_file=self._ca_file, base=base
        )

    def run_id(self, wanted: str) -> str:
        """Return the id of a run. ``wanted`` is a run id, or ``project/name`` for the newest run of that name."""
        project, slash, name = wanted.partition("/")
        if not slash:
            return self._known(wanted)
        cursor: object = None
        while True:
            # The newest run comes first. The search also matches parts of names, so its results are filtered.
            page = self.get("/runs", {"project": project, "q": name, "cursor": cursor})
            for run in page["items"]:
                if (run["project"], run["name"]) == (project, name):
                    return str(run["id"])
            cursor = page.get("next")
            if not cursor:
                raise LeaklineError(
                    f"no run {name!r} in project {project!r} on {self.server}; list them with: leakline runs"
                )

    def _known(self, run_id: str) -> str:
        try:
            return str(self.get(f"/runs/{quote(run_id, safe='')}")["id"])
        except ServerRefused as refused:
            if refused.status != 404:
                raise
            raise LeaklineError(
                f"no run {run_id!r} on {self.server}; list them with: leakline runs"
            ) from None


def add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server",
        help="address of the server (default: LEAKLINE_SERVER, otherwise http://127.0.0.1:8765)",
    )
