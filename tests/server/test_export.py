"""An exported run has every snapshot once, in three formats, in bounded memory and without formulas."""

from __future__ import annotations

import builtins
import csv
import io
import json
import re
from itertools import product
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.browser.hostile_labels import LABELS
from tests.server.stored import engine_of, seal

from leakline_server import run_export
from leakline_server.store import snapshot_rows
from leakline_server.store.maintenance import run_deletion
from leakline_server.text_cleaning import without_control


@pytest.fixture
def run(api: TestClient, make_run: Any) -> Any:
    """Create two processes with gaps, a late batch, integers that become floats, and names that look like formulas."""
    made = make_run(
        extra={
            "gauge.mixed": lambda i: i if i < 100 else i + 0.5,
            "gauge.rare": lambda i: i if i % 50 == 0 else None,
            "=1+2": lambda i: 7,
            "＝1+2": lambda i: 8,
            " @1+2": lambda i: 9,
            "time": lambda i: -i,
        }
    ).begin(api, 100, size=50)
    made.send(api, 150, 50)
    seal(engine_of(api))
    made.send(api, 100, 30)
    other = make_run(instance="+p2", rank=1, extra={"only.here": lambda i: i * 2})
    other.send(api, 0, 90, size=45)
    return made


SENT = [*range(130), *range(150, 200)]


def exported(api: TestClient, form: str) -> bytes:
    answer = api.get(f"/api/v1/runs/r1/export.{form}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"] == f'attachment; filename="r1.{form}"'
    return answer.content


def test_json_has_every_snapshot_with_its_samples(api: TestClient, run: Any) -> None:
    found = json.loads(exported(api, "json"))
    assert (found["format"], found["version"], found["run"]["id"]) == ("leakline-export", 1, "r1")
    first = [row for row in found["snapshots"] if row["process"] == "p1"]
    assert [row["sequence"] for row in first] == SENT
    for row in first:
        sent = run.snapshot(row["sequence"])
        assert row["samples"] == sent.samples
        for name in ("time", "monotonic", "generation", "phase", "label", "kind"):
            assert row[name] == getattr(sent, name)
    second = [row for row in found["snapshots"] if row["process"] == "+p2"]
    assert [row["samples"]["only.here"] for row in second] == [i * 2 for i in range(90)]
    assert found["events"] == api.get("/api/v1/runs/r1/events").json()["items"]
    assert found["large_objects"] and found["holders"]


def test_csv_has_a_column_for_each_series_and_no_formula(api: TestClient, run: Any) -> None:
    text = exported(api, "csv").decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(SENT) + 90
    for row in rows[: len(SENT)]:
        sent = run.snapshot(int(row["sequence"]))
        assert float(row["time"]) == sent.time
        assert row["series.time"] == str(-sent.sequence)
        assert float(row["gauge.mixed"]) == sent.samples["gauge.mixed"]
        assert row["process.rss_bytes"] == str(sent.samples["process.rss_bytes"])
        assert row["gauge.rare"] == str(sent.samples.get("gauge.rare", ""))
        assert row["only.here"] == ""
        assert row["phase"] == (sent.phase or "")
    assert {row["process"] for row in rows} == {"p1", "'+p2"}
    cells = [cell for line in csv.reader(io.StringIO(text)) for cell in line]
    texts = [cell for cell in cells if cell and not _is_number(cell)]
    assert {"'=1+2", "'＝1+2", "' @1+2"} <= set(texts)
    assert [cell for cell in texts if cell.strip()[0] in "=+-@＝＋－＠"] == []


def test_hostile_names_are_text_in_every_file(api: TestClient, make_run: Any) -> None:
    run = make_run()
    run.create(api)
    wire = run.wire(0, len(LABELS))
    wire["columns"] |= {"label": list(LABELS), "phase": [label[:60] for label in LABELS]}
    wire["columns"]["series"] |= {f"type.{label}.count": [1] * len(LABELS) for label in LABELS}
    assert api.post("/api/v1/runs/r1/batches", json=wire).status_code == 200
    clean = [without_control(label) for label in LABELS]
    rows = json.loads(exported(api, "json"))["snapshots"]
    assert [row["label"] for row in rows] == clean
    # A name with control characters gets a hash of the original; the others are unchanged.
    names = {re.sub(r"~[0-9a-f]{12}", "", name) for name in rows[0]["samples"]}
    assert {f"type.{label}.count" for label in clean} <= names
    assert {f"type.{label}.count" for label in clean if label in LABELS} <= set(rows[0]["samples"])
    table = list(csv.DictReader(io.StringIO(exported(api, "csv").decode(), newline="")))
    # Apostrophes keep a spreadsheet from reading a formula.
    assert [row["label"].replace("'", "") for row in table] == [c.replace("'", "") for c in clean]
    texts = [cell for row in table for cell in (row["label"], row["phase"], *row)]
    assert not [cell for cell in texts if cell.strip()[:1] in (*"=+-@＝＋－＠",)]


def test_no_spreadsheet_finds_a_formula_with_any_cell_separator(
    api: TestClient, make_run: Any
) -> None:
    labels = [
        f"{before}{space}{sign}1+2{after}"
        for before in ("a;", "a|", "; ;", 'a;"', "a;'", "")
        for space in ("", " ")
        for sign in "=+-@＝＋－＠"
        for after in ("", ";")
    ]
    run = make_run()
    run.create(api)
    wire = run.wire(0, len(labels))
    wire["columns"] |= {"label": labels}
    assert api.post("/api/v1/runs/r1/batches", json=wire).status_code == 200
    text = exported(api, "csv").decode()

    def cells(between: str, quote: str | None) -> list[str]:
        quoting = csv.QUOTE_NONE if quote is None else csv.QUOTE_MINIMAL
        file = io.StringIO(text, newline="")
        rows = csv.reader(file, delimiter=between, quotechar=quote, quoting=quoting)
        return [cell for row in rows for cell in row]

    there = [cell.replace("'", "") for cell in cells(",", '"') if "1+2" in cell]
    assert there == [label.replace("'", "") for label in labels]
    for between, quote in product(",;\t|", ('"', None)):
        suspects = [
            cell for cell in cells(between, quote) if re.match("""[\\s"']*[=+@＝＋－＠-]""", cell)
        ]
        assert all(cell.startswith("'") or _is_number(cell) for cell in suspects)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_parquet_can_be_read_by_other_libraries(api: TestClient, run: Any) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(io.BytesIO(exported(api, "parquet")))
    found = table.to_pydict()
    first = [i for i, process in enumerate(found["process"]) if process == "p1"]
    assert [found["sequence"][i] for i in first] == SENT
    for i in first:
        sent = run.snapshot(found["sequence"][i])
        assert found["gauge.mixed"][i] == sent.samples["gauge.mixed"]
        assert found["process.rss_bytes"][i] == sent.samples["process.rss_bytes"]
        assert found["gauge.rare"][i] == sent.samples.get("gauge.rare")
        assert found["phase"][i] == sent.phase
        assert found["series.time"][i] == -sent.sequence
    assert found["generation"] == [
        *(run.snapshot(s).generation for s in SENT),
        *(i // 3 for i in range(90)),
    ]


def test_a_missing_run_is_an_error_and_an_empty_run_is_a_file(
    api: TestClient, make_run: Any
) -> None:
    for form in ("json", "csv", "parquet"):
        answer = api.get(f"/api/v1/runs/nobody/export.{form}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "run_not_found")
    make_run().create(api)
    assert json.loads(exported(api, "json"))["snapshots"] == []
    assert len(exported(api, "csv").splitlines()) == 1
    assert exported(api, "parquet")[:4] == b"PAR1"
    answer = api.get("/api/v1/runs/r1/export.xlsx")
    assert answer.status_code == 422
    assert "parquet" in answer.json()["error"]["message"]


def test_without_pyarrow_the_error_says_what_to_install(
    api: TestClient, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    answer = api.get("/api/v1/runs/r1/export.parquet")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "parquet_not_installed")
    assert "pip install 'leakline[parquet]'" in answer.json()["error"]["message"]


def test_steps_lose_nothing_while_rows_move_and_end_if_the_run_is_removed(
    api: TestClient, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seal waiting snapshots in the middle of the export."""
    monkeypatch.setattr(snapshot_rows, "ROWS_PER_STEP", 60)
    make_run().begin(api, 300, size=20)
    engine = engine_of(api)
    found: list[int] = []
    for part in snapshot_rows.parts(engine, "r1", snapshot_rows.names(engine, "r1")):
        found += part.fixed["sequence"].to_list()  # type: ignore[arg-type]
        if len(found) == 120:
            seal(engine)
    assert found == list(range(300))
    api.patch("/api/v1/runs/r1", json={"state": "finished"})
    pieces = run_export.export(engine, "r1", "csv")
    next(pieces), next(pieces)
    run_deletion.remove(engine, "r1", 1.0)
    with pytest.raises(snapshot_rows.Gone):
        list(pieces)


def test_no_step_holds_more_than_one_step_and_one_segment(
    api: TestClient, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a long export therefore takes as much memory as a short export."""
    monkeypatch.setattr(snapshot_rows, "ROWS_PER_STEP", 100)
    run = make_run()
    run.create(api)
    engine = engine_of(api)
    for first in range(0, 1_000, 200):
        run.send(api, first, 200, size=50)
        seal(engine)
    run.send(api, 1_000, 300, size=50)
    parts = snapshot_rows.parts(engine, "r1", snapshot_rows.names(engine, "r1"))
    steps = [len(part) for part in parts]
    assert sum(steps) == 1_300
    assert max(steps) <= 100 + 512
    rows = [piece.count(b"\n") for piece in run_export.export(engine, "r1", "csv")]
    assert max(rows) <= 256
