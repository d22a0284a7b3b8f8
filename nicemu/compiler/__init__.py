"""From an op's functions to machine code, for cores and for the host."""
