"""Reads user-defined rules from files and forms, and evaluates them for a run.

It imports `store`, `limits`, `leakline.analysis` and pydantic. Start reading in `rule_evaluation.py` (does a rule
fire?) and `rule_alerts.py` (what is sent).
"""
