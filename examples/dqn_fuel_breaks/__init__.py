"""A DQN that learns where to dig fuel breaks while a fire spreads, with optional leaks.

Several fires burn in parallel, and one agent decides for all of them. Each episode collects experiences, trains on the
replay buffer and sometimes draws a picture. Run it from the checkout with `python -m examples.dqn_fuel_breaks`.
"""
