"""Reduce ops: how they are written, those that come with nicemu, and what is said of them."""
