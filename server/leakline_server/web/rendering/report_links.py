"""Where the reports of a run and of a comparison are: what the button and the menu at the head of a page lead to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

MAX_FILE_NAME: Final = 80
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._]+")


@dataclass(frozen=True, slots=True)
class Share:
    text_href: str
    html_href: str
    markdown_href: str
    json_href: str
    csv_href: str = ""  # nothing where there is none


def share_run(run_id: str, process: str = "") -> Share:
    """Return the addresses of a run's reports; that of the HTML file names the process that the page shows."""
    address = f"/runs/{quote(run_id, safe='')}"
    shown = f"?{urlencode({'process': process})}" if process else ""
    return Share(
        f"{address}/report.txt",
        f"{address}/report.html{shown}",
        f"{address}/report.md",
        f"/api/v1{address}/verdict",
    )


def share_comparison(before: str, after: str) -> Share:
    which = urlencode({"before": before, "after": after})
    return Share(
        f"/compare/report.txt?{which}",
        f"/compare/report.html?{which}",
        f"/compare/report.md?{which}",
        f"/api/v1/compare?{which}",
        f"/compare/report.csv?{which}",
    )


def file_name(words: tuple[str, ...], ending: str) -> str:
    """``leakline-erl-trading-before-fix.html``: what every file system takes, whatever a run is called."""
    plain = (_NOT_IN_NAMES.sub("-", word).strip("-.") for word in words)
    name = "-".join(("leakline", *filter(None, plain)))
    return f"{name[:MAX_FILE_NAME].rstrip('-.')}.{ending}"
