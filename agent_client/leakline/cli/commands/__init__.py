"""The commands of the `leakline` program. A module has one command, with its docstring as help text, or several.

Imports any package of `leakline`; the server inside functions. Start reading in `leakline/cli/__init__.py`, which
lists the commands and their modules.
"""
