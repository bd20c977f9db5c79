"""An evolutionary reinforcement-learning training on generated market data, with optional leaks.

A population of DDPG agents trades twelve assets. Each generation evaluates every agent in its environment, trains it
on the shared replay buffer and breeds the next population. Run it from `examples/` with `python -m erl_trading`, or
from the installed package with `python -m leakline.examples.erl_trading`.
"""
