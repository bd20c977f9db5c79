"""Links out of the pages: only to the web, only where they say themselves that they lead. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlsplit

from .contexts import Cell

MAX_LINK: Final = 2_000
# Host -> where a commit lies below a repository, and where a line of a file.
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


def web_link(link: object) -> Cell | None:
    """A link of the training, told by its host; None for anything that leads elsewhere than into the web."""
    if not isinstance(link, str) or len(link) > MAX_LINK or re.search(r"[\s\x00-\x1f\\]", link):
        return None
    try:
        parts = urlsplit(link)
        host = parts.hostname
    except ValueError:
        return None
    # What stands before an @ is a way to show one host and lead to another.
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc:
        return None
    return Cell(host, href=link, title=link, outside=True)


def commit_link(environment: Mapping[str, Any]) -> str | None:
    """Where the commit of an attempt can be read; None where its repository is on no forge that is known."""
    place = _place(environment)
    return f"{place[0]}/{_FORGES[place[1]][0]}{environment['commit']}" if place else None


def code_link(environment: Mapping[str, Any], location: object) -> str | None:
    """Where ``training/trainer.py:281`` can be read at that commit."""
    place = _place(environment)
    found = _LOCATION.fullmatch(location) if isinstance(location, str) else None
    if place is None or found is None or ".." in found["path"].split("/"):
        return None
    below = _FORGES[place[1]][1].format(
        commit=environment["commit"], path=quote(found["path"]), line=found["line"]
    )
    return f"{place[0]}/{below}"


def _place(environment: Mapping[str, Any]) -> tuple[str, str] | None:
    """(https address of the repository, its forge)"""
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
