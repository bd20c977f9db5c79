"""A secret can stand in a file that a variable with ``_FILE`` at its end names; a wrong file is named in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leakline.errors import BadArgument
from leakline.settings import SECRET_FILE_LIMIT_BYTES, read_secret, resolve


def test_the_token_comes_from_a_file_without_the_line_end(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(" leakline_ingest_abc\r\n")
    assert resolve({"LEAKLINE_TOKEN_FILE": str(file)}).token == "leakline_ingest_abc"
    # As Kubernetes mounts it.
    link = tmp_path / "link"
    link.symlink_to(file)
    assert resolve({"LEAKLINE_TOKEN_FILE": f" {link} "}).token == "leakline_ingest_abc"
    assert resolve({"LEAKLINE_TOKEN_FILE": "", "LEAKLINE_TOKEN": "x"}).token == "x"
    assert resolve({"LEAKLINE_TOKEN": " "}).token is None


def test_a_variable_and_its_file_together_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("SECRET-1")
    with pytest.raises(BadArgument) as caught:
        resolve({"LEAKLINE_TOKEN": "SECRET-2", "LEAKLINE_TOKEN_FILE": str(file)})
    said = str(caught.value)
    assert said.endswith("LEAKLINE_TOKEN is set too; set one of the two")
    assert str(file) in said and "SECRET" not in said


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"), (b" \n\t\n", "is empty"),
        (b"SECRET\nSECRET", "one line"), (b"SECRET\x00", "one line"), (b"SECRET\x1b[2J", "one line"),
        ("SECRET\u202e".encode(), "one line"), (b"SECRET\xff\xfe", "UTF-8"),
        (b"S" * (SECRET_FILE_LIMIT_BYTES + 1), "64 KiB"), ("SECRET\u00e9".encode(), "ASCII"),
    ],
)  # fmt: skip
def test_a_file_that_holds_no_token_is_named_and_its_content_is_not(
    tmp_path: Path, content: bytes, why: str
) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(BadArgument, match="environment LEAKLINE_TOKEN_FILE=") as caught:
        resolve({"LEAKLINE_TOKEN_FILE": str(file)})
    said = str(caught.value)
    assert why in said and "\n" not in said and "SECRET" not in said and len(said) < 400


def test_what_is_not_a_file_is_refused_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, why in (
        (pipe, "is not a regular file"),
        (tmp_path, "is not a regular file"),
        (Path("/dev/zero"), "is not a regular file"),
        (tmp_path / "missing", "No such file or directory"),
        (tmp_path / ("n" * 300), "File name too long"),
        (pipe / "below", "Not a directory"),
    ):
        with pytest.raises(BadArgument) as caught:
            read_secret({"LEAKLINE_TOKEN_FILE": str(path)}, "LEAKLINE_TOKEN")
        assert why in str(caught.value)


def test_a_file_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("SECRET")

    def refuse(self: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied")

    # Root may read everything, and tests may be root.
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(BadArgument, match=r"cannot be read \(Permission denied\)"):
        resolve({"LEAKLINE_TOKEN_FILE": str(file)})
