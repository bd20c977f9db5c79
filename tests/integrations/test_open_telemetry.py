"""The example of docs/other-tools.md with the real SDK and exporter, against a real server."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from .conftest import Ended

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "other-tools.md").read_text()


def exported_names() -> dict[str, str]:
    """Return the environment variables of the page."""
    return dict(re.findall(r"^export (OTEL_\w+)=(\S+)$", PAGE, re.MULTILINE))


def test_the_example_of_the_page_makes_a_run(
    run_program: Callable[..., Ended], tmp_path: Path
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    # Makes the example leak; its own lines report the memory.
    leaking = code.replace(
        "for epoch in range(10):\n",
        "kept = []\nfor epoch in range(10):\n    kept.append(bytearray(b'x' * (16 << 20)))\n",
    )
    assert leaking != code
    (tmp_path / "train.py").write_text(leaking)
    environ = exported_names()
    assert len(environ) == 4
    environ["OTEL_RESOURCE_ATTRIBUTES"] = "service.name=trainer,service.instance.id=node-1"
    ended = _run(run_program, environ)
    assert ended.status == 0, ended.errors
    assert "rror" not in ended.errors
    server = ended.server
    (run,) = [
        r for r in server.get("/runs?project=trainer")["items"] if r["name"] == "trainer node-1"
    ]
    verdict = server.verdict(run["id"], 10)
    assert verdict["growth_bytes_per_generation"]["estimate"] > 12 * 2**20
    assert server.get(f"/runs/{run['id']}")["phases_seen"] == ["train"]
    (process,) = server.get(f"/runs/{run['id']}")["processes"]
    # Each export contains all current metrics, and the provider exports once more at its end.
    assert process["stored"] == 10 and process["lost"] == {}


def _run(run_program: Callable[..., Ended], environ: dict[str, str]) -> Ended:
    """Run the program with the port of this server instead of the default one."""
    first = run_program(["-c", "pass"], "")
    address = first.server.address
    moved = {
        name: value.replace("http://127.0.0.1:8765", address) for name, value in environ.items()
    }
    assert address in moved["OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"]
    return run_program(["train.py"], "", **moved)
