"""Real trainings like those of the bug reports, with default settings: what the page and the API show."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Server, leakline, page_of, section, text_of, train

pytestmark = [pytest.mark.flow, pytest.mark.timeout(300), pytest.mark.long]
MIB = 2**20

# Report 000: the kept tensors have their graphs or not, and the full experience buffer drops 50 too few.
DQN = """
import sys, time
import torch, leakline
torch.set_num_threads(1)
attached, episodes = sys.argv[1] == "attached", int(sys.argv[2])
network = torch.nn.Linear(64, 64)
# One for all steps: otherwise the graphs would keep as many tensors as the buffer, and a sample of ten finds either.
observation = torch.randn(8, 64)
replay, experience = [], []
run = leakline.init(project="dqn", name=sys.argv[1], unit="episode", quiet=True)
run.track("replay", replay, capacity=50_000)
run.track("experience", experience, capacity=2_000)
for episode in range(episodes):
    began = time.monotonic()
    with run.episode(episode):
        with run.phase("collect"):
            for step in range(200):
                value = network(observation).sum(1)
                replay.append(value if attached else value.detach())
                experience.append(bytes(1000))
        with run.phase("prune"):
            del experience[: max(0, len(experience) - 2_050)]
        with run.phase("train"):
            while time.monotonic() < began + 0.7:
                torch.randn(64, 64) @ network.weight.detach()
run.finish()
"""

# Report 002: 16 agents keep the losses of 32 steps, each of which is accumulated 6 times.
LOSSES = """
import time
import torch, leakline
torch.set_num_threads(1)


class Agent:
    def __init__(self):
        self.critic, self.losses = torch.nn.Linear(64, 1), []

    def learn(self):
        loss = self.critic(torch.randn(16, 64)).mean()
        loss.backward(retain_graph=True)
        self.losses.append(loss)


population = [Agent() for _ in range(16)]
run = leakline.init(project="erl", name="losses", quiet=True)
for generation in range(8):
    began = time.monotonic()
    with run.generation(generation):
        with run.phase("evaluate_population"):
            for agent in population:
                agent.critic(torch.randn(16, 64)).mean().item()
        with run.phase("train_population"):
            for agent in population:
                for step in range(32):
                    for _ in range(6):
                        agent.learn()
        with run.phase("evolve_population"):
            while time.monotonic() < began + 1.0:
                torch.randn(64, 64) @ torch.randn(64, 64)
run.finish()
"""

# Report 001: prints a line for each step, Leakline logs every fifth generation, and the run is killed in the sixth.
KILLED = """
import os, signal, sys, time
import leakline


class TradingEnvironment:
    def __init__(self):
        self.prices = bytearray(b"1") * (3 << 20)


run = leakline.init(project="erl", name="killed", watch=[TradingEnvironment], log_every=5)
kept, step = [], 0
for generation in range(7):
    with run.generation(generation):
        with run.phase("evaluate_population"):
            kept += [TradingEnvironment() for _ in range(2)]
            for _ in range(12):
                print(f"step {step}: reward 0.5", flush=True)
                step += 1
        if generation % 5 == 0:
            print(f"[DEBUG] environments alive: {len(kept)}", file=sys.stderr, flush=True)
    if generation == 6:
        # Data older than a second has reached the server.
        time.sleep(2.5)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def figure_of(page: str, name: str) -> dict[str, Any]:
    part = re.findall(rf'data-part="{name}\.data".*?<script[^>]*>(.*?)</script>', page, re.DOTALL)
    found: dict[str, Any] = json.loads(part[0])
    return found


def points(server: Server, run: str, name: str) -> list[tuple[int, float]]:
    """Return (generation, reading) at the ends of generations that have one."""
    items = server.get(f"/runs/{run}/series?name={name}&kind=generation_end&points=2000")["items"]
    read = [(int(x), y) for item in items for x, y in zip(item["x"], item["last"], strict=True)]
    return [(x, y) for x, y in read if y is not None]


def suspects(server: Server, run: str) -> list[str]:
    """Return the names of the suspects in the first finding of a run."""
    first = server.get(f"/runs/{run}/verdict")["findings"][0]
    return [suspect["name"] for suspect in first["suspects"]]


def rises_by(found: list[tuple[int, float]], each: float) -> None:
    """Check the growth per generation.

    A concurrent scan reads at some point of the generation and may include tensors that live for one step.
    """
    assert len(found) >= 2 and found[-1][0] - found[0][0] >= 2, found
    least, most = ([y - each * (x + more) for x, y in found] for more in (1, 0))
    assert max(least) <= min(most) + max(10, 0.1 * each), found


PRIORITIES = """
import leakline
# With a total: without one, the unknown remaining time would also raise the priority.
run = leakline.init(project="erl", name="priorities", total=16, quiet=True)
kept = []
for generation in range(16):
    with run.generation(generation):
        with run.phase("evaluate"):
            kept.append(bytearray(b"1") * (12 << 20))
run.finish()
"""


EPISODES = 12


@pytest.fixture(scope="module")
def attached(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the verdict of a training whose buffer keeps tensors with their graphs."""
    folder = tmp_path_factory.mktemp("dqn")
    assert train(server, folder, "dqn-attached", DQN, "attached", EPISODES) == 0
    return server.verdict("dqn-attached", EPISODES)


def test_a_run_in_episodes_uses_them_on_axes_and_in_texts(
    server: Server, attached: dict[str, Any]
) -> None:
    page = page_of(server, "/runs/dqn-attached")
    for chart in ("trend", "phases", "memory", "types", "tensors", "fill", "seconds"):
        assert figure_of(page, chart)["x_title"] == "episode", chart
    assert "per episode" in attached["summary"] and "generation" not in attached["summary"]
    assert f"{EPISODES} episodes" in page
    assert "#episode" not in page and "generation 1" not in page
    assert server.get("/runs/dqn-attached")["unit"] == "episode"


@pytest.mark.usefixtures("attached")
def test_a_buffer_beyond_its_limit_is_flagged(server: Server) -> None:
    lengths = points(server, "dqn-attached", "tracked.experience.length")
    assert max(y for _, y in lengths) == 2_050
    stores = {each["name"]: each for each in server.get("/runs/dqn-attached/containers")["items"]}
    assert (stores["experience"]["state"], stores["experience"]["length"]) == ("over", 2_050)
    assert stores["replay"]["state"] == "filling"
    page = page_of(server, "/runs/dqn-attached")
    (row,) = re.findall(r"<tr>(?:(?!</tr>).)*>experience<.*?</tr>", page, re.DOTALL)
    assert "2,050" in row and "2,000" in row and "over" in row
    assert re.search(r'data-status="confirmed"|status-confirmed|confirmed', row)
    # The line in the chart exceeds its capacity.
    (line,) = (each for each in figure_of(page, "fill")["lines"] if each["name"] == "experience")
    assert max(y for y in line["y"] if y is not None) == pytest.approx(1.025)


def test_tensors_with_graphs_in_a_buffer_are_counted_by_default(
    server: Server, attached: dict[str, Any], eventually: Callable[..., Any]
) -> None:
    rises_by(points(server, "dqn-attached", "tensors.graph_count"), 200)
    finding = attached["findings"][0]
    assert (finding["kind"], finding["phase"]) == ("graph", "collect"), attached["summary"]
    # The holder may arrive with the last snapshot, after the verdict on the last generation.
    eventually(lambda: any("replay" in name for name in suspects(server, "dqn-attached")))
    page = page_of(server, "/runs/dqn-attached")
    assert "tensors with a graph" in json.dumps(figure_of(page, "tensors"))
    assert "replay" in text_of(section(page, "findings"))


def test_detached_tensors_in_a_buffer_are_not_a_finding(server: Server, tmp_path: Path) -> None:
    assert train(server, tmp_path, "dqn-detached", DQN, "detached", EPISODES) == 0
    verdict = server.verdict("dqn-detached", EPISODES)
    counted = points(server, "dqn-detached", "tensors.graph_count")
    rises_by(counted, 0)
    # The tensors exist, as many as were stored.
    rises_by(points(server, "dqn-detached", "tensors.count"), 200)
    assert not [f for f in verdict["findings"] if f["kind"] in ("graph", "tensors")], verdict[
        "summary"
    ]
    assert verdict["status"] not in ("suspected", "confirmed"), verdict["summary"]


# The number of graph scans depends on how long one takes.
@pytest.mark.alone
def test_kept_losses_are_3072_graphs_per_generation_by_default(
    server: Server, tmp_path: Path
) -> None:
    assert train(server, tmp_path, "losses", LOSSES) == 0
    verdict = server.verdict("losses", 8)
    # Each graph also keeps the tensor that it was computed from.
    rises_by(points(server, "losses", "type.torch.Tensor.count"), 2 * 3_072)
    # Graphs are scanned as often as the pause limit allows: on a slow machine once, or concurrently, and then the
    # result at the end of a generation is from its beginning.
    graphs = points(server, "losses", "tensors.graph_count")
    assert graphs and all(3_072 * x <= y <= 3_072 * (x + 1.1) for x, y in graphs), graphs
    finding = verdict["findings"][0]
    assert (finding["kind"], finding["phase"]) == ("graph", "train_population"), verdict["summary"]
    assert finding["suspects"][0]["count_per_generation"] == pytest.approx(3_072, rel=0.01)
    assert any("Agent.losses" in suspect["name"] for suspect in finding["suspects"])
    page = page_of(server, "/runs/losses")
    assert "3,072" in text_of(section(page, "findings"))


def test_page_and_export_show_everything_left_of_a_killed_run(
    server: Server, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    """The generation, the memory trend, the last 50 lines, and the debug lines."""
    status = train(
        server, tmp_path, "killed-6", KILLED, LEAKLINE_LOG_LINES="1", LEAKLINE_MAX_OVERHEAD="1"
    )
    assert status == -signal.SIGKILL
    assert leakline(server, "sync", str(tmp_path / ".leakline")).returncode == 0
    dead = ("killed", "silent")
    told = eventually(lambda: (r := server.get("/runs/killed-6"))["state"] in dead and r)
    (process,) = told["processes"]
    said = process["log_lines"]
    assert len(said) == 50
    # 84 steps and two debug lines, the first of which was dropped with the oldest lines.
    assert said[-1] == "step 83: reward 0.5"
    assert "[DEBUG] environments alive: 12" in said
    assert said[0] == "step 35: reward 0.5"
    alive = points(server, "killed-6", "type.__main__.TradingEnvironment.count")[-1]
    assert alive == (6, 14)
    for path in ("/runs/killed-6", "/runs/killed-6/report.html"):
        page = page_of(server, path)
        assert "7 generations" in page, path
        assert "at generation 6" in text_of(section(page, "end")), path
        ends = [
            each for each in figure_of(page, "trend")["lines"] if each["name"] == "generation end"
        ]
        assert all(line["y"][-1] - line["y"][0] > 6 * 5 * MIB for line in ends) and ends, path
        rows = re.findall(r"<code[^>]*>(.*?)</code>", section(page, "lines"))
        assert [re.sub(r"<[^>]+>", "", row) for row in rows] == said, path
        # The line of every fifth generation has the memory and the number of live environments.
        assert "RSS" in text_of(section(page, "end")), path
        counted = next(
            each
            for each in figure_of(page, "types")["lines"]
            if each["name"] == "TradingEnvironment"
        )
        assert counted["y"][-1] == 14, path


def test_the_threshold_of_critical_leaks_is_a_server_setting(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    """Growth of 12 MiB is critical here; by default it would be minor."""
    server = start_server(tmp_path, LEAKLINE_PRIORITIES="major=1 MiB,critical=10 MiB")
    assert train(server, tmp_path, "priorities", PRIORITIES) == 0
    verdict = server.verdict("priorities", 16)
    assert verdict["findings"][0]["growth_bytes_per_generation"]["estimate"] == pytest.approx(
        12 * MIB, rel=0.1
    )
    assert verdict["findings"][0]["priority"] == "critical"
    assert "critical" in text_of(section(page_of(server, "/runs/priorities"), "findings")).split()
    (incident,) = server.get("/incidents")["items"]
    assert incident["finding"]["priority"] == "critical"
    text = page_of(server, "/runs/priorities/report.md")
    assert re.findall(r"\| (MINOR|MAJOR|CRITICAL) \|", text) == ["CRITICAL"]
