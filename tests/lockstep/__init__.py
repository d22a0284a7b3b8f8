"""Lockstep differential fuzzing of the core against Spike, the RISC-V reference simulator.

The way of a program: ``generate`` makes batches of random programs from the core's own instruction
table; ``subject`` runs them here, ``oracle`` runs them in Spike; ``compare`` holds the end states
against each other, finds the first instruction that differs and says where the manual leaves a
freedom; ``shrink`` makes a difference small; ``__main__`` is the command.
"""
