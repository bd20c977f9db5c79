"""How many files and Python calls lie on the way of a reading, a batch, an examination and a message."""
