"""Each secret setting of the server can stand in a file; every message names the file and never what is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakline.cli import main
from leakline_server.config import (
    SECRETS,
    VARIABLES,
    WrongSettings,
    from_arguments,
    from_environment,
    misspelt,
)

GOOD = {
    "LEAKLINE_DATABASE_URL": "postgresql+psycopg://leakline:SECRET@db.example/leakline",
    "LEAKLINE_WEBHOOK_URL": "https://hooks.example.com/SECRET",
    "LEAKLINE_WEBHOOK_SECRET": "whsec_U0VDUkVUU0VDUkVUU0VDUkVUU0VDUkVU",
    "LEAKLINE_APPRISE_URLS": "json://SECRET.example.com",
    "LEAKLINE_ADMIN_PASSWORD": "SECRET battery staple",
}
DOCUMENTED = (Path(__file__).resolve().parents[2] / "docs" / "settings.md").read_text()


def in_files(folder: Path, values: dict[str, str]) -> dict[str, str]:
    """Return the variables that name one file for each value."""
    named = {}
    for variable, value in values.items():
        file = folder / variable.lower()
        file.write_text(f"{value}\n")
        named[f"{variable}_FILE"] = str(file)
    return named


def test_every_secret_can_stand_in_a_file(tmp_path: Path) -> None:
    # Whoever adds a secret setting adds it here and to the documents.
    assert GOOD.keys() == SECRETS
    for variable in (*SECRETS, "LEAKLINE_TOKEN"):
        assert f"`{variable}_FILE`" in DOCUMENTED
    found, usual = from_environment(in_files(tmp_path, GOOD)), from_environment(GOOD)
    assert found == usual
    assert set(found.sources.values()) == {"file"}
    assert set(usual.sources.values()) == {"environment"}


def test_a_setting_that_is_not_secret_has_no_file(tmp_path: Path) -> None:
    others = {variable: "1" for variable in VARIABLES if variable not in SECRETS}
    assert from_environment(in_files(tmp_path, others)) == from_environment({})


def test_wrong_files_are_all_named_at_once_and_nothing_of_them_is_shown(tmp_path: Path) -> None:
    wrong = in_files(tmp_path, dict.fromkeys(SECRETS, "SECRET"))
    # Too short for a password.
    Path(wrong["LEAKLINE_ADMIN_PASSWORD_FILE"]).write_text("SECRET")
    with pytest.raises(WrongSettings) as caught:
        from_environment(wrong)
    first, *lines = str(caught.value).splitlines()
    assert first == f"{len(SECRETS)} settings are wrong:"
    assert {line.split()[1].rstrip(":") for line in lines} == set(wrong)
    assert "SECRET" not in str(caught.value).replace("WEBHOOK_SECRET", "")


@pytest.mark.parametrize("variable", sorted(SECRETS))
def test_a_setting_and_its_file_together_are_refused(tmp_path: Path, variable: str) -> None:
    both = {**in_files(tmp_path, {variable: GOOD[variable]}), variable: GOOD[variable]}
    with pytest.raises(WrongSettings) as caught:
        from_environment(both)
    (said,) = caught.value.problems
    assert said.startswith(f"environment {variable}_FILE=")
    assert said.endswith(f"{variable} is set too; set one of the two")
    assert GOOD[variable] not in said


def test_the_command_line_wins_over_a_file(tmp_path: Path) -> None:
    named = {"LEAKLINE_DATABASE_URL_FILE": str(tmp_path / "missing")}
    found = from_arguments(named, None, None, "sqlite:///typed.db")
    assert found.database_url == "sqlite:///typed.db"
    assert found.sources["database_url"] == "command line"


def test_a_slip_in_the_name_of_a_file_variable_is_reported() -> None:
    assert misspelt({f"{variable}_FILE": "x" for variable in SECRETS}) == []
    (said,) = misspelt({"LEAKLINE_ADMIN_PASWORD_FILE": "x"})
    assert said.endswith("did you mean LEAKLINE_ADMIN_PASSWORD_FILE?")


def test_a_command_refuses_a_wrong_file_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEAKLINE_DATABASE_URL_FILE", str(tmp_path / "missing"))
    assert main(["db", "size"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "LEAKLINE_DATABASE_URL_FILE" in said and "No such file" in said
