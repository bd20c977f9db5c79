"""Number of files and Python calls that a reading, a batch, an examination and a message take."""
