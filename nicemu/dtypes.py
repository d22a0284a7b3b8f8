"""Number formats of gradients, as rows that everything else reads.

Owns: names, aliases, widths and canonical NaNs.  To add a format: one row here and one in
csrc/number.def.  Arithmetic is not here.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from nicemu.errors import ArgumentError

__all__ = ["FORMATS", "Format", "bfloat16", "float16", "float32", "format_of"]

bfloat16: np.dtype = np.dtype(ml_dtypes.bfloat16)
float16: np.dtype = np.dtype(np.float16)
float32: np.dtype = np.dtype(np.float32)


@dataclass(frozen=True)
class Format:
    """One binary floating-point format.

    Attributes:
        name: as in numpy and ml_dtypes.
        alias: short name, also accepted everywhere; in capitals it is safetensors' name.
        dtype: its numpy dtype.
        exponent_bits: width of the biased exponent field.
        fraction_bits: width of the stored significand, without the hidden bit.
        canonical_nan: the one bit pattern that computed NaNs have (RISC-V F, Zfh, bf16 chapters).
        llvm: its type in LLVM IR; in the names of intrinsics LLVM uses the alias.
    """

    name: str
    alias: str
    dtype: np.dtype
    exponent_bits: int
    fraction_bits: int
    canonical_nan: int
    llvm: str

    @property
    def size(self) -> int:
        """Bytes of one value."""
        return int(self.dtype.itemsize)

    @property
    def bits_dtype(self) -> np.dtype:
        """The unsigned integer dtype of the same width."""
        return np.dtype(f"u{self.size}")


FORMATS: tuple[Format, ...] = (
    Format("float16", "f16", float16, 5, 10, 0x7E00, "half"),
    Format("bfloat16", "bf16", bfloat16, 8, 7, 0x7FC0, "bfloat"),
    Format("float32", "f32", float32, 8, 23, 0x7FC00000, "float"),
)


def format_of(name: str | np.dtype | type) -> Format:
    """The row of a name, alias or numpy dtype.

    Raises:
        ArgumentError: there is no such row.
    """
    if isinstance(name, str):
        found = [f for f in FORMATS if name in (f.name, f.alias)]
    else:
        try:
            dtype = np.dtype(name)
        except TypeError:  # e.g. a torch dtype
            dtype = None
        found = [f for f in FORMATS if f.dtype == dtype]
    if not found:
        known = ", ".join(f"{f.name} ({f.alias})" for f in FORMATS)
        raise ArgumentError(f"dtype {name!s} is not supported: use one of {known}")
    return found[0]
