"""How many files and Python calls a reading, a batch, an examination and a message take."""
