"""Small real trainings with optional leaks; run them from the checkout: `python -m examples.dqn_fuel_breaks`."""
