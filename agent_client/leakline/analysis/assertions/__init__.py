"""Limits that a program declares (bands and budgets): one model, one reader and one evaluator for all of them."""

from __future__ import annotations

from .checks import check_assertions

__all__ = ["check_assertions"]
