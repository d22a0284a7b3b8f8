"""The tests of nicemu."""
