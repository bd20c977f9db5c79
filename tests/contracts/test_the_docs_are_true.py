"""Every path, setting and command that the documents name exists, and every setting is documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leakline.cli import COMMANDS
from leakline_server.config import SECRETS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
SOURCES = [
    path
    for folder in ("agent_client", "server", "tests", ".ci", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".js", ""} and path.is_file()
] + [ROOT / "Makefile"]
TOP = {p.name for p in ROOT.iterdir()}
SETTING = re.compile(r"\bLEAKLINE_(?!LINE\b)[A-Z_]+\b")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_path_named_in_a_document_exists(document: Path) -> None:
    for name in re.findall(r"`([\w.*-]+(?:/[\w.*-]+)+/?)`", document.read_text()):
        if name.split("/")[0] in TOP and "*" not in name and not name.startswith(".leakline"):
            assert (ROOT / name).exists(), f"{document.name} names {name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_link_to_a_file_leads_somewhere(document: Path) -> None:
    text = document.read_text()
    pictures = re.findall(r"\s(?:src|srcset)=\"([^\":]+)\"", text)
    for target in pictures + re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_setting_named_in_a_document_is_read_somewhere(document: Path) -> None:
    # The code puts these names together.
    known = _settings(SOURCES) | {f"{name}_FILE" for name in (*SECRETS, "LEAKLINE_TOKEN")}
    assert set(SETTING.findall(document.read_text())) <= known


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_command_named_in_a_document_is_one(document: Path) -> None:
    for command in re.findall(r"`leakline ([a-z]+)", document.read_text()):
        assert command in COMMANDS, f"{document.name} names the command {command}"


def test_every_setting_of_the_code_is_documented() -> None:
    code = [p for p in SOURCES if "tests" not in p.parts]
    documented = set(SETTING.findall((ROOT / "docs" / "settings.md").read_text()))
    assert _settings(code) <= documented


def test_every_make_target_of_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for document in DOCUMENTS:
        for target in re.findall(r"`make ([a-z-]+)", document.read_text()):
            assert target in targets, f"{document.name} names make {target}"


def _settings(paths: list[Path]) -> set[str]:
    return {name for path in paths for name in SETTING.findall(path.read_text(errors="replace"))}
