"""The host run of an op's kernels: its run-time library, and that it does what the cores do."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import pytest

import nicemu
from nicemu.dtypes import Format, format_of
from nicemu.errors import ArgumentError
from nicemu.host import _NARROWING, _WIDENING, HostKernels, _narrowing
from nicemu.image import Context
from nicemu.llvm import on_host
from nicemu.reference.arithmetic import narrow, widen
from tests.fp_operands import tuples
from tests.mpfr_oracle import FORMATS


def converted(text: str, name: str, src: Format, dst: Format, bits: np.ndarray) -> np.ndarray:
    """Bits of dst that a conversion gives for bits of src."""
    loop = f"""
define void @all(ptr %in, ptr %out, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %at = getelementptr {src.llvm}, ptr %in, i64 %i
  %to = getelementptr {dst.llvm}, ptr %out, i64 %i
  %x = load {src.llvm}, ptr %at
  %y = call {dst.llvm} @{name}({src.llvm} %x)
  store {dst.llvm} %y, ptr %to
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""
    keep, addresses = on_host([text + loop], ["all"], name)
    given = bits.astype(src.bits_dtype)
    out = np.zeros(given.size, dst.bits_dtype)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    call(addresses["all"])(given.ctypes.data, out.ctypes.data, given.size)
    del keep
    return out


@pytest.mark.parametrize(("name", "src", "dst"), _NARROWING, ids=lambda x: getattr(x, "alias", x))
def test_narrowing_is_the_reference_s(name: str, src: Format, dst: Format) -> None:
    """Structured bits, and all neighbours of what lies in the middle between two values."""
    (bits,) = tuples(next(f for f in FORMATS if f.name == src.name), 1, 200_000, seed=3)
    with np.errstate(all="ignore"):
        values = widen(np.arange(1 << 16, dtype=np.uint16), dst, np.float64)
        middle = ((values[:-1] + values[1:]) / 2).astype(src.dtype).view(src.bits_dtype)
    near = np.concatenate([middle - 1, middle, middle + 1]).astype(np.uint64)
    bits = np.concatenate([bits, near]).astype(src.bits_dtype)
    got = converted(_narrowing(name, src, dst), name, src, dst, bits)
    want = narrow(bits.view(src.dtype), dst)
    nan = want == dst.canonical_nan
    assert np.array_equal(got[~nan], want[~nan])
    assert np.all(np.isnan(got[nan].view(dst.dtype)))


def test_widening_of_halfs() -> None:
    half, single = format_of("f16"), format_of("f32")
    bits = np.arange(1 << 16, dtype=np.uint16)
    got = converted(_WIDENING, "__extendhfsf2", half, single, bits).view(np.float32)
    assert np.array_equal(got, widen(bits, half, np.float32), equal_nan=True)


def norm() -> HostKernels:
    @nicemu.reduce_op(accumulator="float32")
    def norm(a: Any, b: Any) -> Any:
        return a + b

    norm.lift(lambda x: x * x)
    norm.finish(lambda a: math.sqrt(a))
    return HostKernels("norm", norm._source, norm.formats("f32"))


def test_entries() -> None:
    host = norm()
    x, y = (np.arange(k, k + 33, dtype=np.float32) for k in (1, 50))
    for entry, inputs, after in (
        ("first", [y], y * y),
        ("load", [y], y),
        ("acc", [y], x + y * y),
        ("merge", [y], x + y),
        ("acc2", [x, y], x + x * x + y * y),
    ):
        done = host.call(entry, inputs, accumulator=x, context=Context(contributors=2))
        assert done.status == 0 and done.output is None
        assert np.array_equal(done.accumulator, after), entry
    done = host.call("finish", accumulator=x)
    assert done.output is not None and np.array_equal(done.output, np.sqrt(x))
    assert host.call("finish", count=0).accumulator.size == 0


def test_arguments_are_checked() -> None:
    host, x = norm(), np.zeros(4, np.float32)
    for arguments, text in (
        (("acc3", [x] * 3), "'acc3'"),
        (("acc", [x] * 2), "it takes 1"),
        (("emit",), "count is not given"),
        (("acc", [x.astype(np.float64)]), "float32"),
        (("acc2", [x, x[:3]]), r"\(3,\)"),
    ):
        with pytest.raises(ArgumentError, match=text):
            host.call(*arguments)  # type: ignore[arg-type]
