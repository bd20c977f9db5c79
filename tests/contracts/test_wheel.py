"""The built wheel serves a page, its static files and an empty database, without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "agent_client" / "native" / "build.py"
NATIVE = f"leakline/_native{sysconfig.get_config_var('EXT_SUFFIX')}"
MALLOC = "leakline/_native_malloc.so"
SERVER_NATIVE = NATIVE.replace("leakline/", "leakline_server/")
# By default, a wheel built here contains the native module exactly if it can be compiled here.
CANNOT = subprocess.run(
    [sys.executable, str(BUILD), "--possible"], capture_output=True, text=True
).stderr.strip()


# Session scope: tests that start processes run last, after those of other files.
@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def unpacked(wheel: Path) -> Path:
    return _unpack(wheel)


@pytest.fixture(scope="session")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("wheel", tmp_path_factory.mktemp("pure"), LEAKLINE_BUILD_NATIVE="0")


def _build(target: str, out: Path, **setting: str) -> Path:
    environment = {k: v for k, v in os.environ.items() if k != "LEAKLINE_BUILD_NATIVE"}
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)],
        cwd=ROOT, check=True, capture_output=True, env={**environment, **setting},
    )  # fmt: skip
    (built,) = out.glob("leakline-*")
    return built


def _unpack(wheel: Path) -> Path:
    target = wheel.parent / "site"
    zipfile.ZipFile(wheel).extractall(target)
    return target


def _python(site: Path, code: str, **setting: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=site.parent, env={**os.environ, "PYTHONPATH": str(site), **setting},
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip


@pytest.mark.skipif(bool(CANNOT), reason=CANNOT)
def test_a_wheel_built_with_a_compiler_has_module_and_platform_tag(
    wheel: Path, unpacked: Path
) -> None:
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name.endswith(f"-{version}-{version}-{platform}.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if "_native" in name] == [NATIVE, MALLOC, SERVER_NATIVE]
    assert not [name for name in names if name.endswith((".c", ".h"))]
    assert _python(unpacked, "import leakline._native as n; print(n.__file__)") == str(
        unpacked / NATIVE
    )


@pytest.mark.skipif(bool(CANNOT), reason=CANNOT)
def test_the_native_module_builds_reproducibly(wheel: Path, tmp_path: Path) -> None:
    again = zipfile.ZipFile(_build("wheel", tmp_path))
    for name in (NATIVE, MALLOC):
        assert again.read(name) == zipfile.ZipFile(wheel).read(name)
        assert str(ROOT).encode() not in again.read(name)


def test_a_pure_wheel_is_for_every_interpreter_and_says_why_it_is_slower(
    pure: Path,
) -> None:
    assert pure.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(pure).namelist() if "_native" in name]
    site = _unpack(pure)
    code = (
        "import leakline.probes.native_module as n; "
        "assert n.__file__.startswith(__import__('os').environ['PYTHONPATH']); "
        "print(n.native(), '|', n.why_not_native())"
    )
    module, why = _python(site, code).split(" | ")
    assert module == "None"
    assert why and "\n" not in why


def test_a_failing_compiler_gives_a_pure_wheel_or_an_error_if_required(
    tmp_path: Path,
) -> None:
    pure = _build("wheel", tmp_path, CC="false")
    assert pure.name.endswith("-py3-none-any.whl")
    pure.unlink()
    with pytest.raises(subprocess.CalledProcessError) as failure:
        _build("wheel", tmp_path, CC="false", LEAKLINE_BUILD_NATIVE="1")
    assert "compilation failed" in failure.value.stderr.decode().splitlines()[-1]
    assert not list(tmp_path.glob("*.whl"))


def test_a_source_archive_contains_the_sources_of_the_module(tmp_path: Path) -> None:
    with tarfile.open(_build("sdist", tmp_path)) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    sources = {
        str(p.relative_to(ROOT)) for p in BUILD.parent.rglob("*") if p.suffix in {".c", ".h", ".py"}
    }
    assert {"hatch_build.py", *sources} <= inside
    assert not [name for name in inside if name.endswith(".so")]


def test_the_wheel_contains_pages_migrations_and_the_example(unpacked: Path) -> None:
    for name in (
        "leakline_server/templates/base.html",
        "leakline_server/static/vendor/plotly/LICENSE",
        "leakline_server/migrations/env.py",
        "leakline_server/static/js/leakline.js",
        "leakline/examples/erl_trading/trainer.py",
        "leakline/cli/drill_training.py",
        "leakline/py.typed",
    ):
        assert (unpacked / name).is_file(), name
