"""What `leakline drill` plants, and who hears of it."""
