"""Number formats, as rows that everything else reads, and items: one number or several fields.

Owns: names, aliases, widths and canonical NaNs; how the fields of items lie in memory.  To add a
format: one row here and one in csrc/number.def.  Arithmetic is not here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from keyword import iskeyword
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from nicemu.errors import ArgumentError

__all__ = [
    "FORMATS",
    "GRADIENTS",
    "Format",
    "Item",
    "ItemSpec",
    "bfloat16",
    "float16",
    "float32",
    "format_of",
    "item_of",
]

bfloat16: np.dtype = np.dtype(ml_dtypes.bfloat16)
float16: np.dtype = np.dtype(np.float16)
float32: np.dtype = np.dtype(np.float32)


@dataclass(frozen=True)
class Format:
    """One number format.

    Attributes:
        name: as in numpy and ml_dtypes.
        alias: short name, also accepted everywhere, and its name in csrc/number.def; of those in
            GRADIENTS it is safetensors' name, in capitals.
        dtype: its numpy dtype.
        kind: "float", "int", "uint" or "bool".
        llvm: its type in LLVM IR, in memory; in the names of intrinsics LLVM uses the alias.
        exponent_bits: of a float: width of the biased exponent field.
        fraction_bits: of a float: width of the stored significand, without the hidden bit.
        canonical_nan: of a float: the one bit pattern that computed NaNs have (RISC-V F, Zfh, bf16
            chapters; float8: ml_dtypes, positive).
        infinity: of a float: bits of the magnitude above which there are only NaNs.
    """

    name: str
    alias: str
    dtype: np.dtype
    kind: str
    llvm: str
    exponent_bits: int = 0
    fraction_bits: int = 0
    canonical_nan: int = 0
    infinity: int = 0

    @property
    def size(self) -> int:
        """Bytes of one value."""
        return int(self.dtype.itemsize)

    @property
    def bits_dtype(self) -> np.dtype:
        """The unsigned integer dtype of the same width."""
        return np.dtype(f"u{self.size}")


def _float(name: str, alias: str, dtype: Any, llvm: str, exponent: int, nan: int) -> Format:
    width = 8 * np.dtype(dtype).itemsize
    fraction = width - 1 - exponent
    infinity = ((1 << exponent) - 1) << fraction
    return Format(name, alias, np.dtype(dtype), "float", llvm, exponent, fraction, nan, infinity)


def _whole(name: str, alias: str, kind: str = "int") -> Format:
    dtype = np.dtype(name)
    return Format(name, alias, dtype, kind, f"i{8 * dtype.itemsize}")


#: what gradients are kept in, in files and by the reference's arithmetic
GRADIENTS: tuple[Format, ...] = (
    _float("float16", "f16", float16, "half", 5, 0x7E00),
    _float("bfloat16", "bf16", bfloat16, "bfloat", 8, 0x7FC0),
    _float("float32", "f32", float32, "float", 8, 0x7FC00000),
)
FORMATS: tuple[Format, ...] = (
    *GRADIENTS,
    _float("float64", "f64", np.float64, "double", 11, 0x7FF8000000000000),
    # no infinities: the largest magnitude that is a number takes their place
    Format("float8_e4m3fn", "f8_e4m3", np.dtype(ml_dtypes.float8_e4m3fn), "float", "i8",
           4, 3, 0x7F, 0x7E),
    _float("float8_e5m2", "f8_e5m2", ml_dtypes.float8_e5m2, "i8", 5, 0x7E),
    _whole("int8", "i8"),
    _whole("int16", "i16"),
    _whole("int32", "i32"),
    _whole("int64", "i64"),
    _whole("uint8", "u8", "uint"),
    _whole("bool", "bool", "bool"),
)  # fmt: skip


#: numpy's names by bytes, which are not those by bits
_SHORT = re.compile(r"[<>=|]?[fiub][1248]")


def format_of(name: str | np.dtype | type | Format, among: tuple[Format, ...] = FORMATS) -> Format:
    """The row of a name, alias or numpy dtype; of a row, itself.

    Raises:
        ArgumentError: there is no such row.
    """
    if isinstance(name, Format):
        return name
    if isinstance(name, str):
        found = [f for f in among if name in (f.name, f.alias)]
    else:
        try:
            found = [f for f in among if name is not None and f.dtype == np.dtype(name)]
        except (TypeError, ValueError):  # e.g. a torch dtype, a dict
            found = []
    if not found:
        known = ", ".join(f"{f.name} ({f.alias})" for f in among)
        said = " ".join(str(name).split())
        if isinstance(name, str) and _SHORT.fullmatch(name):  # such as f4; i8 is int8 here
            rows = [f.name for f in among if f.dtype == np.dtype(name)]
            known += f"; numpy's {said} is {rows[0]}" if rows else ""
        raise ArgumentError(f"dtype {said} is not supported: use one of {known}")
    return found[0]


# ---- items ---------------------------------------------------------------------------------------
MOST_BYTES = 127  # of an item: the wire's type field says how many
_FIELD = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Item:
    """What an array consists of: one number, or a record of named fields.

    In the memory of a core and on the wire, n items are one array per field: that of a field begins
    at n times its offset.  Wider fields come first, so that every array is aligned for any n.

    Attributes:
        fields: name and format of each, in the author's order; of one number the name is "".

    Raises:
        ArgumentError: on construction, when names are not all different identifiers, or there are
            too many fields.
    """

    fields: tuple[tuple[str, Format], ...]

    def __post_init__(self) -> None:
        """Check the fields."""
        names = [name for name, _ in self.fields]
        if names == [""]:
            return
        if not names or len(set(names)) != len(names) or not all(map(_FIELD.fullmatch, names)):
            raise ArgumentError(
                f"fields {names}: use one or more different names of letters, digits and _, "
                "a letter first"
            )
        if words := [name for name in names if iskeyword(name)]:
            raise ArgumentError(f"field {words[0]!r}: is a word of Python: use another name")
        if self.size > MOST_BYTES:
            raise ArgumentError(f"{self}: has {self.size} bytes: use at most {MOST_BYTES}")

    @property
    def scalar(self) -> bool:
        """True when it is one number."""
        return not self.fields[0][0]

    @property
    def formats(self) -> tuple[Format, ...]:
        """Of the fields."""
        return tuple(row for _, row in self.fields)

    @property
    def size(self) -> int:
        """Bytes of one item."""
        return sum(row.size for row in self.formats)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Of each field's array, in bytes per item."""
        order = sorted(range(len(self.fields)), key=lambda i: -self.formats[i].size)
        at, out = 0, [0] * len(order)
        for i in order:
            out[i] = at
            at += self.formats[i].size
        return tuple(out)

    @property
    def dtype(self) -> np.dtype:
        """What users see: the number's dtype, or a structured one without gaps."""
        if self.scalar:
            return self.formats[0].dtype
        return np.dtype([(name, row.dtype) for name, row in self.fields])

    @property
    def stored(self) -> np.dtype:
        """What :meth:`pack` gives: the number's dtype, or bytes."""
        return self.formats[0].dtype if self.scalar else np.dtype(np.uint8)

    def __str__(self) -> str:
        """``float32`` or ``value:float32 index:int64``; :func:`item_of` reads it."""
        if self.scalar:
            return self.formats[0].name
        return " ".join(f"{name}:{row.name}" for name, row in self.fields)

    def pack(self, values: np.ndarray, chunk: int) -> np.ndarray:
        """Items as cores have them, chunk after chunk.

        Args:
            values: shape (count,), of this dtype, contiguous.
            chunk: items of a chunk, 1 or more; the last may be shorter.

        Returns:
            The array itself, of a number; else its bytes, shape (count * size,).
        """
        if self.scalar:
            return values
        out = np.empty(values.size * self.size, np.uint8)
        for (name, _), stretches in zip(self.fields, self._stretches(out, chunk), strict=True):
            field = np.ascontiguousarray(values[name])
            for items, place in stretches:
                place[...] = field[items].view(np.uint8).reshape(place.shape)
        return out

    def unpack(self, data: np.ndarray, chunk: int) -> np.ndarray:
        """The inverse of :meth:`pack`: shape (count,), of this dtype."""
        if self.scalar:
            return data
        out = np.empty(data.size // self.size, self.dtype)
        for (name, row), stretches in zip(self.fields, self._stretches(data, chunk), strict=True):
            for items, place in stretches:
                out[name][items] = np.ascontiguousarray(place).reshape(-1).view(row.dtype)
        return out

    def _stretches(self, data: np.ndarray, chunk: int) -> Iterable[list[tuple[slice, np.ndarray]]]:
        """Per field: items and their bytes: of all full chunks (a row each), and of the rest."""
        count = data.size // self.size
        full = count // chunk * chunk
        body = data[: full * self.size].reshape(-1, chunk * self.size)
        rest = data[full * self.size :].reshape(1, -1)
        for row, offset in zip(self.formats, self.offsets, strict=True):
            yield [
                (slice(0, full), body[:, offset * chunk : (offset + row.size) * chunk]),
                (
                    slice(full, count),
                    rest[:, offset * (count - full) : (offset + row.size) * (count - full)],
                ),
            ]


#: a format's name, alias or dtype; for several fields a tuple of them, or a structured dtype
ItemSpec: TypeAlias = "str | np.dtype | type | Format | Item | Sequence[Any]"


def item_of(spec: ItemSpec) -> Item:
    """The item of a format, a tuple of formats (fields f0, f1, ...), a structured dtype or a text.

    A tuple's entries may be pairs of a name and a format.

    Raises:
        ArgumentError: an unknown format, or fields that do not go together.
    """
    if isinstance(spec, Item):
        return spec
    if isinstance(spec, Format):
        return Item((("", spec),))
    if isinstance(spec, str):
        return _item_of_text(spec)
    if isinstance(spec, np.dtype) and spec.names:
        return Item(tuple((name, format_of(spec[name])) for name in spec.names))
    if isinstance(spec, Sequence):
        pairs = [x if isinstance(x, list | tuple) else (f"f{i}", x) for i, x in enumerate(spec)]
        if any(len(pair) != 2 or not isinstance(pair[0], str) for pair in pairs):
            raise ArgumentError(f"fields {spec!r}: use formats, or pairs of a name and a format")
        return Item(tuple((name, format_of(row)) for name, row in pairs))
    return Item((("", format_of(spec)),))


@lru_cache(256)  # images name their formats, and are asked for them at every call
def _item_of_text(text: str) -> Item:
    if ":" in text:
        return item_of([part.split(":", 1) for part in text.split(" ")])
    return Item((("", format_of(text)),))
