"""The host run of an op's kernels: its run-time library, and that it does what the cores do."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import pytest

import nicemu
from nicemu.compiler.host import _NARROWING, _WIDENING, HostKernels, _narrowing
from nicemu.compiler.llvm import on_host
from nicemu.device.image import Context
from nicemu.dtypes import Format, format_of
from nicemu.errors import ArgumentError, ImageError
from nicemu.reference.arithmetic import narrow, widen
from tests.fp_operands import tuples
from tests.mpfr_oracle import FORMATS


def converted(
    text: str, name: str, src: Format, dst: Format, bits: np.ndarray, library: tuple[str, ...] = ()
) -> np.ndarray:
    """Bits of dst that a conversion gives for bits of src; it may call the library's functions."""
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
    keep, addresses = on_host([text + loop], ["all", *library], name)
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


def test_small_bfloats_are_rounded_as_others_are() -> None:
    """Without the host's own instruction, which takes them for zeros."""
    single, brain = format_of("f32"), format_of("bf16")
    text = "define bfloat @short(float %x) {\n %r = fptrunc float %x to bfloat\n ret bfloat %r\n}"
    library = "".join(_narrowing(*row) for row in _NARROWING)
    bits = np.arange(0, 1 << 25, 1001, dtype=np.uint32)  # the largest is normal
    names = tuple(name for name, *_ in _NARROWING)
    got = converted(text + library, "short", single, brain, bits, names)
    assert np.array_equal(got, narrow(bits.view(np.float32), brain))


def test_what_the_host_does_not_have_is_refused() -> None:
    """LLVM would end the process."""
    text = """
declare float @nowhere(float)
define float @f(float %x) {
  %r = call float @nowhere(float %x)
  ret float %r
}
"""
    with pytest.raises(ImageError, match="own: its code for the host needs nowhere, which is not"):
        on_host([text], ["f"], "own")


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
        ((["acc"], [x]), r"entry \['acc'\] is unknown: use one of first"),
        (("acc", None), "payloads is NoneType: pass a list"),
        (("acc", x), "payloads is ndarray"),
        (("acc", [None]), r"payload or accumulator is NoneType"),
        (("acc", [[1.0]]), "payload or accumulator is list"),
    ):
        with pytest.raises(ArgumentError, match=text):
            host.call(*arguments)  # type: ignore[arg-type]
    odd: Any
    for odd, text in ((-1, "out of range"), (2**62, "out of range"), ("x", "no whole number")):
        with pytest.raises(ArgumentError, match=f"^count .* is {text}: use 0\\.\\."):
            host.call("emit", count=odd)
    for odd in (3, ["emit"]):
        with pytest.raises(ArgumentError, match=r"^leave .* is unknown: use one of emit, finish$"):
            host.reduce([x], leave=odd)
    with pytest.raises(ArgumentError, match=r"^context is int: use nicemu.Context$"):
        host.call("acc", [x], context=3)  # type: ignore[arg-type]
