"""Run the training. The ten lines that Leakline needs are in `train` and around the phases in `trainer.py`."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

NEEDED = ("torch", "numpy")


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

    from .agent import DDPGAgent
    from .environment import TradingEnvironment
    from .fixes import FIXES
    from .leaks import Leaks
    from .market import make_market
    from .trainer import PHASES, Trainer

    torch.set_num_threads(1)
    if options.run_id:
        os.environ["LEAKLINE_RUN_ID"] = options.run_id
    population = options.population
    run = leakline.init(
        project=options.project,
        name=options.name,
        total=options.generations,
        watch=[TradingEnvironment, DDPGAgent],
        phases=PHASES,
        config={"population": population, "seed": options.seed, "leaks": options.leak},
        tags=options.leak or ["no leak"],
        server=options.server,
    )
    trainer = Trainer(
        run, make_market(options.seed), Leaks.of(options.leak), population, options.seed, print_progress,
        options.replay_ready, options.critic_steps,
    )  # fmt: skip
    run.expect(TradingEnvironment, population)
    # The population and the best agent so far.
    run.expect(DDPGAgent, (population, population + 1), after="evolve_population")
    run.track("replay", trainer.replay, capacity=trainer.replay.capacity)
    for name in options.fix:
        fix = FIXES[name]
        promises = {**fix.promises, "generations": options.generations}
        title = name.replace("_", " ")
        run.fix(title, phase=fix.phase, location=fix.location, promises=promises)
    trainer.train(options.generations)
    run.finish()
    return 0


def print_progress(progress: object) -> None:
    print(progress, flush=True)


def _parser() -> argparse.ArgumentParser:
    from .fixes import FIXES
    from .leaks import SWITCHES

    parser = argparse.ArgumentParser(
        prog="erl_trading",
        description="An evolutionary RL training on a made-up market, with leaks to switch on.",
        epilog="example: python -m erl_trading --leak old_population --name before-fix",
    )
    parser.add_argument("--generations", type=int, default=16)
    parser.add_argument("--population", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--leak", action="append", default=[], choices=SWITCHES, metavar="NAME",
        help=f"plant this leak; may be given several times: {', '.join(SWITCHES)}",
    )  # fmt: skip
    parser.add_argument(
        "--fix", action="append", default=[], choices=FIXES, metavar="NAME",
        help=f"declare this fix with its promises; may be given several times: {', '.join(FIXES)}",
    )  # fmt: skip
    parser.add_argument(
        "--replay-ready", type=int, default=6_000, metavar="NUMBER",
        help="transitions in the buffer before the training phase begins (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--critic-steps", type=int, default=48, metavar="NUMBER",
        help="critic steps before each actor step; they take most of the time (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--project", default="erl-trading")
    parser.add_argument("--name", help="name of the run (default: a readable random one)")
    parser.add_argument("--server", help="address of the Leakline server")
    parser.add_argument("--run-id", help="join or resume this run")
    return parser


def _main_under_its_own_name() -> None:
    # In the wheel this is leakline.examples.erl_trading, and Leakline does not observe its own modules.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    runpy.run_module("erl_trading", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if __package__ == "erl_trading":
        sys.exit(main())
    _main_under_its_own_name()
