"""The commands of the `leakline` program. A module defines one command, with its docstring as help text, or several.

Imports any package of `leakline`, and the server inside functions. Start reading in `leakline/cli/__init__.py`, which
maps the commands to modules.
"""
