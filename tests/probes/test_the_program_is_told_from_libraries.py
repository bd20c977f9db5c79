"""Frames and modules of the program, told from those of libraries, whatever other threads ask meanwhile."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from leakline.probes import program


@pytest.mark.parametrize("folder", ["stdlib", "platstdlib", "purelib", "platlib"])
def test_what_python_installs_is_no_program(folder: str) -> None:
    assert not program.is_user_file(str(Path(sysconfig.get_path(folder)) / "some" / "module.py"))


def test_a_file_elsewhere_is_the_program() -> None:
    assert program.is_user_file(__file__)


def test_folders_are_known_while_another_thread_asks_for_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def half_filled(*_: object) -> None:
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(sysconfig, "get_config_vars", half_filled)
    with pytest.raises(RuntimeError):
        sysconfig.get_paths()
    program._library_folders.cache_clear()
    assert str(Path(pytest.__file__).parent.parent) + "/" in program._library_folders()
