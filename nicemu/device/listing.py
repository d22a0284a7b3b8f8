"""Machine code as text: labels, addresses, encodings, instructions, and the source beside them.

Owns: the lines.  The text of an instruction is the core's; where code comes from is others' affair.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from nicemu._core import Cores

__all__ = ["Line", "Listing", "listing"]


@dataclass(frozen=True)
class Line:
    """One instruction.

    Attributes:
        labels: of its address.
        address: of its first byte.
        encoding: as hexadecimal digits.
        text: mnemonic and operands; ``.byte`` for half an instruction at the end.
        source: the line of the op's author that it belongs to; "" where it is nobody's.
    """

    labels: tuple[str, ...]
    address: int
    encoding: str
    text: str
    source: str = ""

    def lines(self) -> Iterator[str]:
        """As text, the labels first."""
        for label in self.labels:
            yield f"{label}:"
        line = f"{self.address:>12x}:  {self.encoding:<8}  {self.text}"
        yield f"{line:<60}  ; {self.source}" if self.source else line


@dataclass(frozen=True, repr=False)
class Listing:
    """The instructions of a stretch of code.

    Attributes:
        rows: in the order of addresses.
    """

    rows: tuple[Line, ...]

    def __repr__(self) -> str:
        """A line for each, and for each label."""
        return "\n".join(line for row in self.rows for line in row.lines())

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        return f"<pre>{escape(repr(self))}</pre>"


def listing(
    code: bytes,
    labels: Mapping[int, Sequence[str]],
    base: int = 0,
    sources: Mapping[int, str] | None = None,
) -> Listing:
    """The instructions of a stretch of code.

    Args:
        code: the bytes.
        labels: address -> names.
        base: address of the first byte.
        sources: address of an instruction -> its line of source.
    """
    cores, rows, at = Cores(), [], 0
    while at < len(code):
        word = int.from_bytes(code[at : at + 4], "little")
        text, size = cores.disasm(word, base + at)
        if at + size > len(code):  # half an instruction at the end
            size = len(code) - at
            text = f".byte {', '.join(f'{b:#04x}' for b in code[at:])}"
        encoding = f"{word & ((1 << 8 * size) - 1):0{2 * size}x}"
        names = tuple(labels.get(base + at, ()))
        rows.append(Line(names, base + at, encoding, text, (sources or {}).get(base + at, "")))
        at += size
    return Listing(tuple(rows))
