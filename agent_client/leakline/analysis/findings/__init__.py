"""What people read: findings with advice, priority and code location, and the sentence of the verdict.

Imports every other package of the analysis but `forecast`. Start reading in `finding_builder.py`.
"""
