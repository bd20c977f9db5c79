"""A DQN that learns where to dig fuel breaks while a fire spreads, with leaks to switch on.

Several fires burn side by side, and one agent decides for all of them. Each episode collects experiences, trains on
the replay buffer and now and then draws a picture. Run it from the checkout with
`python -m examples.dqn_fuel_breaks`.
"""
