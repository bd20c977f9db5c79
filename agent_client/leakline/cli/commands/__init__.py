"""The commands of the `leakline` program. A module with a single command has the help text as its docstring.

Imports any package of `leakline`, and the server inside functions. Start reading in `leakline/cli/__init__.py`, which
maps the commands to modules.
"""
