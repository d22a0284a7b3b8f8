"""One device: its machine, its cores, what they run, and what it spent."""
