"""The commands of the `leakline` program, one file each. A module's docstring is the help text of its command.

Imports any package of `leakline`; the server inside functions. Start reading in `leakline/cli/__init__.py`, which
lists the commands.
"""
