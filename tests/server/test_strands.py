"""What is kept beside chunks of each phase and kind: exact, noticed when damaged, and not needed for any answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, update
from starlette.testclient import TestClient
from tests.server.stored import LATER, engine_of, make_idle

from leakline_server.store import columns, compaction, pieces, points, sealing, stranded, strands
from leakline_server.store.codec import Array, CorruptChunk, Numbers, Texts, texts
from leakline_server.store.columns import PHASE, SEQUENCE, Key
from leakline_server.store.cutting import Cut
from leakline_server.store.engine import Engine, writing
from leakline_server.store.pieces import FIRST, LAST, MAX, MIN, PRESENT
from leakline_server.store.tables import chunks

pytestmark = pytest.mark.long

PHASES: Sequence[str | None] = ("evaluate", "train", None)


def cut_of(phases: Sequence[str | None], kinds: Sequence[str | None]) -> Cut:
    return Cut(np.arange(len(phases)), texts(phases), texts(kinds))


@settings(max_examples=150)
@given(st.data())
def test_cells_tell_what_the_entries_of_their_strand_and_piece_say(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 1_300))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    phases = [PHASES[i] for i in random.integers(0, 3, count)]
    kinds = [("phase_end", "mark")[i] for i in random.integers(0, 2, count)]
    cut = cut_of(phases, kinds)
    assert cut.strands is not None
    reach = data.draw(st.sampled_from((1, 9, 2**12, 2**40, 2**52)))
    values = random.integers(-reach, reach, count) << data.draw(st.sampled_from((0, 12)))
    column: Array = values / 8 if data.draw(st.booleans()) else values
    there = random.random(count) < data.draw(st.sampled_from((0.0, 0.02, 0.5, 1.0)))
    named = Numbers(np.where(there, column, 0), None if there.all() else there)
    beside = cut.beside(SEQUENCE, Numbers(np.arange(count))).strands or b""
    lengths = np.array([strands.cells_of(beside)])
    sequence = strands.unpack_all([beside], lengths, None)
    found = strands.unpack_all([cut.strands.pack(named)], lengths, sequence[:, PRESENT])
    ordered = strands.read_names(cut.strands.names())
    piece = np.repeat(np.arange(len(cut.starts)), np.diff([*cut.starts, count]))
    for cell, record in enumerate(found):
        strand = ordered[cell // len(cut.starts)]
        mine = np.array([pair == strand for pair in zip(phases, kinds, strict=True)])
        mine &= piece == cell % len(cut.starts)
        assert sequence[cell, PRESENT] == mine.sum()
        of_cell = column[mine & there]
        assert record[PRESENT] == len(of_cell)
        expected = (
            (of_cell[0], of_cell[-1], of_cell.min(), of_cell.max()) if len(of_cell) else (0,) * 4
        )
        assert tuple(record[[FIRST, LAST, MIN, MAX]]) == expected


@given(st.integers(0, 10**9), st.integers(0, 10**6), st.booleans())
def test_damaged_strands_are_noticed(value: int, bit: int, names: bool) -> None:
    cut = cut_of(["a", None, "a"], ["phase_end", "generation_end", "phase_end"])
    assert cut.strands is not None
    packed = bytearray(
        cut.strands.names() if names else cut.strands.pack(Numbers(np.array([value, 7, 9])))
    )
    packed[bit // 8 % len(packed)] ^= 1 << bit % 8
    with pytest.raises(CorruptChunk):
        if names:
            strands.read_names(bytes(packed))
        else:
            strands.unpack_all([bytes(packed)], np.array([2]), np.array([2, 1]))


def test_strands_of_another_segment_are_damage() -> None:
    cut = cut_of(["a", "b", "a"], ["phase_end"] * 3)
    assert cut.strands is not None
    packed = cut.strands.pack(Numbers(np.array([1, 2, 30])))
    for lengths, counts in ((3, [1, 1, 1]), (1, [3])):
        with pytest.raises(CorruptChunk):
            strands.unpack_all([packed], np.array([lengths]), np.array(counts))
    with pytest.raises(CorruptChunk):
        strands.cells_of(packed)


def test_a_stretch_of_very_many_phases_has_none() -> None:
    phases = [f"p{i}" for i in range(strands.MOST + 1)]
    assert cut_of(phases, ["phase_end"] * len(phases)).strands is None
    assert cut_of(phases[1:], ["phase_end"] * (len(phases) - 1)).strands is not None


# -- of a run that is stored

COUNT = 6_000
SPIKE_AT = 3_000
EXTRA: dict[str, Callable[[int], Any]] = {
    "spike": lambda i: 10**12 if i == SPIKE_AT + 1 else 7,
    "float": lambda i: i / 8,
    "sparse": lambda i: i if i % 97 == 0 else None,
}
ASKED = "name=spike&name=float&name=sparse&phase=*&kind=phase_end&points=4"


@pytest.fixture
def api(api: TestClient, make_run: Any, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """Two phases and an end a generation, and one spike of a single snapshot, in the second phase."""
    monkeypatch.setattr(points, "CHUNK_RATIO", 16)
    run = make_run(extra=EXTRA)
    run.create(api)
    run.send(api, 0, COUNT)
    return api


def series(api: TestClient, query: str = ASKED) -> list[dict[str, Any]]:
    answer = api.get(f"/api/v1/runs/r1/series?{query}")
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def compact(engine: Engine) -> None:
    make_idle(engine)
    key = Key("r1", 1)
    while sealing.seal_one(engine, key, LATER).snapshots:
        continue
    while compaction.compact(engine, key, LATER):
        continue


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many snapshots were read one by one since it was asked last."""
    counted = [0]
    plain = columns.read

    def read(*arguments: Any) -> Any:
        block = plain(*arguments)
        counted[0] += len(block)
        return block

    monkeypatch.setattr(stranded, "read", read)

    def since() -> int:
        found, counted[0] = counted[0], 0
        return found

    return since


@pytest.mark.parametrize("compacted", [False, True], ids=["as it came", "compacted"])
def test_a_line_of_a_phase_is_made_of_its_snapshots_alone(
    compacted: bool, api: TestClient, opened: Callable[[], int]
) -> None:
    if compacted:
        compact(engine_of(api))
    items = series(api)
    assert (opened() == 0) == compacted
    assert [(item["name"], item["phase"]) for item in items] == [
        (name, phase) for phase in ("evaluate", "train") for name in ("spike", "float", "sparse")
    ]
    for item in items:
        assert {name: item[name] for name in ("x", "first", "last", "min", "max")} == under(
            item["name"], ("evaluate", "train").index(item["phase"])
        )


def under(name: str, place: int, width: int = 2_048) -> dict[str, list[float]]:
    """The points of a line, of the snapshots at this place of each generation."""
    found: dict[str, list[float]] = {"x": [], "first": [], "last": [], "min": [], "max": []}
    for low in range(0, COUNT, width):
        mine = [i for i in range(low, min(COUNT, low + width)) if i % 3 == place]
        values = [v for v in map(EXTRA[name], mine) if v is not None]
        numbers = (mine[0] // 3, values[0], values[-1], min(values), max(values))
        for column, number in zip(found.values(), numbers, strict=True):
            column.append(number)
    return found


def test_of_a_stretch_only_what_lies_at_its_ends_is_opened(
    api: TestClient, opened: Callable[[], int]
) -> None:
    asked = f"{ASKED}&from=10&to={COUNT // 3 - 10}"
    before = series(api, asked)
    assert before[0]["x"][0] == 10
    opened()
    compact(engine_of(api))
    assert series(api, asked) == before
    assert 0 < opened() <= COUNT


def test_what_an_older_version_compacted_is_read_as_before(
    api: TestClient, opened: Callable[[], int]
) -> None:
    before, engine = series(api), engine_of(api)
    compact(engine)
    with writing(engine) as connection:
        one = connection.scalar(select(func.max(chunks.c.first_sequence)))
        connection.execute(update(chunks).where(chunks.c.first_sequence < one).values(strands=None))
    opened()
    assert series(api) == before
    assert 0 < opened() < COUNT


@pytest.mark.parametrize("column", [PHASE, SEQUENCE, 1])
def test_damaged_strands_cost_nothing_but_time(
    column: int, api: TestClient, opened: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    before, engine = series(api), engine_of(api)
    compact(engine)
    number = column
    if column > 0:
        with engine.connect() as connection:
            number = columns.series_ids(connection, "r1")["float"]
    with writing(engine) as connection:
        this = (chunks.c.series_id == number) & (chunks.c.first_sequence == 0)
        there = connection.execute(select(chunks.c.strands).where(this)).scalar_one()
        broken = bytes((*there[:-1], there[-1] ^ 1))
        connection.execute(update(chunks).where(this).values(strands=broken))
    opened()
    assert series(api) == before
    assert 0 < opened() < COUNT
    assert "the strands" in caplog.text


def test_a_line_of_several_phases_is_read_from_their_snapshots(
    api: TestClient, opened: Callable[[], int]
) -> None:
    asked = "name=float&kind=phase_end&points=4"
    before = series(api, asked)
    compact(engine_of(api))
    opened()
    assert series(api, asked) == before
    assert opened() == COUNT


@pytest.mark.parametrize("asked", ["phase=never", "kind=never", "phase=train&kind=never"])
def test_what_is_not_there_has_no_line(asked: str, api: TestClient) -> None:
    compact(engine_of(api))
    assert series(api, f"name=float&{asked}&points=4") == []


def test_pieces_and_strands_are_cut_at_the_same_numbers() -> None:
    sequence = np.cumsum(np.random.default_rng(1).integers(1, 9, 3_000))
    cut = Cut(sequence, Texts(("a",), np.zeros(3_000, np.int32)), texts(["phase_end"] * 3_000))
    told = cut.beside(SEQUENCE, Numbers(sequence))
    lengths = np.array([strands.cells_of(told.strands or b"")])
    cells = strands.unpack_all([told.strands], lengths, None)
    assert cells.tolist() == pieces.unpack(told.pieces or b"").tolist()
