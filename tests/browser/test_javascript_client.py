"""`leakline.js` in Node and in pages of another origin, with a real server that allows the origin or not."""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.browser.conftest import serving
from tests.browser.patience import text_of
from tests.flows.conftest import eventually
from tests.js.test_pure_helpers import node

from leakline.transport.http_delivery import request_json

ROOT = Path(__file__).resolve().parents[2]
CLIENT = ROOT / "agent_client" / "js" / "leakline.js"
GUIDE = ROOT / "docs" / "integrations.md"
ADDRESS = "http://127.0.0.1:8765"
TRAINING = """
const tensors = { many: 87, memory() {
  return { numTensors: this.many, numDataBuffers: this.many, numBytes: 40_000 * this.many };
} };
export async function training(leakline, options, generations, keeps) {
  const run = leakline.init({ tf: tensors, project: "js", ...options });
  for (let generation = 0; generation < generations; generation += 1) {
    run.generation(generation);
    run.phase("rollout", () => {});
    await run.phase("train", async () => { tensors.many += keeps; run.check(); });
  }
  return run;
}
"""
PAGE = """<!doctype html><p role="status">training</p><script type="module">
import { training } from "./training.js";
const given = new URLSearchParams(location.search), server = given.get("server");
const leakline = await import(`${server}/static/js/leakline.js`);
const options = { runId: given.get("run"), token: given.get("token") ?? undefined, sendSeconds: 3600 };
window.run = await training(leakline, options, 16, Number(given.get("keeps")));
if (given.get("finish")) await window.run.finish(); else await window.run.flush();
document.querySelector("p").textContent = "trained";
</script>"""
# The parts of TensorFlow.js that the page of the guide uses.
TENSORFLOW = """
const memory = () => ({ numTensors: 4, numDataBuffers: 4, numBytes: 1024 });
const fit = async (x, y, { epochs, callbacks }) => {
  for (let epoch = 0; epoch < epochs; epoch += 1) {
    await callbacks.onEpochBegin(epoch);
    await callbacks.onBatchEnd(0);
  }
  await callbacks.onTrainEnd();
  document.title = "trained";
};
window.tf = {
  memory, layers: { dense: () => ({}) }, randomNormal: () => ({}), sequential: () => ({ compile() {}, fit }),
};
"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve pages that train from an origin that is not our server, and yield the origin."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "training.js").write_text(TRAINING)
    (folder / "index.html").write_text(PAGE)
    (folder / "tf.min.js").write_text(TENSORFLOW)
    (guide,) = re.findall(r"```html\n(.*?)```", GUIDE.read_text(), re.S)
    served = "new URLSearchParams(location.search).get('server')"
    assert f'"{ADDRESS}"' in guide
    (folder / "guide.html").write_text(guide.replace(f'"{ADDRESS}"', served))
    shutil.copy(CLIENT, folder)
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as pages:
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        yield f"http://localhost:{pages.server_address[1]}"
        pages.shutdown()


@pytest.fixture(scope="module")
def allowing(tmp_path_factory: pytest.TempPathFactory, elsewhere: str) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("allowing")
    with serving(folder, LEAKLINE_ALLOWED_ORIGINS=elsewhere) as address:
        yield address


@pytest.fixture
def tab(chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context()
    yield context.new_page()
    context.close()


def ask(address: str, path: str) -> Any:
    return request_json(address, "GET", path)


def process_of(address: str, run: str) -> Any:
    (process,) = ask(address, f"/runs/{run}")["processes"]
    return process


def verdict_of(address: str, run: str) -> Any:
    """Return the verdict once it covers all generations."""
    return eventually(
        lambda: (found := ask(address, f"/runs/{run}/verdict"))["generations"] >= 16 and found
    )


def visit(page: Page, elsewhere: str, server: str, run: str, **more: object) -> None:
    page.goto(f"{elsewhere}/?{urlencode({'server': server, 'run': run, **more})}")


def test_a_node_program_reports_and_exits_by_itself(server: str, tmp_path: Path) -> None:
    (tmp_path / "training.mjs").write_text(TRAINING)
    program = tmp_path / "program.mjs"
    program.write_text(
        f'import * as leakline from "{CLIENT.as_uri()}";\nimport {{ training }} from "./training.mjs";\n'
        "await training(leakline, {}, 16, 158);\n"
    )
    settings = {"LEAKLINE_SERVER": server, "LEAKLINE_RUN_ID": "in-node", "LEAKLINE_PROJECT": "js"}
    clean = {k: v for k, v in os.environ.items() if not k.startswith("LEAKLINE_")}
    done = subprocess.run(
        [node(), str(program)],
        env={**clean, **settings},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    # 1 at the start, 3 for each generation, 1 for each worse band, and the end.
    assert re.search(r"leakline: 52 snapshots sent, 0 lost", done.stdout), done.stdout + done.stderr
    assert ask(server, "/runs/in-node")["state"] == "finished"
    (finding,) = verdict_of(server, "in-node")["findings"]
    assert finding["suspects"][0]["name"] == "tf.Tensor"
    assert finding["suspects"][0]["count_per_generation"] == 158
    assert finding["phase"] == "train"
    warnings = ask(server, "/runs/in-node/events")["items"]
    names = [each["name"] for each in warnings if each["kind"] == "warning"]
    assert names == ["tensors high", "tensors critical"]


def test_changes_during_a_node_training_reach_verdict_and_page(server: str, tmp_path: Path) -> None:
    changes = "unreliable: this.many > 600,"
    (tmp_path / "training.mjs").write_text(TRAINING.replace("return {", f"return {{ {changes}", 1))
    program = tmp_path / "program.mjs"
    program.write_text(
        f'import * as leakline from "{CLIENT.as_uri()}";\nimport {{ training }} from "./training.mjs";\n'
        f'await training(leakline, {{ server: "{server}", runId: "changes" }}, 16, 158);\n'
    )
    done = subprocess.run([node(), str(program)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told = [each for each in ask(server, "/runs/changes/events")["items"] if each["kind"] == "mark"]
    names = [(each["name"], each["generation"]) for each in told]
    assert names == [("tfjs bytes unreliable", 3), ("tensors at the end", None)]
    assert told[0]["data"]["tfjs_memory_unreliable"] is True
    # All 16 steps are above the limit: one was reported with the band high, two with critical.
    assert told[1]["data"]["steps_above_high"] == 13
    (finding,) = verdict_of(server, "changes")["findings"]
    assert any(
        line.startswith("For part of this run, TensorFlow.js") for line in finding["evidence"]
    )
    page = text_of(f"{server}/runs/changes?tab=all")
    assert "13 steps above 200 tensors since a band was last reported" in page


@pytest.mark.long
def test_a_page_of_an_allowed_origin_reports_and_the_leak_is_confirmed(
    tab: Page, elsewhere: str, allowing: str
) -> None:
    visit(tab, elsewhere, allowing, "leaks", keeps=158, finish=1)
    expect(tab.get_by_role("status")).to_have_text("trained")
    assert ask(allowing, "/runs/leaks")["state"] == "finished"
    verdict = verdict_of(allowing, "leaks")
    assert verdict["status"] == "confirmed"
    assert verdict["summary"].startswith("train keeps 158 Tensor per generation: 6.03 MiB")
    told = text_of(f"{allowing}/runs/leaks?tab=all")
    # The memory of the browser process is not measured: the trend shows the tensors.
    assert "Nothing has been measured yet" not in told
    assert "tfjs.bytes" in told
    for name in ("after train", "TensorFlow.js tensors", "JavaScript heap"):
        assert name in told, name


def test_a_closed_page_sends_queued_snapshots_and_its_end(
    tab: Page, elsewhere: str, allowing: str
) -> None:
    visit(tab, elsewhere, allowing, "left", keeps=0)
    expect(tab.get_by_role("status")).to_have_text("trained")
    before = process_of(allowing, "left")["stored"]
    tab.evaluate("run.generation(16); run.mark('the last word'); run.snapshot()")
    tab.goto("about:blank")
    after = eventually(lambda: (found := process_of(allowing, "left"))["end_state"] and found)
    assert (after["end_state"], after["end_reason"]) == ("finished", "the page was left")
    # The end of a generation, the snapshot, and the final snapshot; in either order with the end of the run.
    assert eventually(lambda: process_of(allowing, "left")["stored"] == before + 3)
    events = eventually(lambda: ask(allowing, "/runs/left/events")["items"])
    assert "the last word" in [each["name"] for each in events]


def test_a_page_with_a_token_sends_it_at_the_end_too(
    tab: Page, elsewhere: str, allowing: str
) -> None:
    visit(tab, elsewhere, allowing, "with-token", keeps=0, token="t")
    expect(tab.get_by_role("status")).to_have_text("trained")
    sent = []
    tab.on("request", lambda request: sent.append(request.headers.get("authorization")))
    tab.evaluate(
        "run.generation(16); run.snapshot(); window.dispatchEvent(new PageTransitionEvent('pagehide'))"
    )
    eventually(lambda: process_of(allowing, "with-token")["end_state"])
    assert set(sent) == {"Bearer t"}


def test_a_page_of_a_refused_origin_trains_on_and_logs_the_setting(
    tab: Page, elsewhere: str, server: str
) -> None:
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    visit(tab, elsewhere, server, "refused", keeps=0)
    expect(tab.get_by_role("status")).to_have_text("trained")
    assert any("LEAKLINE_ALLOWED_ORIGINS" in text and elsewhere in text for text in said)
    assert "refused" not in [run["id"] for run in ask(server, "/runs")["items"]]


def test_the_page_of_the_guide_trains_without_a_usable_server(
    tab: Page, elsewhere: str, server: str
) -> None:
    with socket.socket() as bound:
        # Bound but not listening: connections are refused.
        bound.bind(("127.0.0.1", 0))
        for address in (server, f"http://127.0.0.1:{bound.getsockname()[1]}"):
            tab.goto(f"{elsewhere}/guide.html?{urlencode({'server': address})}")
            expect(tab).to_have_title("trained")


def test_retry_after_is_exposed_to_pages(elsewhere: str, allowing: str) -> None:
    request = urllib.request.Request(
        f"{allowing}/static/js/leakline.js", headers={"Origin": elsewhere}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.headers["access-control-allow-origin"] == elsewhere
        assert answer.headers["access-control-expose-headers"] == "retry-after"
        assert answer.headers.get_content_type() in ("text/javascript", "application/javascript")
        assert answer.read() == CLIENT.read_bytes()
