"""Lockstep differential fuzzing of the core against Spike, the RISC-V reference simulator.

The way of a program: ``generate`` makes batches of random programs from the core's own instruction
table, part of them so that every row comes under every vtype and in every rounding mode;
``subject`` runs them here, on each host path, ``oracle`` runs them in Spike; ``compare`` holds the
end states against each other, finds the first instruction that differs and says where the manual
leaves a freedom; ``coverage`` counts what was compared and what is still open; ``shrink`` makes a
difference small; ``session`` is all of that at one VLEN, ``__main__`` the command.
"""
