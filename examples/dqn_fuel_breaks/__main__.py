"""Run the training. The ten lines that Leakline needs are in `train` and around the phases in `trainer.py`."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec

NEEDED = ("torch", "numpy", "matplotlib")


def main() -> int:
    options = _parser().parse_args()
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(f"This example trains with torch; install it with: pip install {' '.join(missing)}")
        return 1
    return train(options)


def train(options: argparse.Namespace) -> int:
    # Imported late: torch takes seconds, and --help must not need it.
    import torch

    import leakline

    from .environment import FireEnvironment
    from .fixes import FIXES
    from .leaks import Leaks
    from .trainer import PHASES, Trainer

    torch.set_num_threads(1)
    if options.run_id:
        os.environ["LEAKLINE_RUN_ID"] = options.run_id
    run = leakline.init(
        project=options.project,
        name=options.name,
        unit="episode",
        total=options.episodes,
        watch=[FireEnvironment],
        phases=PHASES,
        config={"environments": options.environments, "seed": options.seed, "leaks": options.leak},
        tags=options.leak or ["no leak"],
        server=options.server,
    )
    trainer = Trainer(
        run, Leaks.of(options.leak), options.environments, options.seed, print_progress
    )
    run.expect(FireEnvironment, options.environments)
    for name, target, capacity in trainer.tracked():
        run.track(name, target, capacity=capacity)
    for name in options.fix:
        fix = FIXES[name]
        promises = {**fix.promises, "generations": options.episodes}
        run.fix(name.replace("_", " "), phase=fix.phase, location=fix.location, promises=promises)
    trainer.train(options.episodes)
    run.finish()
    return 0


def print_progress(episode: int, mean_return: float) -> None:
    print(f"episode {episode}: {mean_return:+.2f} % of the fuel", flush=True)


def _parser() -> argparse.ArgumentParser:
    from .fixes import FIXES
    from .leaks import SWITCHES

    parser = argparse.ArgumentParser(
        prog="dqn_fuel_breaks",
        description="A DQN that digs fuel breaks before fires, with leaks to switch on.",
        epilog="example: python -m examples.dqn_fuel_breaks --leak experience --name before-fix",
    )
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--environments", type=int, default=8, help="number of parallel fires")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--leak", action="append", default=[], choices=SWITCHES, metavar="NAME",
        help=f"plant this leak; may be given several times: {', '.join(SWITCHES)}",
    )  # fmt: skip
    parser.add_argument(
        "--fix", action="append", default=[], choices=FIXES, metavar="NAME",
        help=f"declare this fix with its promises; may be given several times: {', '.join(FIXES)}",
    )  # fmt: skip
    parser.add_argument("--project", default="dqn-fuel-breaks")
    parser.add_argument("--name", help="name of the run (default: a readable random one)")
    parser.add_argument("--server", help="address of the Leakline server")
    parser.add_argument("--run-id", help="join or resume this run")
    return parser


if __name__ == "__main__":
    sys.exit(main())
