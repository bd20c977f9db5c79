"""Checks of Dockerfile, docker-compose.yml and the proxy configuration without a container engine.

They only refer to what exists, agree with each other, do not run as root, and publish nothing beyond loopback.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from datetime import date, timedelta
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.server import nginx

from leakline.cli import main
from leakline_server.config import VARIABLES, Config, from_environment
from leakline_server.serve import GRACEFUL_SHUTDOWN_SECONDS, KEEP_ALIVE_SECONDS
from leakline_server.store.maintenance.retention_policy import PerProject

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = (ROOT / "docker-compose.yml").read_text()
PLAN: dict[str, Any] = yaml.safe_load(COMPOSE)
SERVICES: dict[str, dict[str, Any]] = PLAN["services"]
SERVERS = ("leakline-1", "leakline-2")
SERVER, DATABASE, PROXIED = (SERVICES[name] for name in ("leakline-1", "postgres", "proxy"))
PROXY = nginx.CONFIGURATION.read_text()
VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*)|:\?([^}]*))?\}")
SECRETS: dict[str, dict[str, str]] = PLAN["secrets"]
DATED = ROOT / "requirements" / "dated.txt"
MAKE_SECRETS = ROOT / "deploy" / "make-secrets"
BUILD, RUNTIME = re.split(r"^FROM ", DOCKERFILE, flags=re.M)[1:]
# A version of three or two numbers, or a digest; never a tag that can move.
PINNED = re.compile(r"[\w./-]+(:\d+\.\d+(\.\d+)?-[\w.-]+|@sha256:[0-9a-f]{64})")


def _last(instruction: str) -> str:
    return re.findall(rf"^{instruction} (.+)$", DOCKERFILE, re.M)[-1].strip()


def _copied() -> list[str]:
    lines = re.findall(r"^COPY (?!--)(.+)$", DOCKERFILE, re.M)
    return [source for line in lines for source in line.split()[:-1]]


def copy(names: Iterable[str], folder: Path) -> None:
    """Copy files and folders of the checkout into another folder."""
    for name in names:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def make_secrets(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MAKE_SECRETS, folder], capture_output=True, text=True, check=False)


# -- the services ------------------------------------------------------------------------------------------


def test_compose_has_two_servers_on_one_postgres_behind_a_proxy() -> None:
    assert set(SERVICES) == {*SERVERS, "proxy", "postgres"}
    # The servers differ only in their names, so only the first is checked.
    assert SERVICES["leakline-2"] == SERVER


def test_only_the_proxy_is_published_and_only_on_loopback() -> None:
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    (published,) = ports.pop("proxy")
    assert ports == {}
    address, _, inside = published.rpartition(":")
    assert address.startswith("127.0.0.1:")
    assert f"listen {inside};" in PROXY
    # The database is on an internal network.
    assert DATABASE["networks"] == ["database"]
    assert PLAN["networks"]["database"] == {"internal": True}
    assert "database" not in PROXIED["networks"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_name_in_a_service_exists(name: str) -> None:
    service = SERVICES[name]
    assert set(service.get("networks", [])) <= set(PLAN["networks"])
    for other, condition in service.get("depends_on", {}).items():
        assert condition["condition"] == "service_healthy"
        assert "healthcheck" in SERVICES[other] or "build" in SERVICES[other], other
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        if source.startswith("."):
            assert (ROOT / source).is_file(), source
            assert volume.endswith(":ro")
        else:
            assert source in PLAN["volumes"]
    known = {
        "build", "image", "depends_on", "environment", "read_only", "tmpfs", "cap_drop", "security_opt", "networks",
        "stop_grace_period", "restart", "user", "volumes", "ports", "healthcheck", "mem_limit", "pids_limit", "logging",
        "secrets",
    }  # fmt: skip
    assert set(service) <= known, "a slip of the pen, or teach this test"


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_runs_as_root_or_without_limits(name: str) -> None:
    service = SERVICES[name]
    user = str(service["user"]) if "user" in service else _last("USER")
    assert user.split(":")[0] not in ("", "0", "root")
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    # Everything else that it writes is in memory or in a volume.
    assert service["read_only"] is True and service["tmpfs"]
    assert re.fullmatch(r"\d+g", service["mem_limit"]) and service["pids_limit"] > 0
    assert set(service["logging"]["options"]) == {"max-size", "max-file"}
    assert all("size=" in place for place in service.get("tmpfs", []))


def test_every_image_is_pinned() -> None:
    images = [s["image"] for s in SERVICES.values() if "build" not in s]
    images += re.findall(r"^FROM (\S+)", DOCKERFILE, re.M)
    assert len(images) == 4
    for image in images:
        assert PINNED.fullmatch(image), image
    assert len(set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.M))) == 1
    # Each has a date that `make audit` compares with today.
    dated = re.findall(r"^([\w./-]+:\S+) \d{4}-\d\d-\d\d$", DATED.read_text(), re.M)
    assert sorted(dated) == sorted(set(images))
    document = (ROOT / "docs" / "operating.md").read_text()
    assert set(re.findall(r"(?:postgres|nginx|python):\d[\w.-]+", document)) <= set(images)


def test_a_vendored_script_matches_the_hash_in_its_readme() -> None:
    notes = list((ROOT / "static" / "vendor").glob("*/README.txt"))
    assert notes
    notes.append(ROOT / "tests" / "browser" / "vendor" / "README.txt")
    for note in notes:
        (script,) = note.parent.glob("*.js")
        assert hashlib.sha256(script.read_bytes()).hexdigest() in note.read_text()


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
INSTALLED = [*PROJECT["project"]["dependencies"]]
INSTALLED += [text for extra in ("server", "postgres", "notify") for text in EXTRAS[extra]]


@pytest.mark.parametrize(
    ("lock", "asked"),
    [("server.txt", INSTALLED), ("build.txt", PROJECT["build-system"]["requires"])],
)
def test_packages_of_the_image_are_pinned_with_hashes(lock: str, asked: list[str]) -> None:
    assert re.search(rf"pip .*install .*--require-hashes -r requirements/{lock}", DOCKERFILE)
    locked = (ROOT / "requirements" / lock).read_text()
    names = {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", locked, re.M)}
    assert locked.count("--hash=sha256:") >= len(names) > 4
    missing = _needed(asked) - names
    assert missing == set(), f"{missing}: .ci/lock .venv-audit"


def _needed(asked: list[str]) -> set[str]:
    """Return the requested packages and all their dependencies, since `pip check` ignores extras."""
    waiting = [(Requirement(text), "") for text in asked]
    needed: set[tuple[str, str]] = set()
    while waiting:
        one, extra = waiting.pop()
        if one.marker is not None and not one.marker.evaluate({"extra": extra}):
            continue
        for wanted in ("", *one.extras):
            if (canonicalize_name(one.name), wanted) not in needed:
                needed.add((canonicalize_name(one.name), wanted))
                with suppress(PackageNotFoundError):
                    waiting += [(Requirement(text), wanted) for text in requires(one.name) or ()]
    return {name for name, _ in needed}


def test_every_service_has_a_health_check() -> None:
    checks = {name: s["healthcheck"]["test"] for name, s in SERVICES.items() if "healthcheck" in s}
    # The servers use the health check of the image, which the next test covers.
    assert set(checks) == {"proxy", "postgres"}
    assert all(check[0] in ("CMD", "CMD-SHELL") for check in checks.values())
    found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/healthz", checks["proxy"][-1])
    assert found is not None and f"listen {found[1]};" in PROXY
    database = DATABASE["environment"]
    ready = f"pg_isready -h 127.0.0.1 -U {database['POSTGRES_USER']} -d {database['POSTGRES_DB']}"
    assert checks["postgres"][1:] == [ready]


def test_the_health_check_of_the_image_is_valid_python() -> None:
    command = re.search(r"HEALTHCHECK .*\n\s+CMD (\[.*\])", DOCKERFILE)
    assert command is not None
    python, option, program = yaml.safe_load(command[1])
    assert (python, option) == ("python", "-c")
    compile(program, "HEALTHCHECK", "exec")
    port = _last("EXPOSE")
    assert f"127.0.0.1:{port}/readyz" in program
    assert f'"--port", "{port}"' in _last("CMD")


def test_the_settings_in_compose_are_valid(tmp_path: Path) -> None:
    # Filled in like compose does when nothing is set.
    given = {
        key: VARIABLE.sub(lambda found: found[2] or "", str(value))
        for key, value in SERVER["environment"].items()
    }
    assert {key.removesuffix("_FILE") for key in given} <= set(VARIABLES)
    make_secrets(tmp_path)
    mounted = {key: value.replace("/run/secrets", str(tmp_path)) for key, value in given.items()}
    config = from_environment(mounted)
    assert config.database_url.startswith("postgresql+psycopg://")
    database = DATABASE["environment"]
    user, password = database["POSTGRES_USER"], (tmp_path / "database_password").read_text()
    assert f"//{user}:{password}@postgres:5432/{database['POSTGRES_DB']}" in config.database_url
    assert config.admin_password == (tmp_path / "admin_password").read_text()
    # Users reach the published port.
    (published,) = PROXIED["ports"]
    assert config.public_url == f"http://{published.rpartition(':')[0]}"
    assert config.log_format == "json"


def test_the_image_starts_an_existing_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    program, command, *options = yaml.safe_load(_last("CMD"))
    assert program == "leakline"
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = capsys.readouterr().out
    assert all(option in shown for option in options if option.startswith("--"))


def test_the_proxy_knows_the_servers_and_closes_idle_connections_first() -> None:
    named = re.findall(r"^\s+server (\S+:\d+)", PROXY, re.M)
    assert named == [f"{name}:{_last('EXPOSE')}" for name in SERVERS] == list(nginx.SERVERS)
    kept = re.search(r"keepalive 64;.*?keepalive_timeout (\d+)s;", PROXY, re.S)
    assert kept is not None and int(kept[1]) < KEEP_ALIVE_SECONDS
    # Stopping must be finished before the container is killed.
    grace = SERVER["stop_grace_period"].rstrip("s")
    assert int(grace) > 5 * GRACEFUL_SHUTDOWN_SECONDS


def test_the_proxy_writes_only_to_tmp_and_mounts_the_tested_file() -> None:
    written = re.findall(r"^\s*(?:pid|\w+_temp_path) (\S+);", PROXY, re.M)
    assert len(written) == 6 and all(path.startswith("/tmp/") for path in written)
    assert PROXIED["read_only"] is True
    assert any(place.startswith("/tmp") for place in PROXIED["tmpfs"])
    (mounted,) = PROXIED["volumes"]
    assert (ROOT / mounted.split(":")[0]).resolve() == nginx.CONFIGURATION
    assert mounted.split(":")[1] == "/etc/nginx/nginx.conf"


def test_nginx_accepts_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "nginx.conf"
    file.write_text(nginx.configured(8080, (1, 2), tmp_path))
    checked = subprocess.run(
        [nginx.program(), "-t", "-e", "stderr", "-p", tmp_path, "-c", file],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr


def test_variables_of_compose_are_documented() -> None:
    documented = (ROOT / "docs" / "settings.md").read_text()
    text = (ROOT / "docs" / "operating.md").read_text() + documented
    assert [f[1] for f in VARIABLE.finditer(COMPOSE) if f"`{f[1]}`" not in text] == []
    for name in re.findall(r"LEAKLINE_[A-Z_]+", COMPOSE + DOCKERFILE):
        assert f"`{name}`" in documented, name


def test_limits_per_project_can_be_set_in_compose() -> None:
    """The documents promise this for all of them."""
    config = Config()
    limits = {v for v, field in VARIABLES.items() if isinstance(getattr(config, field), PerProject)}
    assert {"LEAKLINE_KEEP_DAYS", "LEAKLINE_RUNS_PER_DAY"} < limits
    for variable in limits:
        assert SERVER["environment"].get(variable) == f"${{{variable}:-}}", variable


# -- secrets -----------------------------------------------------------------------------------------------


def test_image_and_compose_keep_authentication_on() -> None:
    assert "LEAKLINE_INSECURE=" not in re.sub(r"#.*", "", DOCKERFILE)
    assert "LEAKLINE_INSECURE" not in SERVER["environment"]


def test_no_secret_is_in_an_environment_or_has_a_default_value() -> None:
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|SECRET|TOKEN|DATABASE_URL", key) and value != f"${{{key}:-}}":
                assert key.endswith("_FILE") and re.fullmatch(r"/run/secrets/\w+", value), key
                assert Path(value).name in service["secrets"], name
    assert not any("PASSWORD" in found[1] for found in VARIABLE.finditer(COMPOSE))
    for file in (ROOT / "docker-compose.yml", ROOT / "Dockerfile", *(ROOT / "deploy").iterdir()):
        assert not re.search(r"(?i)password\w*[:=]\s*[\w-]*leakline", file.read_text()), file
    # A missing file is an error of compose, before anything starts.
    assert {found["file"] for found in SECRETS.values()} == {f"./secrets/{key}" for key in SECRETS}
    assert "secrets/" in (ROOT / ".gitignore").read_text().split()


def test_secrets_are_random_and_existing_ones_are_kept(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        made = make_secrets(folder)
        assert made.returncode == 0, made.stderr
        assert {file.name for file in folder.iterdir()} == set(SECRETS)
        assert folder.stat().st_mode & 0o777 == 0o700
        # The users of the containers differ from the user who made them.
        assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o644}
    assert (one / "database_password").read_text() != (other / "database_password").read_text()
    assert len((one / "admin_password").read_text()) == 48
    before = {file.name: file.read_text() for file in one.iterdir()}
    assert (one / "admin_password").read_text() not in make_secrets(one).stdout
    assert {file.name: file.read_text() for file in one.iterdir()} == before
    (one / "database_password").write_text("chosen")
    assert make_secrets(one).returncode == 0
    assert ":chosen@" in (one / "database_url").read_text()


def test_a_password_that_is_not_valid_in_a_url_is_refused(tmp_path: Path) -> None:
    (tmp_path / "database_password").write_text("p@ss/word")
    made = make_secrets(tmp_path)
    assert made.returncode == 1 and made.stderr.count("\n") == 1
    assert "letters, digits" in made.stderr and "p@ss" not in made.stderr


def test_the_proxys_client_address_is_trusted() -> None:
    environment = SERVER["environment"]
    assert environment["LEAKLINE_TRUSTED_PROXIES"] == "*"
    assert "proxy_set_header X-Forwarded-For $remote_addr;" in PROXY
    assert "`LEAKLINE_TRUSTED_PROXIES`" in (ROOT / "docs" / "operating.md").read_text()


# -- the image ---------------------------------------------------------------------------------------------


def test_the_image_has_no_compiler_or_installer() -> None:
    """The final stage installs no package; everything copied into it was installed by the build stage."""
    assert not re.search(r"apt-get|gcc|pip install|pip --python", RUNTIME)
    assert "pip uninstall --yes pip" in RUNTIME
    assert "venv --without-pip /leakline" in BUILD
    copied = re.findall(r"^COPY (--from=build )?(\S+)", RUNTIME, re.M)
    assert copied == [("--from=build ", "/leakline")]
    locked = (ROOT / "requirements" / "server.txt").read_text()
    for name in ("pip", "setuptools", "wheel", "hatchling", "pluggy", "trove-classifiers"):
        assert not re.search(rf"^{name}==", locked, re.M), name


def test_the_bill_of_materials_lists_the_installed_packages() -> None:
    script = ROOT / ".ci" / "bill_of_materials.py"
    assert "bill_of_materials.py > /leakline/bill-of-materials.json" in RUNTIME
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    bill = json.loads(printed.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    references = [each["bom-ref"] for each in bill["components"]]
    assert len(set(references)) == len(references)
    found = {each["name"]: each for each in bill["components"] if "pypi" in each["purl"]}
    assert any(each["purl"].startswith("pkg:npm/plotly.js-basic") for each in bill["components"])
    for name in ("leakline", "fastapi", "psycopg", "uvloop"):
        assert found[name]["version"] == version(name)
        assert found[name]["purl"] == f"pkg:pypi/{name}@{version(name)}"
        assert found[name]["licenses"][0]["license"]["name"]
    assert bill["components"][0]["version"] == platform.python_version()
    if shutil.which("dpkg-query"):
        debian = {each["name"] for each in bill["components"] if "pkg:deb/" in each["purl"]}
        assert {"bash", "dpkg"} <= debian


# All mounts stay and become read-only; /tmp is empty and writable.
READ_ONLY = """
set -e
code=$(stat -c %m "$CODE")
mount --make-rprivate /
mount -t tmpfs tmpfs /tmp
for place in / "$code"; do mount -o remount,bind,ro "$place"; done
mkdir /tmp/data
cd /tmp/data
if touch "$CODE/written" 2>/dev/null; then echo "not read-only" >&2; exit 1; fi
exec "$@"
"""


@pytest.mark.flow
@pytest.mark.long
def test_a_server_writes_nothing_outside_its_folder_and_tmp() -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a mount namespace")
    command = [sys.executable, "-m", "leakline", "serve", "--port", "0"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LEAKLINE_")}
    server = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", *command],
        env={**environment, "CODE": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        found = re.search(r"http://[\d.:]+", server.stdout.readline())
        assert found is not None, server.communicate()[1]
        for path in ("/readyz", "/", "/settings"):
            with urllib.request.urlopen(found[0] + path, timeout=30) as answer:
                assert answer.status == 200
    finally:
        server.terminate()
        _, said = server.communicate(timeout=30)
    assert (server.returncode, said) == (0, "")


def test_dockerignore_admits_everything_that_is_copied() -> None:
    kept = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.M)
    assert set(_copied()) == set(kept)
    assert all((ROOT / name).exists() for name in kept)


@pytest.mark.long
def test_the_copied_files_are_enough_to_build_the_wheel(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    copy(_copied(), source)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=source, check=True, capture_output=True, env={**os.environ, "LEAKLINE_BUILD_NATIVE": "0"},
    )  # fmt: skip
    (wheel,) = tmp_path.glob("leakline-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("templates/", "static/", "migrations/env.py"):
        assert any(found.startswith(f"leakline_server/{name}") for found in names), name


# -- `make audit`, with stub programs for pip-licenses and pip-audit ---------------------------------------

SHIPS = [
    "Dockerfile",
    "docker-compose.yml",
    "pyproject.toml",
    ".ci",
    "requirements",
    "deploy",
    "static/vendor",
]
FINE = "exit 0"
HOLE = "echo 'starlette 0.0.1 PYSEC-2026-1'; exit 1"
# How pip-audit exits when the service is unreachable: with a message, or with a traceback.
UNREACHABLE = "echo 'ERROR:pip_audit._cli:Could not connect to the feed' >&2; exit 1"
UNREACHABLE_TOO = "echo \"requests.exceptions.ConnectionError: HTTPSConnectionPool(host='x'): Max retries\" >&2; exit 1"
# A vulnerability whose text looks like a network error, and an unknown package.
TELLING_HOLE = (
    "echo 'starlette 0.0.1 PYSEC-2026-1 requests that timed out: a ConnectionError leaks'; exit 1"
)
UNKNOWN = "echo 'ERROR:pip_audit._cli:starlette: Dependency not found on PyPI and could not be audited' >&2; exit 1"
# A mirror knows no package; a service that lacks one package knows the others.
MIRROR = """
if [[ $* = *--strict* ]]; then
  echo 'ERROR:pip_audit._cli:x: Dependency not found on PyPI and could not be audited' >&2; exit 1
fi
echo '{"dependencies": [{"name": "x", "skip_reason": "not found"}, {"name": "y", "skip_reason": "not found"}]}'
"""
UNKNOWN_TO_A_SERVICE = MIRROR.replace(
    '"name": "y", "skip_reason": "not found"', '"name": "y", "vulns": []'
)
TODAY = date.today()
DATED_THERE = "requirements/dated.txt"


@pytest.fixture
def ships(tmp_path: Path) -> Path:
    """Copy everything that ships and date it today, so that these tests do not fail next year."""
    copy(SHIPS, tmp_path)
    replace_in(tmp_path / DATED_THERE, r" \d{4}-\d\d-\d\d$", f" {TODAY}")
    return tmp_path


def replace_in(file: Path, pattern: str, by: str) -> None:
    text, count = re.subn(pattern, by, file.read_text(), flags=re.M)
    assert count > 0
    file.write_text(text)


def audited(
    ships: Path,
    licences: str = FINE,
    holes: str = FINE,
    offline: str = "",
    python: str = sys.executable,
) -> subprocess.CompletedProcess[str]:
    (ships / "bin").mkdir()
    for name, what in (("pip-licenses", licences), ("pip-audit", holes)):
        (ships / "bin" / name).write_text(f"#!/bin/bash\n{what}\n")
        (ships / "bin" / name).chmod(0o755)
    return subprocess.run(
        [ships / ".ci" / "audit", ships, python], env={**os.environ, "OFFLINE": offline},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


# `make audit` is part of `make test-all`, and so are these tests.
@pytest.mark.long
@pytest.mark.parametrize(
    ("licences", "holes", "offline", "days", "status", "said"),
    [
        (FINE, FINE, "", 183, 0, "no known vulnerability"),
        (FINE, FINE, "", 184, 1, "is 184 days old"),
        (FINE, FINE, "ok", 184, 0, "is 184 days old"),
        ("exit 1", FINE, "ok", 0, 1, "a licence is not accepted"),
        (FINE, HOLE, "", 0, 1, ".ci/lock"),
        (FINE, HOLE, "ok", 0, 1, ".ci/lock"),
        (FINE, HOLE, "1", 0, 0, "NOT looked up"),
        (FINE, UNREACHABLE, "", 0, 1, "NOT looked up"),
        *((FINE, said, "ok", 0, 0, "NOT looked up") for said in (UNREACHABLE, UNREACHABLE_TOO, MIRROR)),
        # Other failures are not mistaken for a missing network.
        *(
            (FINE, said, "ok", 0, 1, ".ci/lock")
            for said in ("echo 'Traceback'; exit 1", TELLING_HOLE, UNKNOWN, UNKNOWN_TO_A_SERVICE)
        ),
    ],
)  # fmt: skip
def test_the_audit_fails_for_a_licence_a_vulnerability_and_an_old_image(
    ships: Path, licences: str, holes: str, offline: str, days: int, status: int, said: str
) -> None:
    replace_in(ships / DATED_THERE, r"^(postgres:\S+) .*$", rf"\1 {TODAY - timedelta(days)}")
    ended = audited(ships, licences, holes, offline)
    assert (ended.returncode, said in ended.stderr) == (status, True), ended.stderr
    assert "no known vulnerability" not in ended.stderr or holes == FINE
    assert ("PYSEC-2026-1" in ended.stdout) == (offline != "1" and holes in (HOLE, TELLING_HOLE))


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "pattern", "by", "why"),
    [
        ("Dockerfile", r"^FROM python:\S+$", "FROM python:3.99.0-slim", "python:3.99.0-slim ships"),
        ("docker-compose.yml", r"image: nginx:\S+", "image: 'nginx:9.9'  # new", "nginx:9.9 ships"),
        ("deploy/nginx.conf", r"\Z", "  - image: registry.example/sidecar:1\n", "registry.example/sidecar:1 ships"),
        (DATED_THERE, r"\Z", f"redis:8.0.0 {TODAY}\n", "redis:8.0.0 is not used by anything"),
        (DATED_THERE, r"^(nginx:\S+) .*$", r"\1 yesterday", "yesterday, which is not a date"),
        (DATED_THERE, r"^(nginx:\S+) .*$", rf"\1 {TODAY + timedelta(days=1)}", "which is in the future"),
        (DATED_THERE, r"^plotly.*\n", "", "plotly-basic-4.1.1.min.js ships"),
    ],
)  # fmt: skip
def test_the_audit_fails_for_a_missing_or_wrong_date(
    ships: Path, file: str, pattern: str, by: str, why: str
) -> None:
    replace_in(ships / file, pattern, by)
    ended = audited(ships)
    assert ended.returncode == 1
    assert why in ended.stderr and "Traceback" not in ended.stderr
    assert DATED_THERE in ended.stderr


def test_build_packages_are_audited_too(ships: Path) -> None:
    ended = audited(ships, holes='echo "$*"')
    for name in ("requirements/server.txt", "requirements/build.txt"):
        assert f"--requirement {name}" in ended.stdout


def test_a_package_whose_licence_cannot_be_read_fails_the_audit(ships: Path) -> None:
    bare = ships / "python"
    bare.write_text(f'#!/bin/bash\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    ended = audited(ships, python=str(bare))
    assert ended.returncode == 1
    assert "fastapi" in ended.stderr
