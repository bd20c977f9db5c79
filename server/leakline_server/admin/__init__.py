"""What the commands `db`, `token`, `password` and `webhook` do: open a database, back it up, restore, upgrade.

Imports `store`, `config`, `alerts`. Start reading in `database_commands.py`.
"""
