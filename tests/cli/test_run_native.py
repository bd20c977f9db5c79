"""`leakline run --native`: real programs with a library that allocates with malloc, and the preloaded library alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import page_at, wait_for_verdict
from tests.cli.programs import Place

from leakline.launcher.program_launch import MALLOC, why_not_malloc
from leakline.transport.http_delivery import request_json

STORM = Path(__file__).resolve().parents[1] / "native" / "malloc_storm.c"
FEED = """
#include <stdlib.h>
#include <string.h>
void *volatile newest;
void keep(size_t bytes) { newest = malloc(bytes); memset(newest, 1, bytes); }
void use(size_t bytes) { keep(bytes); free(newest); }
"""
BEGIN = """
import ctypes, os, subprocess, sys
feed = ctypes.CDLL(os.path.abspath("libfeed.so"))
"""
TRAIN = f"""{BEGIN}
import leakline
run = leakline.init()
for generation in range(30):
    with run.generation(generation):
        with run.phase("rollout"):
            for _ in range(2048):
                getattr(feed, os.environ["FEED"])(1024)
        with run.phase("train"):
            batch = bytearray(3_000_000)
run.finish()
"""

pytestmark = pytest.mark.skipif(not MALLOC.exists(), reason=f"{MALLOC.name} was not built")


def compile_c(source: Path, target: Path, *options: str) -> None:
    subprocess.run(["cc", "-O1", str(source), "-o", str(target), *options], check=True)


@pytest.fixture
def feed(place: Place) -> Place:
    """A folder for a program, with a library that the program may load."""
    source = place.folder / "feed.c"
    source.write_text(FEED)
    compile_c(source, place.folder / "libfeed.so", "-shared", "-fPIC")
    return place


def _verdict(feed: Place, server: str, function: str, *options: str) -> tuple[dict[str, Any], str]:
    """Return the verdict of the server and the page of a run whose library calls this function."""
    said = feed.python(TRAIN, *options, "--server", server, FEED=function)
    assert said.returncode == 0, said.stderr
    (recorded,) = feed.recorded()
    run = recorded.header.id
    wait_for_verdict(server, run, lambda found: found["generations"] == 30)
    return request_json(server, "GET", f"/runs/{run}/verdict"), page_at(f"{server}/runs/{run}")


def test_the_library_that_leaks_is_named_in_verdict_and_page(feed: Place, server: str) -> None:
    verdict, page = _verdict(feed, server, "keep", "--native")
    finding = verdict["findings"][0]
    assert (finding["kind"], finding["phase"]) == ("native", "rollout")
    assert [(s["role"], s["name"]) for s in finding["suspects"]] == [("library", "libfeed.so")]
    assert "rollout keeps memory of libfeed.so: " in verdict["summary"]
    assert any(
        line.startswith("libfeed.so keeps ") and ", allocated with malloc: " in line
        for line in finding["evidence"]
    )
    assert any("libfeed.so" in line for line in finding["advice"])
    assert "rollout keeps memory of libfeed.so" in page


@pytest.mark.parametrize(("function", "options"), [("use", ("--native",)), ("keep", ())])
def test_no_library_is_named_without_a_leak_or_without_the_option(
    feed: Place, server: str, function: str, options: tuple[str, ...]
) -> None:
    verdict, _ = _verdict(feed, server, function, *options)
    assert (verdict["status"] in ("suspected", "confirmed")) is (function == "keep")
    assert "libfeed" not in str(verdict)


def test_the_program_and_its_children_run_as_without_the_option(feed: Place) -> None:
    program = f"""{BEGIN}
import multiprocessing, signal
print(os.environ.get("LD_PRELOAD"), flush=True)
show = "import os; print(os.environ.get('LD_PRELOAD'), flush=True)"
subprocess.run([sys.executable, "-c", show], check=True)
subprocess.run("echo $LD_PRELOAD", shell=True, check=True)
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(sum(pool.map(len, [b"x" * 1_000_000] * 8)), flush=True)
if os.fork() == 0:
    os._exit(3)
print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    for others in ("", "libm.so.6"):
        said = feed.python(program, "--native", "--quiet", LD_PRELOAD=others)
        seen = others or "None"
        assert said.stdout.splitlines() == [seen, seen, others, "8000000", "3"]
        assert (said.returncode, said.stderr) == (-9, "")


def test_a_forked_child_does_not_sample(feed: Place) -> None:
    program = f"""{BEGIN}
import leakline
def outstanding():
    # Only this library: threads of other libraries may free blocks at any time.
    found = ctypes.create_string_buffer(72 * 256)
    count = ctypes.PyDLL(None).leakline_malloc_outstanding(found, 256)
    for i in range(count):
        if found[72 * i + 8 : 72 * i + 18] == b"libfeed.so":
            return int.from_bytes(found[72 * i : 72 * i + 8], "little")
    return 0
run = leakline.init(quiet=True)
for generation in range(12):
    run.generation(generation)
    feed.keep(4 * 2**20)
assert outstanding() > 0
pid = os.fork()
if pid == 0:
    before = outstanding()
    feed.keep(64 * 2**20)
    os._exit(outstanding() != before)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
before = outstanding()
feed.keep(64 * 2**20)
assert outstanding() >= before + 60 * 2**20
run.finish()
before = outstanding()
feed.keep(64 * 2**20)
assert outstanding() == before
"""
    said = feed.python(program, "--native")
    assert said.returncode == 0, said.stderr


WITHOUT = """
import sys
from pathlib import Path
from leakline.cli import main
from leakline.launcher import program_launch
program_launch.MALLOC = Path(sys.argv[1])
sys.exit(main(["run", "--native", "--mode", "offline", "--", *sys.argv[2:]]))
"""


@pytest.mark.parametrize(
    ("library", "why"),
    [("none/_native_malloc.so", "was not built"), ("a folder/malloc.so", "contains a space")],
)
def test_without_the_library_one_line_explains_it_and_the_program_runs(
    place: Place, library: str, why: str
) -> None:
    path = place.folder / library
    path.parent.mkdir()
    if "folder" in library:
        path.touch()
    script = place.write("import os\nprint(os.environ.get('LD_PRELOAD'))\nraise SystemExit(4)")
    said = subprocess.run(
        [sys.executable, "-c", WITHOUT, path, sys.executable, script],
        cwd=place.folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (said.returncode, said.stdout) == (4, "None\n")
    (line,) = [line for line in said.stderr.splitlines() if "--native" in line]
    assert line.startswith("leakline: --native has no effect, because ")
    assert why in line


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not_malloc() is None
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libasan.so.8")
    assert why_not_malloc() == "a sanitizer is preloaded, which must come first"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert why_not_malloc() == "only Linux is supported"


def test_blocks_of_all_functions_survive_threads_and_are_counted(tmp_path: Path) -> None:
    compile_c(STORM, tmp_path / "malloc_storm", "-lpthread")
    said = subprocess.run(
        [tmp_path / "malloc_storm"], env={**os.environ, "LD_PRELOAD": str(MALLOC)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (said.returncode, said.stderr) == (0, "")
    freed, kept = (int(line.split()[1]) for line in said.stdout.splitlines())
    assert freed == 0
    # The 64 large blocks are exact; the small ones are estimated from about 128 samples.
    assert 64 * 2**20 <= kept - 16 * 2**20 <= 64 * 2**20 + 32 * 2**20


@pytest.mark.parametrize("allocator", ["malloc", "pymalloc_debug"])
def test_python_runs_while_its_allocations_are_sampled(allocator: str) -> None:
    program = """
import ctypes, sqlite3, sys, threading, zlib
ctypes.CDLL(None).leakline_malloc_arm(1)
def work(number):
    database = sqlite3.connect(":memory:")
    database.execute("create table t (x)")
    for i in range(200):
        text = bytes([number]) * 5000 * (i % 40 + 1)
        assert zlib.decompress(zlib.compress(text)) == text
        database.execute("insert into t values (?)", (text,))
        rows = [[k] * 50 for k in range(400)]
    (total,) = database.execute("select sum(length(x)) from t").fetchone()
    assert total == 20_500_000
threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("done")
sys.exit(6)
"""
    said = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "LD_PRELOAD": str(MALLOC), "PYTHONMALLOC": allocator},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (said.returncode, said.stdout, said.stderr) == (6, "done\n", "")
