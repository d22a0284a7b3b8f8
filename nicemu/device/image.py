"""The kernel image: what a reduce op is to a core, as bytes.

Owns: the ABI's constants (entries, context block, presets), the image and its file layout, the
image cache.  The byte-exact description is guide/images.md.  Making code is compile's task,
running it nic's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from string import digits
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from nicemu.arguments import known, whole
from nicemu.device.machine import Machine
from nicemu.dtypes import Format, Item, format_of, item_of
from nicemu.errors import ArgumentError, ImageError

__all__ = [
    "ABI_VERSION",
    "ALIGNMENT",
    "CONTEXT_FIELDS",
    "CONTEXT_SIZE",
    "ENTRIES",
    "FAN_INS",
    "LEAVING",
    "NAME",
    "NAMES",
    "PRESETS",
    "REQUIRED",
    "WHOLE_FAN_INS",
    "Context",
    "Entry",
    "Formats",
    "Imaged",
    "KernelImage",
    "cache_dir",
    "cached",
    "cached_files",
    "preset_formats",
]

ABI_VERSION = 1
ALIGNMENT = 64  # of accumulator, payloads, destination and context block, in bytes

# ---- entries ---------------------------------------------------------------------------------
REQUIRED: tuple[str, ...] = ("first", "load", "acc", "merge", "emit", "finish")
FAN_INS: tuple[int, ...] = (2, 4, 8)
REDUCING: tuple[str, ...] = ("first", "load", "acc", "merge")
#: entry that writes a result -> which of an image's Formats that has
LEAVING: dict[str, str] = {"emit": "partial", "finish": "result"}


#: fan-ins of which an image may have entries that begin and leave in one pass
WHOLE_FAN_INS: tuple[int, ...] = (4, 8)


@dataclass(frozen=True)
class Entry:
    """What an entry does, as its name says.

    Attributes:
        reducing: one of REDUCING: what it does with payloads; "" when it takes none.
        payloads: how many it takes.
        leaving: one of LEAVING: what it writes to the destination; "" when it writes none.
    """

    reducing: str
    payloads: int
    leaving: str

    @classmethod
    def of(cls, name: str) -> Entry:
        """From its name: "acc4" takes 4 payloads, "first4_finish" is finish of what they give."""
        if name in LEAVING:
            return cls("", 0, name)
        front, _, leaving = name.partition("_")
        reducing = front.rstrip(digits)
        return cls(reducing, int(front[len(reducing) :] or 1), leaving)

    def __str__(self) -> str:
        """The name."""
        fan_in = str(self.payloads) if self.payloads > 1 else ""
        return "_".join(part for part in (self.reducing + fan_in, self.leaving) if part)

    @property
    def fresh(self) -> bool:
        """Does it begin an accumulator?"""
        return self.reducing in ("first", "load")

    @property
    def partials(self) -> bool:
        """Are its payloads partial sums?"""
        return self.reducing in ("load", "merge")


ENTRIES: tuple[str, ...] = (
    *REQUIRED,
    *(f"{name}{k}" for name in REDUCING for k in FAN_INS),
    *(f"first{k}_{leaving}" for leaving in LEAVING for k in WHOLE_FAN_INS),
)

# ---- context block -----------------------------------------------------------------------------
CONTEXT_SIZE = 64
# field: (offset, bytes); little-endian unsigned; the rest of the block is zero
CONTEXT_FIELDS: dict[str, tuple[int, int]] = {
    "abi": (0, 4),
    "contributors": (4, 4),
    "rank": (8, 4),
    "device": (12, 4),
    "child": (16, 4),
    "seq": (20, 4),
    "chunk": (24, 4),
    "group": (28, 4),
    "element": (32, 8),
    "seed": (40, 8),
}


@dataclass(frozen=True)
class Context:
    """What a handler may know about the call; defined by the collective, never by arrival.

    Attributes:
        contributors: workers whose elements are in the accumulator once the call is done.
        rank: of the worker the payload comes from; of a fan-in call, of its first payload.
        device: number of the device that runs the handler.
        child: index of the payload's child at this device; of a fan-in call, of its first.
        seq: number of the collective in its group.
        chunk: number of the chunk in the collective.
        group: workers in the group.
        element: index of the first element in the caller's whole array.
        seed: of the collective, for stochastic ops.
    """

    contributors: int = 1
    rank: int = 0
    device: int = 0
    child: int = 0
    seq: int = 0
    chunk: int = 0
    group: int = 1
    element: int = 0
    seed: int = 0

    def pack(self) -> bytes:
        """The context block, 64 bytes.

        Raises:
            ArgumentError: a field is negative or too large for its bytes.
        """
        block = bytearray(CONTEXT_SIZE)
        for name, (offset, size) in CONTEXT_FIELDS.items():
            value = ABI_VERSION if name == "abi" else getattr(self, name)
            value = whole(f"context {name}", value, 0, (1 << 8 * size) - 1)
            block[offset : offset + size] = value.to_bytes(size, "little")
        return bytes(block)

    def check(self, entry: Entry) -> None:
        """It can be one of a call of that entry.

        Raises:
            ArgumentError: nobody contributed to what is to be finished: functions may divide by it.
        """
        if entry.leaving == "finish" and not self.contributors:
            raise ArgumentError(f"context contributors 0: {entry} is of 1 worker at least")


# ---- what an image is made for -------------------------------------------------------------------
#: preset: (accumulator, partial); "wide": float32, or the element's own format where that is wider
#: or no float; "element": the element's own
PRESETS: dict[str, tuple[str, str]] = {
    "wide": ("wide", "wide"),
    "per-hop": ("wide", "element"),
    "per-add": ("element", "element"),
}


@dataclass(frozen=True)
class Formats:
    """What an image's payloads, accumulators and results consist of.

    Attributes:
        element: of a worker.
        accumulator: in the slot.
        partial: of partial sums, between devices.
        result: of the whole.
    """

    element: Item
    accumulator: Item
    partial: Item
    result: Item

    def row_bytes(self, partials: bool) -> int:
        """Bytes by which a chunk's elements are counted, so that each message is one payload.

        A device's memory has room for accumulators and partial sums of twice a payload.

        Args:
            partials: whether partial sums cross a link.
        """
        kept = max(self.accumulator.size, self.partial.size)
        sizes = [self.element.size, self.result.size, -(-kept // 2)]
        return max(*sizes, self.partial.size if partials else 0)


def preset_formats(element: str | Format, preset: str) -> Formats:
    """The formats of a preset, each one number.

    Raises:
        ArgumentError: unknown element format or preset.
    """
    row = format_of(element)
    known("preset", preset, PRESETS)
    wide = format_of("float32") if row.kind == "float" and row.size < 4 else row
    own = item_of(row)
    chosen = {"wide": item_of(wide), "element": own}
    accumulator, partial = (chosen[which] for which in PRESETS[preset])
    return Formats(own, accumulator, partial, own)


# ---- the image -----------------------------------------------------------------------------------
MAX_CODE = 1 << 20
#: of ops and presets
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,31}")
NAMES = "1..32 letters, digits, _ and -, no digit first"
_EXTENSION = re.compile(r"[a-z][a-z0-9]*")
_MAGIC = b"nicemu-k"
_LAYOUT = 3
# magic, layout version, ABI version, file bytes, text bytes, code bytes
_HEADER = struct.Struct("<8sHHIII")
_DIGEST = 32
_TYPES = tuple(field.name for field in fields(Formats))


@dataclass(frozen=True)
class KernelImage:
    """Position-independent RV64 code of one op over one set of formats, for any VLEN.

    Attributes:
        op: name of the reduce op.
        preset: name of the numerics preset.
        element, accumulator, partial, result: what items are, as text: ``float32``, or
            ``value:float32 index:int64`` (nicemu.dtypes.item_of reads it).
        code: the machine code; it needs no relocation and is at most 1 MiB.
        entries: entry name -> offset in ``code``; two entries may share an offset.
        extensions: what cores must have to run it, as nicemu.device.isa.provided names it; empty:
            unknown.
        statuses: what it means when an entry returns 1, 2, ...
        notes: what the op's author should know of how it was compiled.
        abi: version of the calling convention.

    Raises:
        ImageError: on construction, when a field is outside its range.
    """

    op: str
    preset: str
    element: str
    accumulator: str
    partial: str
    result: str
    code: bytes = field(repr=False)
    entries: Mapping[str, int] = field(hash=False)
    extensions: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    abi: int = ABI_VERSION

    def __post_init__(self) -> None:
        """Check every field; a constructed image is a valid one."""
        if self.abi != ABI_VERSION:
            raise ImageError(f"image ABI version {self.abi}: this release runs {ABI_VERSION}")
        for name in ("op", "preset"):
            text = getattr(self, name)
            if not (isinstance(text, str) and NAME.fullmatch(text)):
                raise ImageError(f"image {name} {text!r}: use {NAMES}")
        for name in _TYPES:
            text = getattr(self, name)
            try:
                same = isinstance(text, str) and str(item_of(text)) == text
            except ArgumentError as error:
                raise ImageError(f"image {name} {text!r}: {error}") from error
            if not same:
                raise ImageError(f"image {name} {text!r}: write formats by their full names")
        if not isinstance(self.code, bytes | bytearray | memoryview):
            raise ImageError(f"image code is {type(self.code).__name__}: use bytes")
        object.__setattr__(self, "code", bytes(self.code))
        if not 2 <= len(self.code) <= MAX_CODE or len(self.code) % 2:
            raise ImageError(
                f"image code of {len(self.code)} bytes: use an even number up to {MAX_CODE}"
            )
        for entry in REQUIRED:
            if entry not in self.entries:
                raise ImageError(f"image of {self.op} has no entry {entry!r}: it is required")
        for entry, offset in self.entries.items():
            if entry not in ENTRIES:
                raise ImageError(f"image entry {entry!r} is unknown: use {', '.join(ENTRIES)}")
            if type(offset) is not int or offset % 2 or not 0 <= offset < len(self.code):
                raise ImageError(
                    f"image entry {entry!r} at {offset!r}: use an even offset inside the code"
                )
        object.__setattr__(self, "entries", MappingProxyType(dict(self.entries)))
        for name in ("extensions", "statuses", "notes"):
            texts = tuple(getattr(self, name))
            if not all(isinstance(text, str) and text.isprintable() for text in texts):
                raise ImageError(f"image {name} {texts!r}: use texts of one line")
            object.__setattr__(self, name, texts)
        if odd := [x for x in self.extensions if not _EXTENSION.fullmatch(x)]:
            raise ImageError(f"image extension {odd[0]!r}: use names as in an ISA string")

    @classmethod
    def made_for(
        cls,
        formats: Formats,
        *,
        op: str,
        preset: str,
        code: bytes,
        entries: Mapping[str, int],
        extensions: tuple[str, ...] = (),
        statuses: tuple[str, ...] = (),
        notes: tuple[str, ...] = (),
    ) -> KernelImage:
        """An image by its formats; the rest as the attributes."""
        element, accumulator, partial, result = (str(getattr(formats, name)) for name in _TYPES)
        return cls(
            op=op, preset=preset, element=element, accumulator=accumulator, partial=partial,
            result=result, code=code, entries=entries, extensions=extensions, statuses=statuses,
            notes=notes,
        )  # fmt: skip

    @property
    def formats(self) -> Formats:
        """What its payloads, accumulators and results consist of."""
        return Formats(*(item_of(getattr(self, name)) for name in _TYPES))

    @property
    def labels(self) -> dict[int, list[str]]:
        """Offset in the code -> the entries that begin there."""
        found: dict[int, list[str]] = {}
        for name, offset in self.entries.items():
            found.setdefault(offset, []).append(name)
        return found

    def fan_ins(self, entry: str = "acc") -> tuple[int, ...]:
        """How many payloads one call of ``entry`` can take, ascending; 1 is always among them."""
        return (1, *(k for k in FAN_INS if f"{entry}{k}" in self.entries))

    def status_text(self, status: int) -> str:
        """What a status means that an entry returned."""
        known = 1 <= status <= len(self.statuses)
        return f"raised {self.statuses[status - 1]}" if known else f"returned status {status}"

    def __reduce__(self) -> tuple[Callable[[bytes], KernelImage], tuple[bytes]]:
        """Pickled and copied as its file."""
        return KernelImage.from_bytes, (self.to_bytes(),)

    def to_bytes(self) -> bytes:
        """The image as a file: layout in guide/images.md, checked by :meth:`from_bytes`."""
        described = {
            row.name: getattr(self, row.name) for row in fields(self) if row.name != "code"
        }
        described["entries"] = dict(self.entries)
        text = json.dumps(described, sort_keys=True).encode()
        total = _HEADER.size + len(text) + len(self.code) + _DIGEST
        header = _HEADER.pack(_MAGIC, _LAYOUT, self.abi, total, len(text), len(self.code))
        body = header + text + self.code
        return body + hashlib.sha256(body).digest()

    @classmethod
    def from_bytes(cls, data: bytes) -> KernelImage:
        """Read what :meth:`to_bytes` wrote.

        Raises:
            ImageError: truncated, damaged, of another version, or with a field out of range.
        """
        data = bytes(data)
        if len(data) < _HEADER.size + _DIGEST:
            raise ImageError(f"image of {len(data)} bytes is too short: build it again")
        magic, layout, abi, total, text_size, code_size = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise ImageError(f"image begins with {magic!r} and not {_MAGIC!r}: not a kernel image")
        if layout != _LAYOUT:
            raise ImageError(f"image layout version {layout}: this release reads {_LAYOUT}")
        if abi != ABI_VERSION:
            raise ImageError(f"image ABI version {abi}: this release runs {ABI_VERSION}")
        code_at = _HEADER.size + text_size
        if total != len(data) or total != code_at + code_size + _DIGEST:
            raise ImageError(f"image sizes do not add up to its {len(data)} bytes: build it again")
        if hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
            raise ImageError("image is damaged (SHA-256 differs): build it again")
        try:
            described = json.loads(data[_HEADER.size : code_at])
            image = cls(**described, code=data[code_at:-_DIGEST])
            same = image.to_bytes() == data
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ImageError(f"image's description is not as nicemu writes it ({error})") from error
        if not same:
            raise ImageError("image is not as nicemu writes it: build it again")
        return image


@runtime_checkable
class Imaged(Protocol):
    """What has an image for each machine: a reduce op."""

    def image(
        self,
        element: str | Format | None = None,
        preset: str | None = None,
        machine: str | Machine | None = None,
    ) -> KernelImage:
        """The image for an element format, a preset and a machine; None: its own, any."""


# ---- the cache -----------------------------------------------------------------------------------
def cache_dir() -> Path | None:
    """Where images are kept: $NICEMU_CACHE_DIR, or ``nicemu`` in the XDG cache directory.

    None when the user has no home directory.
    """
    if own := os.environ.get("NICEMU_CACHE_DIR"):
        return Path(own)
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if xdg.is_absolute():  # the XDG specification: ignore relative paths
        return xdg / "nicemu"
    try:
        return Path.home() / ".cache" / "nicemu"
    except RuntimeError:
        return None


def cached_files() -> list[Path]:
    """The images that are kept, and what crashes have left of others."""
    directory = cache_dir()
    if directory is None:
        return []
    found = (path for kind in ("*.image", "*.part") for path in directory.glob(kind))
    return sorted(path for path in found if path.is_file())


def cached(key: str, build: Callable[[], KernelImage]) -> KernelImage:
    """The image stored under ``key`` (a file name), or the built one, which is then stored.

    A damaged file is built again.  Files appear whole or not at all, so processes may race; where
    the directory cannot be used, the image is built and not kept.
    """
    directory = cache_dir()
    if directory is None:
        return build()
    path = directory / f"{key}.image"
    with suppress(OSError, ImageError):
        return KernelImage.from_bytes(path.read_bytes())
    image = build()
    with suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=directory, prefix=f"{key}.", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(image.to_bytes())
            Path(temporary).replace(path)
        except OSError:
            with suppress(OSError):
                Path(temporary).unlink()
    return image
