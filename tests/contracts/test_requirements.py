"""Check that every row of `requirements.toml` names tests that exist and run."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
DOCUMENT: Final = Path(__file__).with_name("requirements.toml")
ROWS: Final = {"A": 20, "B": 33, "C": 18, "D": 18, "E": 33, "F": 12, "G": 15}
# Folders and marks of tests that another make target runs: a row needs one test that runs for every change.
ELSEWHERE: Final = ("tests/integrations/", "tests/leaks/", "tests/native/", "tests/soak/")
DESELECTED: Final = {"integrations", "leaks", "soak"}
# Words allowed in the reason of a skip, and packages for which importorskip is allowed.
ALLOWED_REASONS: Final = (
    "no native module", "the native module is not built", "without the native module", "the count of tracked objects",
    "this system does not fork", "this kernel does not let", "this machine lets nobody", "needs npm",
    "npm cannot install",
)  # fmt: skip
ALLOWED_PACKAGES: Final = ("torch", "numpy", "pyarrow")
SKIPS: Final = {"skip", "skipif", "xfail"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Row(NamedTuple):
    name: str
    what: str
    tests: list[str]


def rows_of(text: str) -> list[Row]:
    return [Row(**row) for row in tomllib.loads(text)["row"]]


def faults(text: str, root: Path, counts: dict[str, int]) -> Iterator[str]:
    """Yield every fault of the file, one line each."""
    rows = rows_of(text)
    names = [row.name for row in rows]
    wanted = [f"R-{part}{number}" for part, last in counts.items() for number in range(1, last + 1)]
    yield from (f"{name} is missing" for name in wanted if name not in names)
    yield from (f"{name} is not a row" for name in names if name not in wanted)
    yield from (f"{name} occurs twice" for name in set(names) if names.count(name) > 1)
    for row in rows:
        if not row.what:
            yield f"{row.name} does not say what"
        if not row.tests:
            yield f"{row.name} has no test"
        elif all(runs_elsewhere(test, root) for test in row.tests):
            yield f"{row.name} has no test that every change runs"
        yield from (f"{row.name}: {why}" for test in row.tests for why in faults_of(test, root))


def runs_elsewhere(reference: str, root: Path) -> bool:
    """Return True if `make test` leaves the test out, by its folder or a mark."""
    name, _, inside = reference.partition("::")
    if name.startswith(ELSEWHERE):
        return True
    found = _test(root / name, inside) if name.endswith(".py") else None
    return found is not None and any(_names(mark) & DESELECTED for mark in _marks(*found))


def faults_of(reference: str, root: Path) -> Iterator[str]:
    """Yield the reasons why ``file::test`` or ``file.test.js::words`` proves nothing."""
    name, _, inside = reference.partition("::")
    if not inside or not name.startswith("tests/"):
        yield f"{reference} is not of the form tests/file::test"
    elif not (root / name).is_file():
        yield f"{name} does not exist"
    elif name.endswith(".test.js"):
        text = (root / name).read_text(encoding="utf-8")
        if not re.search(rf'^\s*test\("{re.escape(inside)}",', text, re.MULTILINE):
            yield f"no test {inside!r} that runs"
    elif (found := _test(root / name, inside)) is None:
        yield f"there is no test {inside}"
    else:
        for mark in _marks(*found):
            yield from (f"{inside} {why}" for why in _marked(mark))
        for scope in found:
            yield from (f"{inside} {why}" for why in _left_out(scope))


def _test(path: Path, name: str) -> tuple[ast.Module, Function] | None:
    """Return the module and the test in it. If two have the same name, Python keeps the last."""
    if not path.is_file():
        return None
    module = _parsed(path.read_text(encoding="utf-8"))
    tests = [n for n in module.body if isinstance(n, Function) and n.name == name]
    return (module, tests[-1]) if tests and name.startswith("test_") else None


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _marks(module: ast.Module, function: Function) -> list[ast.expr]:
    """Return the marks of the test: its decorators and those of its module, with names resolved."""
    given = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    of_file = given.get("pytestmark")
    listed = of_file.elts if isinstance(of_file, ast.List | ast.Tuple) else [of_file]
    marks = [*function.decorator_list, *(mark for mark in listed if mark is not None)]
    marks = [given.get(m.id, m) if isinstance(m, ast.Name) else m for m in marks]
    # Single values of a parameter may be marked in any way.
    return [mark for mark in marks if "parametrize" not in _names(mark)]


def _marked(mark: ast.expr) -> Iterator[str]:
    """Yield marks that keep the test from running or from counting."""
    calls = {call.func: call for call in ast.walk(mark) if isinstance(call, ast.Call)}
    for part in ast.walk(mark):
        if _last_name(part) in SKIPS:
            call = calls.get(part) if isinstance(part, ast.expr) else None
            fixed = call is None or not call.args or isinstance(call.args[0], ast.Constant)
            if _last_name(part) != "skipif" or call is None or fixed:
                yield f"is marked {_last_name(part)}"
            else:
                yield from _judged([k.value for k in call.keywords if k.arg == "reason"])


def _left_out(scope: ast.Module | Function) -> Iterator[str]:
    """Yield calls of `pytest.skip`, `pytest.xfail` and `pytest.importorskip` in the scope, without nested functions."""
    waiting: list[ast.AST] = [*scope.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Function | ast.ClassDef):
            continue
        waiting += ast.iter_child_nodes(node)
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if called == "pytest.xfail":
            yield "calls pytest.xfail"
        elif called == "pytest.skip":
            yield from _judged([k.value for k in node.keywords if k.arg == "reason"] + node.args)
        elif called == "pytest.importorskip":
            package = ast.unparse(node.args[0]).strip("'")
            if package.split(".")[0] not in ALLOWED_PACKAGES:
                yield f"is skipped without {package}, which is not allowed"


def _judged(reasons: list[ast.expr]) -> Iterator[str]:
    """Yield a fault unless the reason, without its placeholders, is allowed."""
    parts = (part for each in reasons[:1] for part in ast.walk(each))
    reason = " ".join(str(part.value) for part in parts if isinstance(part, ast.Constant))
    if not any(words in reason for words in ALLOWED_REASONS):
        yield f"is skipped for a reason that is not allowed: {reason!r}"


def _names(node: ast.AST) -> set[str]:
    return {_last_name(part) for part in ast.walk(node)}


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


# -- the document ------------------------------------------------------------------------------------------


def test_every_row_of_the_document_has_tests_that_run() -> None:
    assert list(faults(DOCUMENT.read_text(encoding="utf-8"), ROOT, ROWS)) == []


def test_a_row_that_loses_one_or_all_tests_fails() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    row = next(row for row in rows_of(text) if row.name == "R-A2")
    renamed = text.replace(row.tests[0], f"{row.tests[0]}_no_more")
    assert any(fault.startswith("R-A2: there is no test") for fault in faults(renamed, ROOT, ROWS))
    before, _, rest = text.partition('[[row]]\nname = "R-A2"\n')
    _, begin, after = rest.partition("[[row]]")
    assert "R-A2 has no test" in faults(before + row_text("R-A2") + begin + after, ROOT, ROWS)
    assert "R-A2 is missing" in faults(before + begin + after, ROOT, ROWS)


# -- rejected tests, on generated modules ------------------------------------------------------------------


def row_text(name: str, *tests: str, what: str = "something") -> str:
    return f"[[row]]\nname = {json.dumps(name)}\nwhat = {json.dumps(what)}\ntests = {json.dumps(tests)}\n"


PLAIN: Final = "def test_it() -> None:\n    assert 1\n"
Found = Callable[..., str]


@pytest.fixture
def found(tmp_path: Path) -> Found:
    """Return a function that lists the faults of a row whose only test is in a file with this source."""

    def call(source: str, inside: str = "test_it", name: str = "tests/test_a.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
        text = row_text("R-A1", f"{name}::{inside}")
        return "; ".join(faults(text, tmp_path, {"A": 1}))

    return call


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def helper():\n    def test_it(): ...\n", "there is no test test_it"),
        ("@pytest.mark.skip(reason='no native module')\n" + PLAIN, "is marked skip"),
        ("@pytest.mark.skipif(slow(), reason='takes long')\n" + PLAIN, "a reason that is not allowed: 'takes long'"),
        ("later = pytest.mark.skip\n@later\n" + PLAIN, "is marked skip"),
        ("pytestmark = [pytest.mark.alone, pytest.mark.xfail]\n" + PLAIN, "is marked xfail"),
        ("pytest.skip('all of it', allow_module_level=True)\n" + PLAIN, "not allowed: 'all of it'"),
        ("pytest.importorskip('pandas')\n" + PLAIN, "without pandas, which is not allowed"),
        ("def test_it() -> None:\n    with a():\n        pytest.xfail('x')\n", "calls pytest.xfail"),
        ("def test_it() -> None:\n    if a():\n        pytest.skip('not today')\n", "not allowed: 'not today'"),
        (PLAIN + "@pytest.mark.skip\n" + PLAIN, "is marked skip"),
        ("@pytest.mark.soak\n" + PLAIN, "no test that every change runs"),
        ("long = pytest.mark.integrations\n@long\n" + PLAIN, "no test that every change runs"),
    ],
)  # fmt: skip
def test_a_missing_or_skipped_test_proves_nothing(found: Found, source: str, why: str) -> None:
    assert why in found(source)


@pytest.mark.parametrize(
    "source",
    [
        "async def test_it() -> None: ...\n",
        "@pytest.mark.parametrize('a', [1, pytest.param(2, marks=pytest.mark.skip)])\n" + PLAIN,
        "@pytest.mark.skipif(native() is None, reason=f'no native module: {why()}')\n" + PLAIN,
        "def test_it() -> None:\n    torch = pytest.importorskip('torch')\n",
        "def test_it() -> None:\n    if old():\n        pytest.skip('this kernel does not let a process do it')\n",
        "def other() -> None:\n    pytest.skip('of another')\n" + PLAIN,
        "@pytest.mark.skip\ndef test_other() -> None: ...\n" + PLAIN,
    ],
)
def test_a_test_that_runs_is_accepted(found: Found, source: str) -> None:
    assert found(source) == ""


def test_tests_in_javascript_are_found_by_their_words(found: Found) -> None:
    name = "tests/js/a.test.js"
    source = 'test("it works", () => {});\ntest.skip("it may", () => {});\n'
    assert found(source, "it works", name) == ""
    assert "no test 'it may' that runs" in found(source, "it may", name)
    assert "no test 'it'" in found(source, "it", name)


def test_a_row_needs_one_test_that_every_change_runs(found: Found, tmp_path: Path) -> None:
    assert "that every change runs" in found(PLAIN, name="tests/soak/test_a.py")
    assert found(PLAIN + "@pytest.mark.soak\ndef test_other() -> None: ...\n") == ""
    both = row_text("R-A1", "tests/test_a.py::test_it", "tests/test_a.py::test_other")
    assert list(faults(both, tmp_path, {"A": 1})) == []


def test_missing_files_and_rows_are_faults(tmp_path: Path) -> None:
    assert "does not exist" in "; ".join(faults_of("tests/test_b.py::test_it", tmp_path))
    assert "not of the form" in "; ".join(faults_of("docs/x.py::test_it", tmp_path))
    row = row_text("R-A1", "tests/a.py::test_a")
    found = set(faults(f"{row}{row}{row_text('R-B7', what='')}", tmp_path, {"A": 2}))
    assert {"R-A2 is missing", "R-A1 occurs twice", "R-B7 is not a row"} <= found
    assert "R-B7 does not say what" in found
