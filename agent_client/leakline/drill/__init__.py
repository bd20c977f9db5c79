"""The drill: what is planted, the small training that plants it, who hears of it, and how right the answer was.

`small_training` is run as a program of its own, `python -m small_training` with this folder on the path: what
lies below the name `leakline` is ours and is passed over by every look at a program.
"""
