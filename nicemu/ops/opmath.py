"""Functions for reduce ops that neither math nor numpy has.

Owns: what they compute on the host, in numpy.  What they are on a core is the front ends' affair.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["bits", "from_bits"]


def bits(x: np.floating[Any]) -> np.unsignedinteger[Any]:
    """The bits of a float32 as uint32, of a float64 as uint64."""
    value: np.unsignedinteger[Any] = x.view(np.dtype(f"u{x.itemsize}"))
    return value


def from_bits(u: np.unsignedinteger[Any]) -> np.floating[Any]:
    """The float with the bits of an integer.

    Of a uint32 it is a float32, of a uint64 a float64.  In an op that computes in float32, other
    integers give a float32, too, of their low 32 bits.
    """
    value: np.floating[Any] = u.view(np.dtype(f"f{u.itemsize}"))
    return value
