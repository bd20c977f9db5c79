"""Up to ten runs on one axis: the page, the lines of a range of it, and refused requests."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from starlette.testclient import TestClient


def create(api: TestClient, made: Any, **more: Any) -> None:
    assert api.post("/api/v1/runs", json=made.header | more).status_code == 201


@pytest.fixture(scope="module")
def three(shared_api: TestClient, make_run: Any) -> TestClient:
    """Send three runs: a grows, b does not, c begins at generation 0 and has neither objects nor private memory."""
    for run_id, leak, seed in (("a", 10 * 2**20, 1), ("b", 0, 2)):
        run = make_run(id=run_id, instance=f"{run_id}-1", leak_bytes=leak)
        create(
            shared_api, run, name=f"run {run_id}", config={"seed": seed, "same": [1, 2]},
            environment={"packages": {"torch": f"2.{seed}", "numpy": "2.0"}, "host": "h"},
        )  # fmt: skip
        run.send(shared_api, 0, 36)
    shared_api.post("/api/v1/runs", json={"id": "c", "project": "erl", "name": "run c"})
    return shared_api


def read(api: TestClient, query: str, status: int = 200) -> str:
    answer = api.get(f"/overlay?{query}")
    assert answer.status_code == status, answer.text
    return answer.text.replace("<wbr>", "").replace("\u00a0", " ")


def chart(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(re.search(r"data-chart>(.*?)</script>", text)[1])  # type: ignore[index]
    return found


def rows(text: str, section: str) -> list[list[str]]:
    part = text[text.index(f'id="{section}"') :]
    body = re.search(r"<tbody>(.*?)</tbody>", part, re.DOTALL)
    assert body is not None
    return [
        [re.sub("<[^>]+>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)]
        for row in body[1].split("</tr>")
        if "<td" in row
    ]


def test_no_runs_too_many_runs_and_missing_runs_are_refused(three: TestClient) -> None:
    many = "&".join(f"run=x{number}" for number in range(11))
    assert "11 runs: an overlay shows at most 10 runs; select fewer" in read(three, many, 422)
    assert "select two to ten runs" in read(three, "", 422)
    assert "run nobody not found" in read(three, "run=a&run=nobody", 404)
    assert "Run not found" in read(three, "run=a&run=%00", 404)


def test_ten_runs_are_allowed_and_a_repeated_run_counts_once(api: TestClient) -> None:
    for number in range(10):
        api.post("/api/v1/runs", json={"id": f"x{number}", "name": "same"})
    asked = "&".join(f"run=x{number}" for number in [*range(10), 0])
    text = read(api, asked)
    assert "Overlay of 10 runs" in text
    assert "None of these runs has measured private memory" in text
    assert len(rows(text, "runs")) == 10


def test_each_run_is_a_line_at_its_generation_ends(three: TestClient) -> None:
    text = read(three, "run=a&run=b&run=c")
    drawn = chart(text)
    assert [line["name"] for line in drawn["lines"]] == ["run a", "run b"]
    assert drawn["lines"][0]["x"] == list(range(12)) == drawn["lines"][1]["x"]
    ends = [2**30 + generation * 10 * 2**20 + 3 * 4096 - 2**20 for generation in range(12)]
    assert drawn["lines"][0]["y"] == ends
    assert len(set(drawn["lines"][1]["y"])) == 1
    assert (drawn["unit"], drawn["x_title"]) == ("bytes", "generation")
    assert "Not measured: run c." in text
    colours = [line["colour"] for line in drawn["lines"]]
    # A run keeps the colour of its position when others are left out.
    assert colours == [1, 2]
    assert [line["colour"] for line in chart(read(three, "run=c&run=b"))["lines"]] == [2]


def test_only_measured_series_are_offered(three: TestClient) -> None:
    text = read(three, "run=a&run=b&series=objects")
    assert chart(text)["unit"] == "count"
    assert chart(text)["lines"][0]["y"] == [100_000 + generation for generation in range(12)]
    offered = re.findall(r'data-series href="([^"]+)"( aria-current="true")?', text)
    assert [(href.rsplit("=", 1)[1], bool(now)) for href, now in offered] == [
        ("private", False), ("rss", False), ("objects", True),
    ]  # fmt: skip
    assert "run=a&amp;run=b" in offered[0][0]
    rss = chart(read(three, "run=a&run=b&series=rss"))["lines"][0]["y"]
    assert rss[0] == 2**30 + 3 * 4096
    assert chart(read(three, "run=a&series=nonsense")) == chart(read(three, "run=a"))
    assert "has measured GPU memory" in read(three, "run=a&run=b&series=gpu")


def test_the_devices_of_a_process_are_added_up(api: TestClient, make_run: Any) -> None:
    def at(device: int) -> Any:
        return lambda n: (device + 1) * 2**30 + n if n % 3 == 2 else None

    make_run(extra={f"cuda.{device}.allocated_bytes": at(device) for device in range(2)}).begin(
        api, 9
    )
    line = chart(read(api, "run=r1&series=gpu"))["lines"][0]
    assert line["y"] == [3 * 2**30 + 2 * n for n in (2, 5, 8)]


def test_runs_with_different_first_generations_are_aligned_at_their_start(
    api: TestClient, make_run: Any
) -> None:
    for run_id in ("early", "late"):
        make_run(id=run_id, instance=run_id).create(api)
    make_run(id="early", instance="early").send(api, 0, 12)
    late = make_run(id="late", instance="late")
    late.send(api, 30, 12)
    drawn = chart(read(api, "run=early&run=late"))
    assert [line["x"] for line in drawn["lines"]] == [[0, 1, 2, 3]] * 2
    assert drawn["x_title"] == "generations since the start"
    # Alone, or with a run that begins at the same generation, a run keeps its own numbers.
    assert chart(read(api, "run=late"))["lines"][0]["x"] == [10, 11, 12, 13]
    answer = api.get("/overlay/lines?run=early&run=late&x=0.5..2").json()
    assert [line["x"] for line in answer["lines"]["overlay"]] == [[0, 1, 2]] * 2


def test_attempts_are_one_line_and_other_ranks_are_not_drawn(
    api: TestClient, make_run: Any
) -> None:
    make_run().create(api)
    make_run().send(api, 0, 9)
    make_run(instance="p2", attempt=2, leak_bytes=0).send(api, 6, 9)
    make_run(instance="p3", rank=1).send(api, 0, 30)
    (line,) = chart(read(api, "run=r1"))["lines"]
    assert line["x"] == [0, 1, 2, 3, 4]
    assert line["y"][2] == line["y"][4] < line["y"][1]


def test_many_ranks_leave_room_for_the_next_run(api: TestClient, make_run: Any, patch: Any) -> None:
    patch("store.series.chart_points.MAX_ITEMS", 8)
    for run_id, ranks in (("wide", 12), ("narrow", 1)):
        for rank in range(ranks):
            run = make_run(id=run_id, instance=f"{run_id}-{rank}", rank=rank)
            api.post("/api/v1/runs", json=run.header | {"name": f"run {run_id}"})
            run.send(api, 0, 9)
    lines = chart(read(api, "run=wide&run=narrow"))["lines"]
    assert [line["name"] for line in lines] == ["run wide", "run narrow"]


def test_a_line_has_all_attempts_of_many_processes(
    api: TestClient, make_run: Any, patch: Any
) -> None:
    patch("store.runs.process_list.MAX_PROCESSES_LISTED", 1)
    for attempt in (1, 2, 3):
        run = make_run(instance=f"life-{attempt}", attempt=attempt)
        api.post("/api/v1/runs", json=run.header)
        run.send(api, 9 * attempt, 9)
    told = api.get("/api/v1/runs/r1").json()
    assert ([p["attempt"] for p in told["processes"]], told["processes_left_out"]) == ([3], 2)
    (line,) = chart(read(api, "run=r1"))["lines"]
    assert line["x"] == list(range(3, 12))
    page = api.get("/runs/r1").text
    drawn = [json.loads(each) for each in re.findall(r"data-chart>(.*?)</script>", page)]
    assert next(line["x"] for line in drawn[0]["lines"]) == list(range(3, 12))


def test_a_range_has_its_own_lines(three: TestClient) -> None:
    whole = chart(read(three, "run=a&run=b"))["lines"]
    answer = three.get("/overlay/lines?run=a&run=b&series=private&x=2.5..5").json()
    lines = answer["lines"]["overlay"]
    assert [line["x"] for line in lines] == [[2, 3, 4, 5]] * 2
    assert [line["name"] for line in lines] == [line["name"] for line in whole]
    assert lines[0]["y"] == whole[0]["y"][2:6]
    assert three.get("/overlay/lines?run=a&x=500..600").json() == {"lines": {}}
    assert three.get("/overlay/lines?run=a&x=5..2").status_code == 422


def test_the_table_shows_the_results_of_each_run(three: TestClient, eventually: Any) -> None:
    growing = "+10.00 MiB"
    eventually(lambda: growing in read(three, "run=a&run=b"))
    first, second, third = rows(read(three, "run=a&run=b&run=c"), "runs")
    assert first[0] == "run a" and growing in first[3]
    assert growing not in second[3]
    assert third[3] == third[6] == "not measured"
    # The median of all ends: generation.seconds is 1.5 plus two sevenths there.
    assert first[6] == "1.79 s"


def test_only_differences_are_listed(three: TestClient) -> None:
    assert rows(read(three, "run=a&run=b"), "differences") == [
        ["config.seed", "1", "2"],
        ["environment.packages.torch", "2.1", "2.2"],
    ]
    assert "No difference was recorded" in read(three, "run=a")
    names = [row[0] for row in rows(read(three, "run=a&run=c"), "differences")]
    assert "config.same" in names and "environment.host" in names


def test_selected_runs_have_an_address(three: TestClient) -> None:
    answer = three.get("/overlay?pick=a&pick=b&pick=a&view=q%3Dx", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/overlay?run=a&run=b&series=private",
    )
