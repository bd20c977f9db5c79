"""What changed between two points of a run: correct numbers, the leak first, null for unknown values."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from starlette.testclient import TestClient

MIB = 2**20
LEAK = 10 * MIB
GENERATIONS = 60
# The rank that leaks begins to leak in this generation.
STARTS = 5


def grown(generation: int) -> int:
    return max(0, generation - STARTS)


def at_end(value: Callable[[int], int | None]) -> Callable[[int], int | None]:
    """Return a value only at the end of a generation."""
    return lambda i: value(i // 3) if i % 3 == 2 else None


SAMPLES: Mapping[str, Callable[[int], int | None]] = {
    "phase.train.bytes": at_end(lambda g: LEAK if g > STARTS else 0),
    "phase.evaluate.bytes": at_end(lambda g: 0),
    "phase.between.bytes": at_end(lambda g: 0),
    "process.anon_bytes": lambda i: 2**30 + LEAK * grown(i // 3),
    "type.app.Env.count": at_end(lambda g: 2 + 4 * grown(g)),
    "type.app.Env.bytes": at_end(lambda g: 2 * MIB * (2 + 4 * grown(g))),
    "type.app.Steady.count": at_end(lambda g: 17),
    "type.app.Steady.bytes": at_end(lambda g: 1700),
    # Counted at every tenth generation, and its bytes are never measured.
    "type.app.Rare.count": at_end(lambda g: g if g % 10 == 0 else None),
    # Seen for the first time in generation 30.
    "type.app.Late.count": at_end(lambda g: g if g >= 30 else None),
}
QUIET = {
    "phase.evaluate.bytes": at_end(lambda g: 0),
    "process.anon_bytes": lambda i: 2**29,
    "type.app.Env.count": at_end(lambda g: 2),
    "type.app.Env.bytes": at_end(lambda g: 4 * MIB),
}


@pytest.fixture(scope="module")
def api(shared_api: TestClient, make_run: Any) -> TestClient:
    """Send a run with two ranks, of which the second leaks in the phase train."""
    make_run(extra=QUIET).begin(shared_api, 3 * GENERATIONS)
    make_run(instance="p2", rank=1, extra=SAMPLES).send(shared_api, 0, 3 * GENERATIONS)
    return shared_api


def changes(api: TestClient, first: float, last: float, run: str = "r1") -> dict[str, Any]:
    answer = api.get(f"/api/v1/runs/{run}/changes?from={first}&to={last}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def of_type(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    (row,) = [row for row in found["types"] if row["type"] == name]
    return dict(row)


def test_the_leak_comes_first_with_its_numbers(api: TestClient) -> None:
    found = changes(api, 12, 40)
    assert (found["unit"], found["axis"], found["before"], found["after"]) == (
        "generation", "generation", 12, 40,
    )  # fmt: skip
    assert found["types"][0] == {
        "type": "app.Env",
        # Both ranks together.
        "count_before": 4 + 4 * 7,
        "count_after": 4 + 4 * 35,
        "count_change": 4 * 28,
        "count_per_generation": 4.0,
        "bytes_change": 2 * MIB * 4 * 28,
        "counted_before_at": 12,
        "counted_after_at": 40,
    }
    assert found["phases"][0] == {
        "phase": "train", "bytes_change": 28 * LEAK, "bytes_per_generation": LEAK,
    }  # fmt: skip
    assert found["booked"] == {"first": 13, "last": 40, "generations": 28, "bytes": 28 * LEAK}
    before = 2**30 + 7 * LEAK
    assert found["processes"] == [
        {
            "process": "rank 1 main", "bytes_before": before, "bytes_after": before + 28 * LEAK,
            "bytes_change": 28 * LEAK, "bytes_per_generation": LEAK, "read_before_at": 12, "read_after_at": 40,
        },
        {
            "process": "rank 0 main", "bytes_before": 2**29, "bytes_after": 2**29, "bytes_change": 0,
            "bytes_per_generation": 0, "read_before_at": 12, "read_after_at": 40,
        },
    ]  # fmt: skip
    assert found["total"] == {
        "bytes_before": before + 2**29, "bytes_after": before + 2**29 + 28 * LEAK, "bytes_change": 28 * LEAK,
        "bytes_per_generation": LEAK,
    }  # fmt: skip
    assert found["processes_left_out"] == 0


def test_nothing_has_changed_before_the_leak(api: TestClient) -> None:
    found = changes(api, 1, STARTS)
    assert of_type(found, "app.Env")["count_change"] == 0
    assert found["total"]["bytes_change"] == found["booked"]["bytes"] == 0


def test_a_count_is_the_newest_before_a_point_and_its_rate_is_in_between(
    api: TestClient,
) -> None:
    row = of_type(changes(api, 12, 45), "app.Rare")
    assert (row["count_before"], row["count_after"]) == (10, 40)
    assert (row["counted_before_at"], row["counted_after_at"]) == (10, 40)
    assert row["count_per_generation"] == 1
    assert row["bytes_change"] is None


def test_a_type_that_was_not_counted_in_between_is_unknown(api: TestClient) -> None:
    found = changes(api, 12, 15)
    row = of_type(found, "app.Rare")
    assert (row["count_before"], row["count_after"]) == (10, None)
    assert row["count_change"] is row["count_per_generation"] is row["bytes_change"] is None
    # It is not zero before its first count either.
    late = of_type(changes(api, 20, 40), "app.Late")
    assert (late["count_before"], late["count_after"], late["count_change"]) == (None, 40, None)
    assert all(row["type"] != "app.Late" for row in found["types"])
    unknown = [row["bytes_change"] is None for row in found["types"]]
    assert unknown == sorted(unknown)


def test_one_unknown_process_makes_the_sum_unknown(api: TestClient, make_run: Any) -> None:
    make_run(id="joined", extra=SAMPLES).begin(api, 3 * 20)
    late = make_run(id="joined", instance="p9", rank=9, extra=SAMPLES)
    late.send(api, 3 * 15, 3 * 5)
    found = changes(api, 10, 19, "joined")
    assert [row["bytes_change"] for row in found["processes"]] == [9 * LEAK, None]
    assert found["processes"][1]["bytes_after"] == 2**30 + LEAK * 14
    assert [found["total"][name] for name in ("bytes_before", "bytes_change")] == [None, None]
    assert changes(api, 16, 19, "joined")["total"]["bytes_change"] == 2 * 3 * LEAK


FLAT: Mapping[str, Callable[[int], int | None]] = {"process.anon_bytes": lambda i: 2**29}


def test_children_have_a_row_and_count_in_the_sum(api: TestClient, make_run: Any) -> None:
    """Rank 0 has started rank 1; each has a worker that leaks."""
    own = {
        "children.uss_bytes": lambda i: 2**30 + LEAK * (i // 3),
        "children.ranks.uss_bytes": lambda i: 2**29,
    }
    make_run(id="workers", extra=FLAT | own).begin(api, 3 * 60)
    of_other = {"children.uss_bytes": lambda i: 2**29 + LEAK * (i // 3)}
    make_run(id="workers", instance="p2", rank=1, extra=FLAT | of_other).send(api, 0, 3 * 60)
    found = changes(api, 10, 50, "workers")
    assert found["processes"][0] == {
        "process": "child processes", "bytes_before": 2 * (2**29 + 10 * LEAK),
        "bytes_after": 2 * (2**29 + 50 * LEAK), "bytes_change": 2 * 40 * LEAK,
        "bytes_per_generation": 2 * LEAK, "read_before_at": 10, "read_after_at": 50,
    }  # fmt: skip
    assert [row["bytes_change"] for row in found["processes"]] == [2 * 40 * LEAK, 0, 0]
    assert found["total"] == {
        "bytes_before": 4 * 2**29 + 20 * LEAK, "bytes_after": 4 * 2**29 + 100 * LEAK,
        "bytes_change": 2 * 40 * LEAK, "bytes_per_generation": 2 * LEAK,
    }  # fmt: skip
    assert "child processes +800.00 MiB" in panel_of(api.get("/runs/workers?x=10..50").text)


def of_process(found: Mapping[str, Any], name: str) -> list[Any]:
    """Return the memory of a process at both points, its rate, and when it was read."""
    (row,) = [row for row in found["processes"] if row["process"] == name]
    names = (
        "bytes_before",
        "bytes_after",
        "bytes_per_generation",
        "read_before_at",
        "read_after_at",
    )
    return [row[name] for name in names]


@pytest.fixture(scope="module", params=["finished", "silent"])
def ended(request: pytest.FixtureRequest, api: TestClient, make_run: Any) -> str:
    """End the second of two ranks, last read with its children in generation 19, in the state that is returned."""
    state = str(request.param)
    make_run(id=state, instance=f"{state}0", extra=FLAT).begin(api, 3 * 60)
    with_child = SAMPLES | {"children.uss_bytes": lambda _: MIB}
    other = make_run(id=state, instance=f"{state}1", rank=1, extra=with_child)
    other.send(api, 0, 3 * 20)
    change = {"state": state, "instance": other.instance, "ended_at": other.started + 30.0}
    assert api.patch(f"/api/v1/runs/{state}", json=change).status_code == 200
    return state


def test_an_ended_process_counts_as_zero_and_a_silent_one_is_unknown(
    ended: str, api: TestClient
) -> None:
    before, last = 2**30 + 5 * LEAK, 2**30 + 14 * LEAK
    over = ended == "finished"
    found = changes(api, 10, 59, ended)
    rank = of_process(found, "rank 1 main")
    assert rank == [before, *((0, -before / 49) if over else (last, LEAK)), 10, 19]
    children = of_process(found, "child processes")
    assert children[:2] == [MIB, 0 if over else MIB]
    of_all = 2**29 + before + MIB
    assert [found["total"][name] for name in ("bytes_before", "bytes_after", "bytes_change")] == (
        [of_all, 2**29, 2**29 - of_all] if over else [of_all, None, None]
    )

    found = changes(api, 30, 59, ended)
    rank = of_process(found, "rank 1 main")
    assert rank == ([0, 0, 0, 19, 19] if over else [last, None, None, 19, None])
    total = found["total"]
    assert [total["bytes_before"], total["bytes_change"]] == ([2**29, 0] if over else [None, None])


def test_processes_that_end_together_count_until_the_end(api: TestClient, make_run: Any) -> None:
    """In 750 s with a snapshot every half second, rank 1 ends 1.3 s before rank 0, and rank 2 ends halfway."""
    first = make_run(id="together", instance="t0", extra=FLAT)
    first.begin(api, 1_500)
    second = make_run(id="together", instance="t1", rank=1, extra=FLAT, started=first.started - 1.3)
    second.send(api, 0, 1_500)
    third = make_run(id="together", instance="t2", rank=2, extra=FLAT)
    third.send(api, 0, 750)
    for each in (first, second, third):
        change = {"state": "finished", "instance": each.instance, "ended_at": first.started + 750.0}
        assert api.patch("/api/v1/runs/together", json=change).status_code == 200
    panel = panel_of(api.get("/runs/together?axis=time&x=100s..800s").text)
    assert "processes and their children: 1.50 GiB to 1.00 GiB" in panel


def test_the_memory_of_a_process_before_its_end_is_known(ended: str, api: TestClient) -> None:
    found = changes(api, 10, 19, ended)
    assert of_process(found, "rank 1 main")[1:] == [2**30 + 14 * LEAK, LEAK, 10, 19]
    assert found["total"]["bytes_change"] == 9 * LEAK


def test_the_panel_says_when_a_process_was_last_read(ended: str, api: TestClient) -> None:
    panel = panel_of(api.get(f"/runs/{ended}?x=10..59").text)
    gained = "−1.05 GiB" if ended == "finished" else "+90.00 MiB"
    assert f"rank 1 main {gained} (last read at 19)" in panel
    known = "is unknown at one or both points" not in panel
    assert known == (ended == "finished")


def test_a_point_before_a_restart_belongs_to_the_earlier_attempt(
    api: TestClient, make_run: Any
) -> None:
    make_run(id="resumed", extra=SAMPLES).begin(api, 3 * 20)
    again = {**SAMPLES, "process.anon_bytes": lambda i: 7 * MIB}
    make_run(id="resumed", instance="p2", attempt=2, extra=again).send(api, 3 * 10, 3 * 20)
    (row,) = changes(api, 8, 12, "resumed")["processes"]
    assert (row["bytes_before"], row["bytes_after"]) == (2**30 + 3 * LEAK, 7 * MIB)


def test_a_run_without_generations_is_compared_in_seconds(api: TestClient, make_run: Any) -> None:
    made = make_run(id="timed", extra={"process.anon_bytes": lambda i: 2**30 + i * MIB})
    made.create(api)
    for at in range(0, 600, 200):
        wire = made.wire(at, 200)
        wire["columns"]["generation"] = [None] * 200
        assert api.post("/api/v1/runs/timed/batches", json=wire).status_code == 200
    found = changes(api, 60, 240, "timed")
    # There is a snapshot every half second.
    assert found["axis"] == "time"
    assert found["total"]["bytes_change"] == 360 * MIB
    seconds = {"second": 1, "minute": 60}[found["unit"]]
    assert found["total"]["bytes_per_generation"] == pytest.approx(2 * MIB * seconds)
    assert (found["booked"], found["phases"]) == (None, [])
    assert of_type(found, "app.Env")["counted_before_at"] == 60
    beyond = api.get("/api/v1/runs/timed/changes?from=60&to=4000")
    assert "seconds since the start 0 to " in beyond.json()["error"]["message"]


def text_of(html_text: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html.unescape(html_text).replace("\xad", "")).split())


def panel_of(page: str) -> str:
    """Return the text of the panel that shows the changes."""
    _, _, rest = page.partition('data-part="changes"')
    return text_of("<" + re.split(r"data-part=", rest)[0])


@pytest.mark.parametrize("path", ["", "/changes", "/fragments"])
def test_a_page_and_its_fragments_show_the_changes(path: str, api: TestClient) -> None:
    page = api.get(f"/runs/r1{path}?x=11.8..40.3").text
    panel = panel_of(page)
    assert "Changes between generation 12 and 40" in panel
    assert f"+{28 * LEAK / MIB:.2f} MiB, +10.00 MiB per generation." in panel
    assert "Env +224.00 MiB, +112" in panel
    assert "train +280.00 MiB" in panel
    assert "rank 1 main +280.00 MiB" in panel
    types = text_of(page)
    assert "at generation 12 at generation 40 change per generation bytes gained" in types
    # This type was counted at an earlier generation.
    assert "10 (at 10) 40 +30 +1 not measured" in types
    assert "Changes between" not in api.get(f"/runs/r1{path}").text


def test_the_links_of_the_page_keep_the_range(api: TestClient) -> None:
    page = html.unescape(api.get("/runs/r1?process=rank+1+main&tab=objects&x=12..40").text)
    assert "?tab=phases&process=rank+1+main&x=12..40#tabs" in page
    assert "?tab=objects&process=rank+1+main&x=9..59#types" in page
    assert "?tab=objects&process=rank+1+main#types" in page
    # The first tab is open by default.
    assert 'class="button tiny" href="?process=rank+1+main"' in page


def test_the_form_and_the_ranges_keep_the_axis(api: TestClient, make_run: Any) -> None:
    # There is a snapshot every half second.
    make_run(id="long", extra=SAMPLES).begin(api, 1_500)
    page = html.unescape(api.get("/runs/long?tab=events&axis=time").text)
    form = page.partition('data-part="changes"')[2].partition("</form>")[0]
    hidden = re.findall(r'<input type="hidden" name="(\w+)" value="(\w+)"', form)
    assert hidden == [("tab", "events"), ("axis", "time")]
    compared = api.get("/runs/long?tab=events&axis=time&from=0.05&to=0.1")
    assert compared.history[0].headers["location"] == (
        "/runs/long?tab=events&axis=time&x=180s..360s#changes"
    )
    assert "Changes between 0.05 and 0.1 hours since the start" in panel_of(compared.text)
    assert 'href="?tab=events&axis=time"' in html.unescape(compared.text)
    page = html.unescape(api.get("/runs/long?axis=time&x=180s..360s").text)
    (last,) = re.findall(r'href="([^"]+)"[^>]*>Last 10 minutes<', page)
    assert last == "?tab=objects&axis=time&x=149.5s..749.5s#types"
    followed = api.get(f"/runs/long{last}").text
    assert "Changes between 0.04153 and 0.2082 hours since the start" in panel_of(followed)
    assert 'href="?tab=objects&axis=time#types"' in html.unescape(followed)


@pytest.mark.parametrize(
    ("asked", "leads_to"),
    [
        ("from=3&to=8", "/runs/r1?x=3..8#changes"),
        ("from=3&to=8&tab=info&process=rank 0 main", "/runs/r1?tab=info&process=rank+0+main&x=3..8#changes"),
        ("from=8&to=", "/runs/r1?x=8..#changes"),
        ("from=%0d%0aset-cookie:a&to=8", "/runs/r1?x=%0D%0Aset-cookie%3Aa..8#changes"),
    ],
)  # fmt: skip
def test_two_typed_points_lead_to_their_range(asked: str, leads_to: str, api: TestClient) -> None:
    answer = api.get(f"/runs/r1?{asked}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, leads_to)
    assert api.get(leads_to).status_code == 200


def test_a_page_of_a_run_without_generations_compares_moments(
    api: TestClient, make_run: Any
) -> None:
    made = make_run(id="minutes", extra={"process.anon_bytes": lambda i: 2**30 + i * MIB})
    made.create(api)
    for at in range(0, 600, 200):
        wire = made.wire(at, 200)
        wire["columns"]["generation"] = [None] * 200
        assert api.post("/api/v1/runs/minutes/batches", json=wire).status_code == 200
    hours = api.get("/runs/minutes?from=0.02&to=0.06", follow_redirects=False)
    assert hours.headers["location"] == "/runs/minutes?x=72s..216s#changes"
    panel = panel_of(api.get("/runs/minutes?x=72s..216s").text)
    assert "Changes between 0.02 and 0.06 hours since the start" in panel
    assert "+288.00 MiB" in panel
    assert "No phase is known to have changed." in panel
    wrong = panel_of(api.get("/runs/r1?x=72s..216s").text)
    assert "Nothing to compare" in wrong
    assert "must have no s suffix, because the unit of this run's axis is the generation" in wrong


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("from=40&to=12", "from=40.0: must be less than to=12"),
        ("from=12&to=12", "must be less than to=12"),
        ("from=12&to=60", "to=60.0: must be within the recorded range: generations 0 to 59"),
        ("from=-1&to=12", "from=-1.0: must be within the recorded range: generations 0 to 59"),
        ("from=1.5&to=12", "must be a whole generation"),
        ("from=nan&to=12", "from"),
        ("from=12", "to"),
        ("to=12", "from"),
    ],
)
def test_a_comparison_that_is_not_possible_is_refused(
    asked: str, why: str, api: TestClient
) -> None:
    answer = api.get(f"/api/v1/runs/r1/changes?{asked}")
    assert answer.status_code == 422
    assert why in answer.json()["error"]["message"]


def test_a_run_that_is_unknown_or_too_short_has_no_changes(api: TestClient, make_run: Any) -> None:
    answer = api.get("/api/v1/runs/nobody/changes?from=1&to=2")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "run_not_found")
    make_run(id="begun").begin(api, 3)
    answer = api.get("/api/v1/runs/begun/changes?from=0&to=1")
    assert answer.status_code == 422
    assert "has not recorded two generations to compare yet" in answer.json()["error"]["message"]
