"""The commands of the `leakline` program. The docstring of a module with a single command is the command's help text.

Imports any package of `leakline`, and the server inside functions. Start reading in `leakline/cli/__init__.py`, which
maps the commands to modules.
"""
