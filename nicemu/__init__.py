"""nicemu: a SmartNIC whose eight RISC-V cores reduce gradients, emulated to the bit."""
