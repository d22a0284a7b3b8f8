"""Gradient files: what is read, what is refused and how, and results that appear whole or not."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

from nicemu.dtypes import GRADIENTS, Format, format_of
from nicemu.errors import ArgumentError, FileFormatError
from nicemu.gradients import Gradients, Output, read, read_group, worker_files

BF16 = ml_dtypes.bfloat16
by_format = pytest.mark.parametrize("fmt", GRADIENTS, ids=lambda f: f.name)
Arrays = dict[str, np.ndarray]


def arrays_of(fmt: Format) -> Arrays:
    """Keys whose order in a file differs from their sorted order; a 0-d and an F-order array."""
    bits = np.arange(1, 28).astype(fmt.bits_dtype) * fmt.bits_dtype.type(0x0123)
    values = bits.view(fmt.dtype)
    return {
        "w": values[:12].reshape(3, 4),
        "b": values[12:14],
        "scale": values[14:15].reshape(()),
        "a.t": np.asfortranarray(values[15:27].reshape(2, 3, 2)),
    }


def stream_of(arrays: Arrays) -> np.ndarray:
    return np.concatenate([arrays[k].ravel() for k in sorted(arrays)])


def save_safetensors(path: Path, arrays: Arrays) -> None:
    save_file({k: np.ascontiguousarray(a).reshape(a.shape) for k, a in arrays.items()}, path)


def save_npz(path: Path, arrays: Arrays) -> None:
    np.savez(path, **arrays)


def save_npz_deflated(path: Path, arrays: Arrays) -> None:
    np.savez_compressed(path, **arrays)


SAVERS = [
    (save_safetensors, "w.safetensors"),
    (save_npz, "w.npz"),
    (save_npz_deflated, "w.npz"),
]


def dtype_option(fmt: Format, name: str) -> str | None:
    """numpy's files do not say bfloat16."""
    return "bf16" if fmt.name == "bfloat16" and not name.endswith(".safetensors") else None


# ---- reading ---------------------------------------------------------------------------------


@by_format
@pytest.mark.parametrize(("saver", "name"), SAVERS)
def test_streams_are_in_key_order(
    tmp_path: Path, fmt: Format, saver: Callable[[Path, Arrays], None], name: str
) -> None:
    arrays = arrays_of(fmt)
    saver(tmp_path / name, arrays)
    got = read(tmp_path / name, dtype_option(fmt, name))
    assert got.format is fmt
    assert dict(got.shapes) == {k: arrays[k].shape for k in sorted(arrays)}
    assert list(got.shapes) == sorted(arrays)
    assert got.stream.dtype == fmt.dtype
    assert got.stream.tobytes() == stream_of(arrays).tobytes()


@by_format
def test_safetensors_in_key_order_are_mapped(tmp_path: Path, fmt: Format) -> None:
    arrays = {"a": np.ones(5, fmt.dtype), "b": np.zeros((2, 3), fmt.dtype)}
    save_file(arrays, tmp_path / "w.safetensors")
    got = read(tmp_path / "w.safetensors")
    assert not got.stream.flags.owndata and not got.stream.flags.writeable
    assert got.stream.tobytes() == stream_of(arrays).tobytes()


LAYOUTS: list[tuple[str, Callable[[np.ndarray], np.ndarray]]] = [
    ("C order", lambda a: a),
    ("Fortran order", np.asfortranarray),
    ("big-endian", lambda a: a.astype(a.dtype.newbyteorder(">"))),
    ("big-endian, Fortran order", lambda a: np.asfortranarray(a.astype(">f2"))),
]


@pytest.mark.parametrize("layout", [f for _, f in LAYOUTS], ids=[n for n, _ in LAYOUTS])
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_numpy_layouts(
    tmp_path: Path, layout: Callable[[np.ndarray], np.ndarray], suffix: str
) -> None:
    values = np.arange(24, dtype=np.float16).reshape(2, 3, 4)
    path = tmp_path / f"w{suffix}"
    if suffix == ".npy":
        np.save(path, layout(values))
    else:
        np.savez(path, layout(values))
    got = read(path)
    assert got.stream.dtype == np.float16 and got.stream.dtype.isnative
    assert got.stream.tolist() == list(range(24))
    assert list(got.shapes.values()) == [(2, 3, 4)]


@pytest.mark.parametrize("shape", [(), (1,), (3, 1, 2)])
def test_bfloat16_in_npy_needs_its_name(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "w.npy"
    values = np.full(shape, 1.5, BF16)
    np.save(path, values)
    with pytest.raises(FileFormatError, match=r"w.npy: the array has dtype \|V2.*--dtype bfloat16"):
        read(path)
    got = read(path, "bfloat16")
    assert got.stream.dtype == BF16
    assert (got.stream == BF16(1.5)).all() and got.shapes == {"": shape}


def test_nan_and_infinity_are_data(tmp_path: Path) -> None:
    bits = np.array([0x7C00, 0xFC00, 0x7C01, 0xFE55, 0x8000], np.uint16)
    save_file({"x": bits.view(np.float16)}, tmp_path / "w.safetensors")
    assert read(tmp_path / "w.safetensors").stream.view(np.uint16).tolist() == bits.tolist()


def test_metadata_is_kept(tmp_path: Path) -> None:
    save_file({"x": np.ones(1, np.float16)}, tmp_path / "w.safetensors", metadata={"a": "b"})
    assert read(tmp_path / "w.safetensors").metadata == {"a": "b"}


# ---- refusing --------------------------------------------------------------------------------


def safetensors_bytes(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def row(dtype: str, shape: list[int], low: int, high: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [low, high]}


def npy_bytes(header: bytes, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + data


def zip_bytes(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "."), data)
    return out.getvalue()


def saved(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


HALF = np.ones(4, np.float16)
GOOD = save({"x": HALF})
DESCR = b"{'descr': '<f2', 'fortran_order': False, 'shape': %s, }\n"
HOSTILE = [
    # safetensors
    ("w.safetensors", b"", "no valid .safetensors"),
    ("w.safetensors", GOOD[:7], "no valid .safetensors"),
    ("w.safetensors", GOOD[:20], "no valid .safetensors"),
    ("w.safetensors", GOOD[:-1], "no valid .safetensors"),
    ("w.safetensors", GOOD + b"\0", "no valid .safetensors"),
    ("w.safetensors", safetensors_bytes({}, length=1 << 40), "no valid .safetensors"),
    ("w.safetensors", safetensors_bytes({}, length=(1 << 64) - 1), "no valid .safetensors"),
    ("w.safetensors", safetensors_bytes(b"{"), "no valid .safetensors"),
    ("w.safetensors", safetensors_bytes(b"\xff\xfe{}"), "no valid .safetensors"),
    ("w.safetensors", safetensors_bytes(b"[" * 50_000), "no valid .safetensors"),
    ("w.safetensors", safetensors_bytes({"x": 1}), "no valid .safetensors"),
    ("w.safetensors", safetensors_bytes({"x": row("F16", [4], 0, 9)}), "no valid"),
    ("w.safetensors", safetensors_bytes({"x": row("F16", [4], 8, 0)}, bytes(8)), "no valid"),
    ("w.safetensors", safetensors_bytes({"x": row("F16", [4], -8, 0)}, bytes(8)), "no valid"),
    ("w.safetensors", safetensors_bytes({"x": row("F16", [1 << 33, 1 << 33], 0, 8)}, bytes(8)),
     "no valid"),
    ("w.safetensors", safetensors_bytes({"x": row("F16", [1 << 40], 0, 1 << 41)}), "no valid"),
    ("w.safetensors", safetensors_bytes(b'{"x":{"dtype":"F16","shape":[NaN],'
                                        b'"data_offsets":[0,2]}}', bytes(2)), "no valid"),
    ("w.safetensors", safetensors_bytes({"x": row("F16", [2], 0, 4), "y": row("F16", [2], 2, 6)},
                                        bytes(6)), "no valid"),
    ("w.safetensors", safetensors_bytes(b'{"x":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},'
                                        b'"x":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}',
                                        bytes(2)), "names a key twice"),
    ("w.safetensors", safetensors_bytes({}), "holds no array"),
    ("w.safetensors", save({"x": np.ones(2)}), "array 'x' has dtype F64.*float16, bfloat16"),
    ("w.safetensors", save({"x": np.ones(2, np.int64)}), "dtype I64"),
    ("w.safetensors", save({"x": HALF, "e": HALF[:0]}), r"array 'e' is empty \(shape \(0,\)\)"),
    ("w.safetensors", save({"x": HALF, "y": np.ones(1, np.float32)}),
     "dtypes are mixed: 'x' is float16, 'y' is float32"),
    # npy
    ("w.npy", b"", "no valid .npy"),
    ("w.npy", saved(HALF)[:-1], "needs 8 bytes|no valid"),
    ("w.npy", saved(HALF)[:9], "no valid .npy"),
    ("w.npy", b"\x93NUMPY\x09\0" + saved(HALF)[8:], "no valid .npy"),
    ("w.npy", npy_bytes(DESCR % b"(1099511627776,)"), "needs 2199023255552 bytes, there are"),
    ("w.npy", npy_bytes(DESCR % b"(-1,)", bytes(8)), "no valid .npy"),
    ("w.npy", npy_bytes(DESCR % b"('a',)", bytes(8)), "no valid .npy"),
    ("w.npy", npy_bytes(b"(" * 3000, bytes(8)), "no valid .npy"),
    ("w.npy", npy_bytes(b"__import__('os').abort()\n", bytes(8)), "no valid .npy"),
    ("w.npy", saved(np.array([None, 1], dtype=object)), "Python objects"),
    ("w.npy", saved(np.ones(2)), "the array has dtype float64"),
    ("w.npy", saved(np.ones(2, np.int16)), "the array has dtype int16"),
    ("w.npy", saved(np.ones(2, [("a", "<f2")])), "the array has dtype .*not supported"),
    ("w.npy", saved(np.ones((3, 0), np.float16)), r"the array is empty \(shape \(3, 0\)\)"),
    # npz
    ("w.npz", b"", "no valid .npz"),
    ("w.npz", zip_bytes(), "holds no array"),
    ("w.npz", zip_bytes(x__npy=saved(HALF))[:-10], "no valid .npz"),
    ("w.npz", zip_bytes(readme=b"hello"), "member 'readme' is no array"),
    ("w.npz", zip_bytes(x__npy=b"hello"), "no valid .npz"),
    ("w.npz", zip_bytes(x__npy=npy_bytes(DESCR % b"(99999999999,)")), "needs 199999999998 bytes"),
    ("w.npz", zip_bytes(x__npy=saved(np.array([None], dtype=object))), "Python objects"),
    ("w.npz", zip_bytes(x__npy=saved(HALF), y__npy=saved(np.ones(1))), "array 'y' .* float64"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data", "message"), HOSTILE)
def test_unsuitable_files(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match=message) as caught:
        read(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and "\n" not in text and len(text) < 500


def test_an_archive_that_claims_too_much(tmp_path: Path) -> None:
    """The central directory's size of a member is patched to a gigabyte."""
    path = tmp_path / "w.npz"
    data = bytearray(zip_bytes(x__npy=saved(HALF)))
    central = data.index(b"PK\1\2")
    data[central + 24 : central + 28] = (1 << 30).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match="members claim 1073741824 bytes"):
        read(path)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    kind=st.integers(0, 2),
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4),
    keep=st.floats(0.5, 1.5),
)
def test_damaged_files_raise_one_type_only(
    tmp_path: Path, kind: int, changes: list[tuple[float, int]], keep: float
) -> None:
    name = ("w.safetensors", "w.npy", "w.npz")[kind]
    data = bytearray(
        (save({"x": HALF, "y": HALF}), saved(HALF), zip_bytes(x__npy=saved(HALF)))[kind]
    )
    for where, value in changes:
        data[int(where * (len(data) - 1))] = value
    path = tmp_path / name
    path.write_bytes(data[: int(len(data) * keep)])
    try:
        got = read(path)
    except FileFormatError as e:
        assert str(e).startswith(f"{path}: ")
    else:
        assert got.stream.size > 0


def test_wrong_paths_and_dtypes(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", HALF)
    for path, message in [
        (tmp_path / "none.npy", "does not exist"),
        (tmp_path / "w.txt", "suffix '.txt' is unknown"),
        (tmp_path / "w", "suffix '' is unknown"),
    ]:
        with pytest.raises(FileFormatError, match=re.escape(f"{path}: {message}")):
            read(path)
    (tmp_path / "d.npy").mkdir()
    os.mkfifo(tmp_path / "f.npy")
    for name in ("d.npy", "f.npy"):
        with pytest.raises(FileFormatError, match="is not a regular file"):
            read(tmp_path / name)
    with pytest.raises(FileFormatError, match="dtype is float16, not bfloat16"):
        read(tmp_path / "w.npy", "bf16")
    with pytest.raises(ArgumentError, match="float64 is not supported"):
        read(tmp_path / "w.npy", "float64")


# ---- groups ----------------------------------------------------------------------------------


def test_kinds_of_file_may_be_mixed(tmp_path: Path) -> None:
    arrays = arrays_of(format_of("f16"))
    save_safetensors(tmp_path / "a.safetensors", arrays)
    save_npz(tmp_path / "b.npz", dict(reversed(arrays.items())))
    group = read_group([tmp_path / "a.safetensors", tmp_path / "b.npz"])
    assert group[0].stream.tobytes() == group[1].stream.tobytes()


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"x": np.ones((2, 3), np.float16)}, r"array 'x' has .*\(2, 3\), but has shape \(3, 2\)"),
        ({"y": np.ones((3, 2), np.float16)}, r"array 'x' is missing, but has shape \(3, 2\)"),
        ({"x": np.ones((3, 2), BF16)}, "dtype is bfloat16, but .*a.safetensors has float16"),
    ],
)  # fmt: skip
def test_workers_that_do_not_fit(tmp_path: Path, second: Arrays, message: str) -> None:
    save_file({"x": np.ones((3, 2), np.float16)}, tmp_path / "a.safetensors")
    save_file(second, tmp_path / "b.safetensors")
    with pytest.raises(FileFormatError, match=f"b.safetensors: {message}"):
        read_group([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])


def test_directories(tmp_path: Path) -> None:
    for name in ("w2.npy", "w1.npy", ".hidden"):
        (tmp_path / name).write_bytes(saved(HALF))
    assert [p.name for p in worker_files([tmp_path])] == ["w1.npy", "w2.npy"]
    assert worker_files(["b", "a"]) == [Path("b"), Path("a")]
    for arguments in ([tmp_path, tmp_path / "w1.npy"], [tmp_path / "w1.npy", tmp_path]):
        with pytest.raises(FileFormatError, match="not the only argument"):
            worker_files(arguments)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(FileFormatError, match=r"notes.txt: is not a gradient file"):
        worker_files([tmp_path])
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileFormatError, match="holds no file"):
        worker_files([tmp_path / "empty"])
    with pytest.raises(FileFormatError, match="no file given"):
        worker_files([])


# ---- the result ------------------------------------------------------------------------------


def group_of(tmp_path: Path, arrays: Arrays, name: str, metadata: bool = True) -> list[Gradients]:
    """Two equal workers, read from files."""
    paths = []
    for i in range(2):
        path = tmp_path / f"in{i}-{name}"
        if name.endswith(".safetensors"):
            flat = {k: np.ascontiguousarray(a).reshape(a.shape) for k, a in arrays.items()}
            save_file(flat, path, metadata={"same": "s", "rank": str(i)} if metadata else None)
        elif name.endswith(".npz"):
            np.savez(path, **arrays)
        else:
            np.save(path, arrays[""])
        paths.append(path)
    return read_group(paths, dtype_option(format_of(next(iter(arrays.values())).dtype), name))


@by_format
@pytest.mark.parametrize("source", ["w.safetensors", "w.npz"])
@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_results_keep_keys_shapes_and_bits(
    tmp_path: Path, fmt: Format, source: str, suffix: str
) -> None:
    arrays = arrays_of(fmt)
    group = group_of(tmp_path, arrays, source)
    out = tmp_path / f"out{suffix}"
    with Output(out, group) as output:
        assert not out.exists()
        output.write(group[0].stream, {"op": "sum"})
    got = read(out, dtype_option(fmt, suffix))
    assert dict(got.shapes) == dict(group[0].shapes)
    assert got.stream.tobytes() == stream_of(arrays).tobytes()
    if suffix == ".safetensors":
        common = {"same": "s"} if source == "w.safetensors" else {}
        assert got.metadata == {"op": "sum", **common}
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        [out.name, *(w.path.name for w in group)]
    )
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(out.stat().st_mode) == 0o666 & ~umask


@by_format
@pytest.mark.parametrize(
    ("suffix", "key"), [(".npy", ""), (".npz", "arr_0"), (".safetensors", "arr_0")]
)
def test_results_of_unnamed_arrays(tmp_path: Path, fmt: Format, suffix: str, key: str) -> None:
    values = np.arange(6).astype(fmt.dtype).reshape(2, 3)
    group = group_of(tmp_path, {"": values}, "w.npy")
    with Output(tmp_path / f"out{suffix}", group) as output:
        output.write(group[0].stream, {})
    got = read(tmp_path / f"out{suffix}", dtype_option(fmt, suffix))
    assert got.shapes == {key: (2, 3)}
    assert got.stream.tobytes() == values.tobytes()


def test_outputs_that_cannot_be(tmp_path: Path) -> None:
    group = group_of(tmp_path, arrays_of(format_of("f16")), "w.safetensors")
    (tmp_path / "file").touch()
    (tmp_path / "dir.npz").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for name, message in [
        ("out.txt", "suffix '.txt' is unknown"),
        ("out.npy", "an .npy file cannot keep the 4 named arrays"),
        ("none/out.npz", "cannot be written: No such file or directory"),
        ("file/out.npz", "cannot be written: Not a directory"),
        ("dir.npz", "exists and cannot be replaced"),
        (group[1].path.name, "is also an input"),
        ("x" * 300 + ".npz", "cannot be written: File name too long"),
    ]:
        path = tmp_path / name
        with pytest.raises(FileFormatError, match=re.escape(f"{path}: {message}")):
            Output(path, group)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_nothing_is_left_half_written(tmp_path: Path, suffix: str) -> None:
    group = group_of(tmp_path, arrays_of(format_of("f16")), "w.npz")
    out = tmp_path / f"out{suffix}"
    out.write_bytes(b"old")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt), Output(out, group):
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="reshape"), Output(out, group) as output:
        output.write(group[0].stream[:-1], {})
    assert out.read_bytes() == b"old"
    assert sorted(tmp_path.iterdir()) == before


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    group = group_of(tmp_path, arrays_of(format_of("f16")), "w.npz")
    out = tmp_path / "out.npz"
    with Output(out, group) as output:
        output._part.unlink()
        output._part.symlink_to("/dev/full")
        with pytest.raises(FileFormatError, match=r"out.npz: cannot be written: No space left"):
            output.write(group[0].stream, {})
    assert not out.exists() and not output._part.is_symlink()


def test_a_link_keeps_pointing(tmp_path: Path) -> None:
    group = group_of(tmp_path, arrays_of(format_of("f16")), "w.npz")
    target = tmp_path / "real.npz"
    target.touch()
    link = tmp_path / "link.npz"
    link.symlink_to(target)
    with Output(link, group) as output:
        output.write(group[0].stream, {})
    assert link.is_symlink() and read(target).stream.tobytes() == group[0].stream.tobytes()
