"""docs/compared.md: 67 rows with a word for every tool, a page and a test for each claim of ours, costs as measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest
from benchmarks import compared
from benchmarks.server import loggers, subjects
from benchmarks.server.rows import to_json

from leakline.transport.spool_format import read_batches
from leakline_server.web import docs as documents

ROOT: Final = Path(__file__).resolve().parents[2]
TEXT: Final = (ROOT / "docs" / "compared.md").read_text(encoding="utf-8")
TOOLS: Final = (
    "Leakline", "W&B", "MLflow", "trackio", "TraceML", "Stormlog", "memray", "CUDA snapshot", "Coroot", "memlab",
    "LeakCanary",
)  # fmt: skip
OTHERS: Final = TOOLS[1:]
WRITTEN: Final = TEXT.partition(compared.BEGIN)[2].partition(compared.END)[0]


def section(heading: str) -> str:
    return TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def features() -> dict[int, tuple[str, dict[str, str], str]]:
    """Of each row: what it is, the word of each tool, and where more is said."""
    found = {}
    rows = re.findall(r"^\| (\d+) \| (?!`)(.+) \|$", section("The 67 features"), re.M)
    assert [int(number) for number, _ in rows] == list(range(1, 68))
    for number, rest in rows:
        what, *words, more = rest.split(" | ")
        found[int(number)] = (what, dict(zip(TOOLS, words, strict=True)), more)
    return found


# -- the features ------------------------------------------------------------------------------------------


def test_every_tool_has_a_word_in_every_row_and_of_ourselves_we_know() -> None:
    heads = re.findall(r"^\| # \| what \| (.+) \| more \|$", section("The 67 features"), re.M)
    assert heads == [" | ".join(TOOLS)] * 7
    for number, (what, words, _) in features().items():
        assert what.strip()
        assert set(words.values()) <= {"yes", "partly", "no", "?"}, number
        assert words["Leakline"] != "?", number


def test_what_we_only_have_in_part_is_said() -> None:
    said = dict(re.findall(r"^- \*\*(\d+)\*\* (.+)$", section("The 67 features"), re.M))
    partly = [n for n, (_, words, _) in features().items() if words["Leakline"] == "partly"]
    assert partly
    assert [n for n in partly if "Leakline" not in said.get(str(n), "")] == []


def test_every_claim_of_ours_leads_to_a_page_and_a_test() -> None:
    listed = re.findall(r"^\| (\d+) \| `([^`]+)` \|$", section("The tests behind it"), re.M)
    claimed = [n for n, (_, words, _) in features().items() if words["Leakline"] != "no"]
    assert sorted(int(number) for number, _ in listed) == claimed
    for number, name in listed:
        # Whether a link and its anchor arrive, test_documents.py asks of every document.
        assert re.fullmatch(r"\[[^]]+\]\([\w/.#-]+\)", features()[int(number)][2]), number
        assert (ROOT / name).is_file(), f"{number}: {name} does not exist"
        text = (ROOT / name).read_text(encoding="utf-8")
        assert re.search(r"^(async )?def test_", text, re.M), number


def test_what_only_we_do_is_what_no_other_has() -> None:
    lists = re.findall(r"\(([\d, ]+)\)", section("What only Leakline does"))
    alone = {
        number
        for number, (_, words, _) in features().items()
        if words["Leakline"] == "yes" and "yes" not in [words[tool] for tool in OTHERS]
    }
    assert {int(number) for each in lists for number in each.split(", ")} == alone


@pytest.mark.parametrize("heading", ["What each is for", "What they do better", "Sources"])
def test_every_other_tool_is_spoken_of(heading: str) -> None:
    assert [tool for tool in OTHERS if tool not in section(heading)] == []


def test_every_source_is_an_address_of_the_web() -> None:
    rows = re.findall(r"^\| [\w& ]+ \| (\[.+)\|$", section("Sources"), re.M)
    assert len(rows) > len(OTHERS)
    assert all(re.search(r"\]\(https://[\w.-]+/\S+\)", row) for row in rows)


def test_a_server_shows_the_page_with_every_table_and_without_its_marks() -> None:
    body = documents.read("compared.md").body
    assert body.count("<table>") == len(re.findall(r"^\|(?: ---:? \|)+$", TEXT, re.M)) > 12
    assert "compared: begin" not in body


# -- what it costs -----------------------------------------------------------------------------------------


@pytest.fixture
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(compared.RECORDED.read_text(encoding="utf-8"))
    return found


def tables(text: str) -> list[list[list[str]]]:
    """The lines of each table, without the one below its heads."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, re.M)
    lines = [[line for line in block.splitlines() if "---" not in line] for block in blocks]
    return [[line[2:-2].split(" | ") for line in each] for each in lines]


def test_the_page_has_what_was_measured_last_and_where(recorded: dict[str, Any]) -> None:
    assert compared.page(recorded) == WRITTEN, "run: make bench-compared BENCH_ARGS=--again"
    first = WRITTEN.splitlines()[0]
    assert recorded["date"] in first
    assert recorded["client"]["machine"] in first
    assert all(f"{name} {version}" in first for name, version in recorded["versions"].items())


def test_every_cost_says_what_it_contains_and_none_is_empty_but_where_nothing_was_asked() -> None:
    found = tables(WRITTEN)
    assert len(found) == 4
    for head, *rows in found:
        assert head[-1] == "contains"
        assert all(len(row) == len(head) and row[0] and row[-1] for row in rows)


def test_writing_twice_is_writing_once(recorded: dict[str, Any]) -> None:
    assert compared.between(TEXT, compared.page(recorded)) == TEXT
    other = compared.between(TEXT, "written anew\n")
    assert other.count("written anew\n") == 1
    assert compared.between(other, WRITTEN) == TEXT


@pytest.mark.parametrize("mark", [compared.BEGIN, compared.END])
def test_a_document_without_a_mark_is_left_alone(mark: str) -> None:
    with pytest.raises(SystemExit, match=mark.strip()):
        compared.between(TEXT.replace(mark, ""), WRITTEN)


def test_a_peer_that_is_not_installed_has_a_row_without_a_figure(
    recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(subjects, "PEERS", tmp_path)
    monkeypatch.setattr(loggers, "SNAPSHOTS", 3)
    (part,) = loggers.measure()
    found = deepcopy(recorded)
    kept = [each for each in found["server"]["parts"] if not each["title"].startswith("loggers")]
    found["server"]["parts"] = [*kept, to_json(part)]
    for row in found["client"]["rows"]:
        if "memray" in row["name"]:
            row |= {"figures": {}, "missing": "not measured"}
    shown = tables(compared.page(found))
    assert [row[1] for row in shown[2][1:]] == ["1.00", *["not installed here"] * 4]
    loops = {row[0]: row[1:4] for row in shown[0]}
    assert loops["memray"] == ["not installed here"] * 3
    assert loops["tracemalloc, 1 frame"] != ["not installed here"] * 3


def test_what_our_client_is_charged_for_is_all_recorded(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.server.tracked", "leakline", "65", "20", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    cpu, wall = json.loads(ended.stdout.splitlines()[-1])
    assert 0 < cpu < 60 and wall > 0
    (spool,) = tmp_path.rglob("*.spool")
    snapshots = [snapshot for batch in read_batches(spool) for snapshot in batch.snapshots]
    logged = [snapshot for snapshot in snapshots if snapshot.label == "logged"]
    assert [snapshot.generation for snapshot in logged] == list(range(20))
    for step, snapshot in enumerate(logged):
        gauges = {k: v for k, v in snapshot.samples.items() if k.startswith("gauge.")}
        assert gauges == {f"gauge.series_{name}": step * name for name in range(65)}
