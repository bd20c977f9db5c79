"""Code locations of findings, taken from declared fixes, and links to their source lines. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from ..assertions.checks import declared_fixes
from ..results import Finding
from ..run_history import RunHistory
from ..timeline import top_level

# Host -> URL paths, below the repository's address, of a commit and of a line in a file.
_FORGES: Final = {
    "github.com": ("commit/", "blob/{commit}/{path}#L{line}"),
    "gitlab.com": ("-/commit/", "-/blob/{commit}/{path}#L{line}"),
    "bitbucket.org": ("commits/", "src/{commit}/{path}#lines-{line}"),
    "codeberg.org": ("commit/", "src/commit/{commit}/{path}#L{line}"),
}  # fmt: skip
_COMMIT: Final = re.compile(r"[0-9a-f]{7,64}")
_REPOSITORY: Final = re.compile(
    r"(?:https://(?:[^/@\s]*@)?|ssh://(?:git@)?|git@)(?P<host>[\w.-]+)(?::\d+)?[:/](?P<path>[\w.~-]+(?:/[\w.~-]+)+)/?"
)
_LOCATION: Final = re.compile(r"(?P<path>[\w.~-]+(?:/[\w.~-]+)*):(?P<line>\d{1,7})")


def located(findings: Sequence[Finding], history: RunHistory) -> list[Finding]:
    """Return the findings with code locations and links, taken from the newest fix of each finding's phase."""
    places: dict[str | None, str] = {
        fix.phase: fix.location for fix in declared_fixes(history) if fix.phase and fix.location
    }
    return [_at(each, _of_phase(each, places), history.environment) for each in findings]


def _at(finding: Finding, location: str | None, environment: Mapping[str, Any]) -> Finding:
    if location is None:
        return finding
    return replace(finding, location=location, location_link=code_link(environment, location))


def _of_phase(finding: Finding, places: Mapping[str | None, str]) -> str | None:
    """Return the location for a finding. A fix of a nested phase takes precedence over a fix of an outer phase."""
    path = finding.phase_path or finding.phase
    if path is None:
        return None
    return places.get(path) or places.get(finding.phase) or places.get(top_level(path))


def commit_link(environment: Mapping[str, Any]) -> str | None:
    """Return the link to an attempt's commit, or None if the repository is not on a known forge."""
    place = _place(environment)
    return f"{place[0]}/{_FORGES[place[1]][0]}{environment['commit']}" if place else None


def code_link(environment: Mapping[str, Any], location: object) -> str | None:
    """Return the link to a location such as ``training/trainer.py:281`` at an attempt's commit, or None."""
    place = _place(environment)
    found = _LOCATION.fullmatch(location) if isinstance(location, str) else None
    if place is None or found is None or ".." in found["path"].split("/"):
        return None
    below = _FORGES[place[1]][1].format(
        commit=environment["commit"], path=quote(found["path"]), line=found["line"]
    )
    return f"{place[0]}/{below}"


def _place(environment: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return (https address of the repository, its forge), or None if they are not known."""
    repository, commit = environment.get("repository"), environment.get("commit")
    if not isinstance(repository, str) or not isinstance(commit, str):
        return None
    found = _REPOSITORY.fullmatch(repository)
    if not found or found["host"] not in _FORGES or not _COMMIT.fullmatch(commit):
        return None
    path = found["path"].removesuffix(".git")
    if ".." in path.split("/"):
        return None
    return f"https://{found['host']}/{path}", found["host"]
