"""A small training that plants what it is told to, and says how much: started by `leakline drill`."""
