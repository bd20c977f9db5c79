"""Small real trainings with leaks to switch on; run from the checkout: `python -m examples.dqn_fuel_breaks`."""
