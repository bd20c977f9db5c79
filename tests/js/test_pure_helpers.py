"""The pure helpers of the pages, tested by ``node --test``."""

from __future__ import annotations

import subprocess
from pathlib import Path

HERE = Path(__file__).parent


def node() -> str:
    """Return the Node that comes with Playwright: present with the tests, and new enough for modules."""
    from playwright._impl._driver import compute_driver_executable

    return str(compute_driver_executable()[0])


def test_the_javascript_helpers_pass_their_own_tests() -> None:
    files = sorted(map(str, HERE.glob("*.test.js")))
    assert files
    done = subprocess.run(
        [node(), "--test", f"--test-concurrency={len(files)}", *files],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
