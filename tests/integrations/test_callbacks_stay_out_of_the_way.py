"""What a framework or a user does with callbacks goes on with ours among them: sharing, reusing and copying."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from .conftest import Ended


@pytest.mark.parametrize("bar", ["bar", "no bar"])
def test_other_callbacks_read_the_loops_variables_and_are_called_within_the_run(
    run_program: Callable[..., Ended], bar: str
) -> None:
    ended = run_program("with_sb3_shared", "", bar)
    assert ended.status == 0, ended.errors
    told = json.loads(ended.output.splitlines()[-1])
    assert told["seen"] == [128]
    # Ours, theirs, the one added later, and our last.
    assert told["callbacks"] == 4
    assert told["runs"] == [3, 2]


@pytest.mark.parametrize("name", ["lightning", "transformers", "sb3", "keras", "gymnasium"])
def test_a_callback_can_be_copied_and_pickled(run_program: Callable[..., Ended], name: str) -> None:
    ended = run_program("copies", "", name, KERAS_BACKEND="torch")
    assert ended.status == 0, ended.errors
    assert ended.output.splitlines()[-1] == "copied 4"
