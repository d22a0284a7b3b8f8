"""Microbenchmarks: emulated time and cycles, in tables and pictures."""
