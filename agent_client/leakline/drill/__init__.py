"""What `leakline drill` starts: a training that plants a known leak.

The training is started as a file, because every scan skips what is inside the package `leakline`. Imports
`leakline` as a program does, and torch. Start reading in `leaking_training.py`.
"""
