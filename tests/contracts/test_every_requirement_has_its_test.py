"""Every row of `docs/requirements.md` names tests that exist and run; a row that loses its test fails here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
DOCUMENT: Final = ROOT / "docs" / "requirements.md"
ROWS: Final = {"A": 20, "B": 33, "C": 18, "D": 18, "E": 33, "F": 12, "G": 15}
ROW: Final = re.compile(r"^\| (R-[A-Z]\d+) \|([^|]*)\|([^|]*)\|$")
REFERENCE: Final = re.compile(r"`([^`]+)`")
# Folders and marks whose tests another make target runs: a row needs one test that every change runs.
ELSEWHERE: Final = ("tests/integrations/", "tests/leaks/", "tests/native/", "tests/soak/")
DESELECTED: Final = ("integrations", "leaks", "soak")
# Why a test may stand aside on some machine, by words of its reason; and where no reason is written.
ALLOWED_REASONS: Final = (
    "no native module", "the native module is not built", "without the native module", "the count of tracked objects",
    "this system does not fork", "this kernel does not let", "this machine lets nobody", "needs npm",
    "npm cannot install",
)  # fmt: skip
ALLOWED_PACKAGES: Final = ("torch", "numpy", "pyarrow")
SKIPS: Final = ("skip", "skipif", "xfail", "skipIf", "skipUnless", "expectedFailure")


Scope = ast.Module | ast.ClassDef
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Row:
    name: str
    what: str
    tests: tuple[str, ...]


def rows_of(text: str) -> list[Row]:
    found = (ROW.match(line) for line in text.splitlines())
    return [Row(m[1], m[2].strip(), tuple(REFERENCE.findall(m[3]))) for m in found if m]


def faults(text: str, root: Path, counts: dict[str, int]) -> Iterator[str]:
    """Every way in which the document falls short, in a line each."""
    rows = rows_of(text)
    names = [row.name for row in rows]
    wanted = [f"R-{part}{number}" for part, last in counts.items() for number in range(1, last + 1)]
    yield from (f"{name} is missing" for name in wanted if name not in names)
    yield from (f"{name} is no row" for name in names if name not in wanted)
    yield from (f"{name} stands there twice" for name in set(names) if names.count(name) > 1)
    for row in rows:
        if not row.what:
            yield f"{row.name} does not say what"
        if not row.tests:
            yield f"{row.name} has no test"
        elif all(runs_elsewhere(test, root) for test in row.tests):
            yield f"{row.name} has no test that every change runs"
        yield from (f"{row.name}: {why}" for test in row.tests for why in faults_of(test, root))


def runs_elsewhere(test: str, root: Path) -> bool:
    """Whether `make test` leaves it out, by its folder or by a mark."""
    name, _, inside = test.partition("::")
    path = root / name
    if name.startswith(ELSEWHERE):
        return True
    if not name.endswith(".py") or not path.is_file():
        return False
    module = ast.parse(path.read_text(encoding="utf-8"))
    scopes = _scopes(module, inside)
    function = scopes and _test_in(scopes[-1], inside)
    return bool(function) and any(_deselects(node) for node in _marks(module, scopes, function))


def faults_of(test: str, root: Path) -> Iterator[str]:
    """What keeps ``file::test``, ``file::Class::test`` or ``file.test.js::words`` from proving anything."""
    name, _, inside = test.partition("::")
    path = root / name
    if not inside or not name.startswith("tests/"):
        yield f"{test} is not of the form tests/file::test"
    elif not path.is_file():
        yield f"{name} does not exist"
    elif name.endswith(".test.js"):
        yield from _faults_of_javascript(path.read_text(encoding="utf-8"), inside)
    else:
        yield from _faults_of_python(ast.parse(path.read_text(encoding="utf-8")), inside)


def _faults_of_javascript(text: str, words: str) -> Iterator[str]:
    if not re.search(rf'^\s*test\("{re.escape(words)}",', text, re.MULTILINE):
        yield f"no test {words!r} that runs"


def _faults_of_python(module: ast.Module, inside: str) -> Iterator[str]:
    scopes = _scopes(module, inside)
    if scopes is None:
        yield f"there is no class {inside.rpartition('::')[0]} of tests"
        return
    name = inside.rpartition("::")[2]
    function = _test_in(scopes[-1], inside)
    if function is None:
        yield f"there is no test {name}"
        return
    nodes = _marks(module, scopes, function)
    yield from (f"{name} {why}" for node in nodes for why in _marked(node))
    yield from (f"{name} {why}" for why in _leaves_out(module.body, []))
    yield from (f"{name} {why}" for why in _leaves_out(function.body, []))


def _scopes(module: ast.Module, inside: str) -> list[Scope] | None:
    """The module and the classes around a test; None where one of them is no class of tests."""
    scopes: list[Scope] = [module]
    for each in inside.split("::")[:-1]:
        found = [n for n in scopes[-1].body if isinstance(n, ast.ClassDef) and n.name == each]
        if not found or not each.startswith("Test"):
            return None
        scopes.append(found[-1])
    return scopes


def _test_in(scope: Scope, inside: str) -> Function | None:
    name = inside.rpartition("::")[2]
    # Of two of one name Python keeps the last.
    found = [n for n in reversed(scope.body) if isinstance(n, Function) and n.name == name]
    return found[0] if found and name.startswith("test_") else None


def _marks(module: ast.Module, scopes: list[Scope], function: Function) -> list[ast.AST]:
    """Decorators and pytestmarks that hold for the test."""
    marks = _marks_of_names(module)
    nodes: list[ast.AST] = [*function.decorator_list]
    for scope in scopes:
        nodes += [statement.value for statement in _pytestmarks(scope)]
        nodes += scope.decorator_list if isinstance(scope, ast.ClassDef) else []
    # A mark that is given a name and used by it.
    return nodes + [marks[n.id] for n in list(nodes) if isinstance(n, ast.Name) and n.id in marks]


def _deselects(node: ast.AST) -> bool:
    """Whether a mark keeps the test out of `make test`; of parameters, whether those of each do."""
    if isinstance(node, ast.Call) and _last_name(node.func) == "parametrize":
        values = node.args[1] if len(node.args) > 1 else None
        return isinstance(values, ast.List | ast.Tuple) and all(map(_names_deselected, values.elts))
    return _names_deselected(node)


def _names_deselected(node: ast.AST) -> bool:
    return any(isinstance(p, ast.Attribute) and p.attr in DESELECTED for p in ast.walk(node))


def _pytestmarks(scope: Scope) -> list[ast.Assign]:
    return [
        node
        for node in scope.body
        if isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets)
    ]


def _marks_of_names(module: ast.Module) -> dict[str, ast.expr]:
    return {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _marked(node: ast.AST) -> Iterator[str]:
    """Of a decorator or a pytestmark: marks that keep the test from running, or from counting."""
    if isinstance(node, ast.Call) and _last_name(node.func) == "parametrize":
        yield from _parameters(node)
        return
    for part in ast.walk(node):
        if not isinstance(part, ast.Attribute | ast.Name) or _last_name(part) not in SKIPS:
            continue
        call = next((c for c in ast.walk(node) if isinstance(c, ast.Call) and c.func is part), None)
        kind = _last_name(part)
        if (
            kind != "skipif"
            or call is None
            or not call.args
            or isinstance(call.args[0], ast.Constant)
        ):
            yield f"is marked {kind}"
        elif not _is_allowed(_reason(call)):
            yield f"is skipped for a reason that is not allowed: {_reason(call)!r}"


def _parameters(call: ast.Call) -> Iterator[str]:
    """A parametrization without values runs nothing, and one whose every value is skipped neither."""
    values = call.args[1] if len(call.args) > 1 else None
    if not isinstance(values, ast.List | ast.Tuple):
        return
    if not values.elts:
        yield "has no parameters to run with"
    elif all(any(_last_name(p) in SKIPS for p in ast.walk(each)) for each in values.elts):
        yield "is skipped with every parameter"


def _leaves_out(body: list[ast.stmt], conditions: list[ast.expr]) -> Iterator[str]:
    """`pytest.skip`, `pytest.xfail` and `pytest.importorskip` among these statements."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        inner = [block for name in ("body", "orelse", "handlers", "finalbody")
                 for block in getattr(statement, name, [])]  # fmt: skip
        guarded = isinstance(statement, ast.If | ast.Try | ast.ExceptHandler | ast.For | ast.While)
        calls = [] if inner else [c for c in ast.walk(statement) if isinstance(c, ast.Call)]
        yield from (why for call in calls for why in _left_out_by(call, bool(conditions)))
        blocks = [b for b in inner if isinstance(b, ast.stmt | ast.ExceptHandler)]
        more = [*conditions, ast.Constant(True)] if guarded else conditions
        for block in blocks:
            if isinstance(block, ast.ExceptHandler):
                yield from _leaves_out(block.body, [*conditions, ast.Constant(True)])
            else:
                yield from _leaves_out([block], more)


def _left_out_by(call: ast.Call, conditional: bool) -> Iterator[str]:
    kind = _last_name(call.func)
    if not isinstance(call.func, ast.Attribute) or _last_name(call.func.value) != "pytest":
        return
    if kind == "xfail" or (kind == "skip" and not conditional):
        yield f"calls pytest.{kind}"
    elif kind == "skip" and not _is_allowed(_reason(call)):
        yield f"is skipped for a reason that is not allowed: {_reason(call)!r}"
    elif kind == "importorskip":
        package = call.args[0].value if isinstance(call.args[0], ast.Constant) else ""
        if str(package).split(".")[0] not in ALLOWED_PACKAGES:
            yield f"is skipped without {package}, which is not allowed"


def _is_allowed(reason: str) -> bool:
    return any(words in reason for words in ALLOWED_REASONS)


def _reason(call: ast.Call) -> str:
    """The words of a reason, what is filled in left out."""
    given = [k.value for k in call.keywords if k.arg in ("reason", "msg")] + call.args[:1]
    if _last_name(call.func) == "skipif":
        given = [k.value for k in call.keywords if k.arg == "reason"]
    parts = (p for each in given[:1] for p in ast.walk(each))
    return " ".join(str(p.value) for p in parts if isinstance(p, ast.Constant))


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


# -- the document ------------------------------------------------------------------------------------------


def test_every_row_of_the_document_has_tests_that_run() -> None:
    assert list(faults(DOCUMENT.read_text(encoding="utf-8"), ROOT, ROWS)) == []


def test_a_row_that_loses_one_test_or_all_of_them_fails() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    row = next(row for row in rows_of(text) if row.name == "R-A2")
    renamed = text.replace(row.tests[0], f"{row.tests[0]}_no_more")
    assert any(fault.startswith("R-A2: there is no test") for fault in faults(renamed, ROOT, ROWS))
    line = next(line for line in text.splitlines() if line.startswith("| R-A2 |"))
    for without in ("| R-A2 | something | |", "| R-A2 | something | - |"):
        assert list(faults(text.replace(line, without), ROOT, ROWS)) == ["R-A2 has no test"]
    assert list(faults(text.replace(line, ""), ROOT, ROWS)) == ["R-A2 is missing"]


# -- what it refuses, on tests made up -----------------------------------------------------------------------

HEAD: Final = "import pytest\nimport unittest\n"
PLAIN: Final = "def test_it() -> None:\n    assert 1\n"


def found(
    tmp_path: Path, source: str, inside: str = "test_it", name: str = "tests/test_a.py"
) -> str:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    text = f"| R-A1 | something | `{name}::{inside}` |"
    return "; ".join(faults(text, tmp_path, {"A": 1}))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("x = 1\n", "there is no test test_it"),
        ("def helper():\n    def test_it(): ...\n", "there is no test test_it"),
        ("class TestA:\n    def test_it(self): ...\n", "there is no test test_it"),
        ("@pytest.mark.skip\n" + PLAIN, "is marked skip"),
        ("@pytest.mark.skip(reason='no native module')\n" + PLAIN, "is marked skip"),
        ("@pytest.mark.xfail\n" + PLAIN, "is marked xfail"),
        ("@pytest.mark.xfail(strict=True)\n" + PLAIN, "is marked xfail"),
        ("@unittest.skip('later')\n" + PLAIN, "is marked skip"),
        ("@pytest.mark.skipif(True, reason='no native module')\n" + PLAIN, "is marked skipif"),
        ("@pytest.mark.skipif(slow(), reason='takes long')\n" + PLAIN, "a reason that is not allowed: 'takes long'"),
        ("later = pytest.mark.skip\n@later\n" + PLAIN, "is marked skip"),
        ("pytestmark = pytest.mark.skip\n" + PLAIN, "is marked skip"),
        ("pytestmark = [pytest.mark.alone, pytest.mark.xfail]\n" + PLAIN, "is marked xfail"),
        ("pytest.skip('all of it', allow_module_level=True)\n" + PLAIN, "calls pytest.skip"),
        ("pytest.importorskip('pandas')\n" + PLAIN, "without pandas, which is not allowed"),
        ("def test_it() -> None:\n    pytest.skip('no native module')\n", "calls pytest.skip"),
        ("def test_it() -> None:\n    with a():\n        pytest.xfail('x')\n", "calls pytest.xfail"),
        ("def test_it() -> None:\n    if a():\n        pytest.skip('not today')\n", "not allowed: 'not today'"),
        ("@pytest.mark.parametrize('a', [])\ndef test_it(a) -> None: ...\n", "no parameters to run with"),
        ("@pytest.mark.parametrize('a', [pytest.param(1, marks=pytest.mark.skip)])\ndef test_it(a) -> None: ...\n",
         "skipped with every parameter"),
        (PLAIN + "@pytest.mark.skip\n" + PLAIN, "is marked skip"),
    ],
)  # fmt: skip
def test_a_test_that_is_not_there_or_does_not_run_proves_nothing(
    tmp_path: Path, source: str, why: str
) -> None:
    assert why in found(tmp_path, HEAD + source)


@pytest.mark.parametrize(
    "source",
    [
        PLAIN, "async def test_it() -> None: ...\n", "@pytest.mark.parametrize('a', [1, 2])\ndef test_it(a): ...\n",
        "@pytest.mark.parametrize('a', [1, pytest.param(2, marks=pytest.mark.skip)])\ndef test_it(a): ...\n",
        "@pytest.mark.skipif(native() is None, reason=f'no native module: {why()}')\n" + PLAIN,
        "def test_it() -> None:\n    torch = pytest.importorskip('torch')\n",
        "def test_it() -> None:\n    if old():\n        pytest.skip('this kernel does not let a process do it')\n",
        "def other() -> None:\n    pytest.skip('of another')\n" + PLAIN,
        "@pytest.mark.skip\ndef test_other() -> None: ...\n" + PLAIN,
    ],
)  # fmt: skip
def test_a_test_that_runs_is_one(tmp_path: Path, source: str) -> None:
    assert found(tmp_path, HEAD + source) == ""


def test_tests_of_a_class_are_found_with_the_marks_of_their_class(tmp_path: Path) -> None:
    body = "class TestA:\n    def test_it(self): ...\n"
    assert found(tmp_path, HEAD + body, "TestA::test_it") == ""
    assert "no class TestB" in found(tmp_path, HEAD + body, "TestB::test_it")
    assert "marked skip" in found(tmp_path, HEAD + "@pytest.mark.skip\n" + body, "TestA::test_it")
    marked = "class TestA:\n    pytestmark = pytest.mark.xfail\n    def test_it(self): ...\n"
    assert "marked xfail" in found(tmp_path, HEAD + marked, "TestA::test_it")


def test_tests_in_javascript_are_found_by_their_words(tmp_path: Path) -> None:
    name, source = (
        "tests/js/a.test.js",
        'test("it works", () => {});\ntest.skip("it may", () => {});\n',
    )
    assert found(tmp_path, source, "it works", name) == ""
    assert "no test 'it may' that runs" in found(tmp_path, source, "it may", name)
    assert "no test 'it'" in found(tmp_path, source, "it", name)


PARAMETERS: Final = "@pytest.mark.parametrize('a', [{}])\ndef test_it(a) -> None: ...\n"
LEAKS: Final = "pytest.param(1, marks=pytest.mark.leaks)"


def test_a_row_needs_one_test_that_every_change_runs(tmp_path: Path) -> None:
    assert "that every change runs" in found(tmp_path, PLAIN, name="tests/soak/test_a.py")
    for source in (
        "@pytest.mark.soak\n" + PLAIN, "pytestmark = [pytest.mark.flow, pytest.mark.leaks]\n" + PLAIN,
        "long = pytest.mark.integrations\n@long\n" + PLAIN, PARAMETERS.format(f"{LEAKS}, {LEAKS}"),
    ):  # fmt: skip
        assert found(tmp_path, HEAD + source) == "R-A1 has no test that every change runs", source
    of_a_class = "@pytest.mark.soak\nclass TestA:\n    def test_it(self): ...\n"
    assert "every change" in found(tmp_path, HEAD + of_a_class, "TestA::test_it")
    for source in (
        PARAMETERS.format(f"{LEAKS}, 2"), "@pytest.mark.flow\n" + PLAIN,
        "@pytest.mark.soak\ndef test_other() -> None: ...\n" + PLAIN,
    ):  # fmt: skip
        assert found(tmp_path, HEAD + source) == "", source
    both = "| R-A1 | x | `tests/test_a.py::test_it`, `tests/test_a.py::test_other` |"
    assert list(faults(both, tmp_path, {"A": 1})) == []


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    assert "does not exist" in "; ".join(faults_of("tests/test_b.py::test_it", tmp_path))
    assert "not of the form" in "; ".join(faults_of("docs/x.py::test_it", tmp_path))


def test_rows_are_there_once_and_no_others() -> None:
    text = (
        "| R-A1 | x | `tests/a.py::test_a` |\n| R-A1 | x | `tests/a.py::test_a` |\n| R-B7 | | - |"
    )
    told = list(faults(text, Path("/nowhere"), {"A": 2}))
    assert {
        "R-A2 is missing",
        "R-A1 stands there twice",
        "R-B7 is no row",
        "R-B7 does not say what",
    } <= {*told}
