"""Copies and pickles the callback or wrapper of a framework, before its training and during it."""

from __future__ import annotations

import copy
import pickle
import sys
from importlib import import_module
from typing import Any


def made(name: str) -> Any:
    module = import_module(f"leakline.integrations.{name}")
    if name == "gymnasium":
        import gymnasium

        env = gymnasium.make("CartPole-v1")
        return module.LeaklineWrapper(env, project="copied", mode="offline", quiet=True)
    return module.LeaklineCallback(project="copied", mode="offline", quiet=True)


def main() -> None:
    ours = made(sys.argv[1])
    copies = [copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))]
    if sys.argv[1] == "gymnasium":
        ours.reset()
    else:
        ours._training.begin("epoch", 2)
    copies += [copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))]
    assert ours._training.is_on
    assert not any(each._training.is_on for each in copies)
    if sys.argv[1] == "gymnasium":
        for each in copies:
            each.reset()
            each.close()
    ours._training.end()
    sys.stdout.write(f"copied {len(copies)}\n")


if __name__ == "__main__":
    main()
