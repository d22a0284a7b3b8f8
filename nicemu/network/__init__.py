"""Frames, links and trees of devices, in virtual time."""
