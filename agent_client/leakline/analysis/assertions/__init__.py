"""Declared limits, accepted counts and promises of fixes: one model, one list of checks in the verdict."""
