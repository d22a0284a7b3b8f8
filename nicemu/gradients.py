"""Files of gradients: one per worker in, one result out.

Owns: which files are a group, what is in them (safetensors, npz, npy), and writing the result all
or nothing.  A worker's *stream* is its tensors in the order of their keys, each in C order, as one
1-D array.  Every damaged, hostile or unsuitable file ends as a FileFormatError; NaN and infinity
are data.  Reducing the streams is nic's task.
"""

from __future__ import annotations

import errno
import json
import math
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nicemu.dtypes import GRADIENTS, Format, format_of
from nicemu.errors import FileFormatError, NicemuError
from nicemu.files import WholeFile, refuse, spare

__all__ = ["SUFFIXES", "Gradients", "Output", "read", "read_group", "worker_files"]

SUFFIXES = (".safetensors", ".npz", ".npy")
UNNAMED = ""  # the key of the single array of an .npy file
SAFETENSORS_DTYPES = {f.alias.upper(): f for f in GRADIENTS}  # "F16", "BF16", ...
SUPPORTED = ", ".join(f.name for f in GRADIENTS)

MOST_NAME = 65535  # bytes of the name of a member of a zip file
MOST_DEFLATE = 1032  # bytes that one byte of a deflate stream can stand for (zlib's manual)

Array = np.ndarray


@dataclass(frozen=True)
class Gradients:
    """One worker's gradients.

    Attributes:
        path: the file.
        format: of every element.
        shapes: key -> shape, in the order of the keys; no shape has zero elements.
        stream: all elements, 1-D, of the format's dtype in native byte order; it may be mapped
            read-only from the file.
        metadata: text that came with the file (safetensors only).
    """

    path: Path
    format: Format
    shapes: Mapping[str, tuple[int, ...]]
    stream: Array
    metadata: Mapping[str, str] = field(default_factory=dict)


def worker_files(arguments: Sequence[str | Path]) -> list[Path]:
    """The files of a group: those named, in that order, or those of one directory by name.

    Hidden files of a directory are passed over.

    Raises:
        FileFormatError: a directory together with anything else, empty, or holding something that
            is not a gradient file; no argument at all.
    """
    paths = [Path(a) for a in arguments]
    if not paths:
        raise FileFormatError("no file given: name one per worker, or a directory")
    if "" in arguments:  # Path("") is the working directory
        raise FileFormatError("'': is the name of no file: leave it out")
    directories = [p for p in paths if _is(p, Path.is_dir)]
    if not directories:
        return paths
    directory = directories[0]
    if len(paths) > 1:
        raise FileFormatError(
            f"{directory}: is a directory and not the only argument: "
            "give one directory, or files only"
        )
    try:
        entries = sorted(p for p in directory.iterdir() if not p.name.startswith("."))
    except OSError as e:
        raise FileFormatError(f"{directory}: cannot be listed: {e.strerror}") from e
    for entry in entries:
        if entry.suffix not in SUFFIXES or not entry.is_file():
            raise FileFormatError(
                f"{entry}: is not a gradient file ({', '.join(SUFFIXES)}): "
                "move it elsewhere, or name the files one by one"
            )
    if not entries:
        raise FileFormatError(f"{directory}: holds no file: put one per worker there")
    return entries


def read_group(paths: Iterable[str | Path], dtype: str | None = None) -> list[Gradients]:
    """Read every worker's file, one after another, and check that they fit together.

    Raises:
        FileFormatError: as :func:`read`, or keys, shapes or dtype differ from the first file's.
    """
    group: list[Gradients] = []
    for path in paths:
        worker = read(path, dtype)
        group.append(worker)
        first = group[0]
        if worker.format is not first.format:
            refuse(
                worker.path,
                f"dtype is {worker.format.name}, but {first.path} has {first.format.name}",
                "convert one of them",
            )
        for key in sorted({*worker.shapes, *first.shapes}):
            mine, theirs = worker.shapes.get(key), first.shapes.get(key)
            if mine != theirs:
                refuse(
                    worker.path,
                    f"{_array(key)} {_shape(mine)}, but {_shape(theirs)} in {first.path}",
                    "give files with equal keys and shapes",
                )
    return group


def read(path: str | Path, dtype: str | None = None) -> Gradients:
    """Read one worker's file; its suffix says which kind it is.

    Args:
        path: .safetensors, .npz or .npy.
        dtype: a format by name.  It is checked, and gives a meaning to arrays of dtype ``|V2``,
            which is how numpy stores bfloat16 in .npy and .npz.

    Raises:
        FileFormatError: missing, unreadable, damaged, empty, or of a dtype that is not supported
            or mixed.
        ArgumentError: ``dtype`` is unknown.
    """
    path = Path(path)
    wanted = format_of(dtype, GRADIENTS) if dtype is not None else None
    if path.suffix not in SUFFIXES:
        refuse(path, f"suffix {path.suffix!r} is unknown", f"use {', '.join(SUFFIXES)}")
    if not _is(path, Path.is_file):
        what = "is not a regular file" if _is(path, Path.exists) else "does not exist"
        refuse(path, what, "name one gradient file per worker")
    load = {".safetensors": _load_safetensors, ".npz": _load_npz, ".npy": _load_npy}[path.suffix]
    try:
        with warnings.catch_warnings(action="ignore"):  # what numpy has to say of old headers
            arrays, metadata, whole = load(path)
        arrays = dict(sorted(arrays.items()))
        fmt = _format(path, arrays, wanted)
        stream = _stream(list(arrays.values()) if whole is None else [whole], fmt)
    except NicemuError:
        raise
    except MemoryError:
        refuse(path, "does not fit into this machine's memory", "split it into smaller files")
    except OSError as e:
        remedy = "check the file and its permissions"
        if e.errno == errno.EMFILE:  # each mapped file counts
            remedy = "allow more with ulimit -n"
        refuse(path, f"cannot be read: {e.strerror or e}", remedy)
    except Exception as e:  # the parsers below raise many types on hostile bytes
        text = " ".join(str(e).split())[:200] or type(e).__name__
        refuse(path, f"is no valid {path.suffix} file: {text}", "write it again")
    return Gradients(path, fmt, {k: a.shape for k, a in arrays.items()}, stream, metadata)


def _is(path: Path, question: Callable[[Path], bool]) -> bool:
    """Path.is_file and its like, with a path that no file system can have answered by no."""
    try:
        return question(path)
    except (OSError, ValueError):
        return False


def _array(key: str) -> str:
    return f"array {key!r}" if key != UNNAMED else "the array"


def _shape(shape: tuple[int, ...] | None) -> str:
    return "is missing" if shape is None else f"has shape {shape}"


# ---- what the arrays are ---------------------------------------------------------------------


def _format(path: Path, arrays: Mapping[str, Array], wanted: Format | None) -> Format:
    """The one format of all arrays; refuses what cannot be reduced."""
    if not arrays:
        refuse(path, "holds no array", "store the gradients in it")
    if UNNAMED in arrays and path.suffix != ".npy":
        refuse(path, "holds an array whose name is empty", "give it a name")
    found: dict[Format, str] = {}
    for key, array in arrays.items():
        if array.size == 0:
            refuse(path, f"{_array(key)} is empty (shape {array.shape})", "leave it out")
        dtype = array.dtype
        if dtype == np.dtype("V2"):
            if wanted is None or wanted.name != "bfloat16":
                refuse(
                    path,
                    f"{_array(key)} has dtype |V2, which does not say the format",
                    "if it is bfloat16 as numpy stores it, add --dtype bfloat16",
                )
            fmt = wanted
        else:
            rows = [f for f in GRADIENTS if f.dtype == dtype.newbyteorder("=")]
            if not rows:
                refuse(
                    path,
                    f"{_array(key)} has dtype {dtype}, which is not supported",
                    f"convert it to one of {SUPPORTED}",
                )
            fmt = rows[0]
        found.setdefault(fmt, key)
    if len(found) > 1:
        (a, key_a), (b, key_b) = list(found.items())[:2]
        refuse(
            path,
            f"dtypes are mixed: {key_a!r} is {a.name}, {key_b!r} is {b.name}",
            "store one dtype per file",
        )
    fmt = next(iter(found))
    if wanted is not None and fmt is not wanted:
        refuse(path, f"dtype is {fmt.name}, not {wanted.name}", "convert it, or change --dtype")
    return fmt


def _stream(arrays: list[Array], fmt: Format) -> Array:
    """All elements in order, aligned; without a copy when there is one array, ready for use."""
    parts = [_native(a, fmt).reshape(-1) for a in arrays]
    stream = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return np.require(stream, requirements=["C", "A"])


def _native(array: Array, fmt: Format) -> Array:
    """The same values in C order and native bytes."""
    if array.dtype.kind == "V" and array.dtype != fmt.dtype:
        array = np.ascontiguousarray(array).view(fmt.dtype).reshape(array.shape)
    elif not array.dtype.isnative:
        array = array.byteswap().view(array.dtype.newbyteorder("="))
    return np.asarray(array, order="C")


# ---- the three kinds of file -----------------------------------------------------------------

# arrays by key, metadata, and all elements in the order of the keys where the file has them so
Loaded = tuple[dict[str, Array], dict[str, str], Array | None]


def _load_safetensors(path: Path) -> Loaded:
    """The package checks the file; the arrays are then mapped from it without a copy."""
    import safetensors

    with safetensors.safe_open(path, framework="np") as file:
        keys = set(file.keys())
        metadata = dict(file.metadata() or {})
    raw = np.asarray(np.memmap(path, np.uint8, "r"))
    start = 8 + int.from_bytes(raw[:8].tobytes(), "little")
    header = json.loads(raw[8:start].tobytes(), object_pairs_hook=_unique)
    header.pop("__metadata__", None)
    if set(header) != keys:
        raise ValueError("the header's keys are ambiguous")
    data = raw[start:]
    arrays = {}
    at: int | None = 0  # where the next key's data would begin, were they stored in key order
    for key, row in sorted(header.items()):
        fmt = SAFETENSORS_DTYPES.get(row["dtype"])
        if fmt is None:
            refuse(
                path,
                f"{_array(key)} has dtype {row['dtype']}, which is not supported",
                f"convert it to one of {SUPPORTED}",
            )
        low, high = row["data_offsets"]
        arrays[key] = data[low:high].view(fmt.dtype).reshape(row["shape"])
        at = high if at == low else None
    in_order = at is not None and len({a.dtype for a in arrays.values()}) == 1
    whole = data.view(arrays[min(arrays)].dtype) if in_order else None
    return arrays, metadata, whole


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("the header names a key twice")
    return found


def _load_npy(path: Path) -> Loaded:
    with path.open("rb") as file:
        _check_npy(file, path.stat().st_size)
    return {UNNAMED: np.load(path, mmap_mode="r", allow_pickle=False)}, {}, None


def _load_npz(path: Path) -> Loaded:
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        claimed = sum(info.file_size for info in archive.infolist())
        if claimed > MOST_DEFLATE * path.stat().st_size:
            raise ValueError(f"its members claim {claimed} bytes in all")
        for info in archive.infolist():
            key = info.filename.removesuffix(".npy")
            if key in arrays or key == info.filename:
                refuse(
                    path,
                    f"member {info.filename!r} is no array or is there twice",
                    "write it with numpy.savez",
                )
            with archive.open(info) as member:
                _check_npy(member, info.file_size)
            with archive.open(info) as member:
                arrays[key] = np.lib.format.read_array(member, allow_pickle=False)
    return arrays, {}, None


def _check_npy(file: Any, size: int) -> None:
    """Refuse a header that claims more data than there is, before memory is taken for it."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise ValueError(f"npy version {version} is not supported, use 1.0 or 2.0")
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    claimed = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or claimed > size:
        raise ValueError(f"shape {shape} of {dtype} needs {claimed} bytes, there are {size}")


def _check_key(path: Path, key: str) -> None:
    """Refuse a key that the kind of file would cut short or cannot hold."""
    shown = key if len(key) < 80 else f"{key[:80]}..."
    member = f"{key}.npy"
    if path.suffix == ".npz" and (
        zipfile.ZipInfo(member).filename != member or len(member.encode()) > MOST_NAME
    ):
        refuse(path, f"an .npz file cannot keep the name {shown!r}", "use .safetensors")
    if path.suffix == ".safetensors" and key == "__metadata__":
        refuse(path, f"a .safetensors file cannot keep the name {shown!r}", "use .npz")


# ---- the result ------------------------------------------------------------------------------


class Output(WholeFile):
    """The file of a result, with the keys and shapes of the group that was reduced::

    with Output("sum.safetensors", group) as output:
        output.write(values, {"op": "sum"})
    """

    def __init__(self, path: str | Path, group: Sequence[Gradients]) -> None:
        """Reserve a temporary file beside ``path``; keys and shapes are those of the group.

        Raises:
            FileFormatError: the suffix is unknown or cannot hold the arrays, the path is one of
                the inputs or a directory, or it cannot be written.
        """
        self.path = Path(path)
        self._group = group
        named = list(group[0].shapes) != [UNNAMED]
        if self.path.suffix not in SUFFIXES:
            refuse(
                self.path, f"suffix {self.path.suffix!r} is unknown", f"use {', '.join(SUFFIXES)}"
            )
        if self.path.suffix == ".npy" and named:
            refuse(
                self.path,
                f"an .npy file cannot keep the {len(group[0].shapes)} named arrays",
                "use .npz or .safetensors",
            )
        for key in group[0].shapes:
            _check_key(self.path, key)
        spare((worker.path for worker in group), self.path)
        super().__init__(self.path)

    def write(self, values: Array, metadata: Mapping[str, str]) -> None:
        """Write the result and put it in place.

        Args:
            values: the stream of results, 1-D, of the group's format.
            metadata: text for a .safetensors file, beside what all inputs agree on.

        Raises:
            FileFormatError: the file cannot be written; nothing is left behind.
        """
        arrays = {}
        at = 0
        for key, shape in self._group[0].shapes.items():
            size = math.prod(shape)
            arrays[key] = values[at : at + size].reshape(shape)
            at += size
        with self.put() as part:
            self._save(part, arrays, metadata)

    def _save(self, part: Path, arrays: dict[str, Array], metadata: Mapping[str, str]) -> None:
        if self.path.suffix == ".npy":
            with part.open("wb") as file:
                np.save(file, arrays[UNNAMED], allow_pickle=False)
            return
        if UNNAMED in arrays:  # numpy's own name for an array without one
            arrays = {"arr_0": arrays[UNNAMED]}
        if self.path.suffix == ".npz":
            with zipfile.ZipFile(part, "w", allowZip64=True) as archive:
                for key, array in arrays.items():
                    with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                        np.lib.format.write_array(file, array, allow_pickle=False)
            return
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        common = set.intersection(*(set(w.metadata.items()) for w in self._group))
        try:
            save_file(arrays, part, metadata={**dict(sorted(common)), **metadata})
        except SafetensorError as e:  # its way to say that the disk is full
            raise OSError(str(e)) from e
