"""From a batch to the page: what a device told, under the names that people read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

DATA = Path(__file__).resolve().parents[1] / "data"


def page_of(api: TestClient, make_run: Any, machine: str) -> str:
    told = json.loads((DATA / f"gpu_{machine}.json").read_text(encoding="utf-8"))["expected"]
    run = make_run(extra={name: lambda _, value=value: value for name, value in told.items()})
    run.create(api)
    run.send(api, 0, 12)
    answer = api.get(f"/runs/{run.id}")
    assert answer.status_code == 200
    return answer.text


def lines_of(page: str) -> set[str]:
    return set(re.findall(r"(?:GPU \d+|Metal) [a-z][a-z, ]+", page))


def test_a_page_shows_each_device_and_what_could_not_be_given(
    api: TestClient, make_run: Any
) -> None:
    page = page_of(api, make_run, "two_h200")
    for device in (0, 1):
        for what in ("allocated", "reserved", "active", "outside torch", "this process, driver"):
            assert f"GPU {device} {what}" in lines_of(page)
    assert "torch emptied its cache and tried again twice and ran out of memory once." in page
    assert "None of them sees memory outside torch" in page


def test_a_page_has_no_line_for_what_is_not_known(api: TestClient, make_run: Any) -> None:
    lines = lines_of(page_of(api, make_run, "rtx4090_in_a_container"))
    assert "GPU 0 in use, driver" in lines
    assert not any("outside torch" in line or "this process" in line for line in lines)
