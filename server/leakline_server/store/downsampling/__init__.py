"""Long series as few points: summary records next to chunks, and their tree.

Imports `store.series`, `runs`, `maintenance`. Start reading in `chart_points.py`.
"""
