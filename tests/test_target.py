"""Images for the cores of a machine: code of what they have, the same bits, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import nicemu
from nicemu import ArgumentError, ImageError, Machine, Nic, OpError, ReduceOp
from nicemu.cli import main
from nicemu.compiler.target import EVERY, target_of
from nicemu.device.image import KernelImage
from nicemu.device.isa import provided
from nicemu.device.machine import MACHINES
from nicemu.dtypes import format_of
from nicemu.ops.builtin import builtin, kernel

ELEMENTS = ("float16", "bfloat16", "float32")
PRESETS = ("wide", "per-hop", "per-add")


def of_isa(isa: str) -> Machine:
    return Machine(isa, cores=1, isa=isa)


F = MACHINES["cv32e40p"]
D = replace(F, name="with D", isa="rv64imfdc_zicsr")
PSPIN = MACHINES["pspin"]


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NICEMU_CACHE_DIR", str(tmp_path_factory.mktemp("images")))
        yield


def patterns(element: str, ranks: int = 4) -> list[np.ndarray]:
    """Random patterns of a format, NaNs and infinities among them; small integers."""
    row, rng = format_of(element), np.random.default_rng(5)
    if row.kind != "float":
        return list(rng.integers(-9, 9, (ranks, 500)).astype(row.dtype))
    raw = rng.integers(0, 1 << 8 * row.size, (ranks, 1500), np.uint64)
    return list(raw.astype(row.bits_dtype).view(row.dtype))


@cache
def reduced(op: str, element: str, preset: str, machine: str | Machine) -> tuple[bytes, bytes]:
    """Results and partial sums of a device of that machine, with its own image."""
    nic = Nic(machine, threads=1)
    nic.load(builtin(op, element), element=element, preset=preset)
    streams = patterns(element)
    leaves = (nic.reduce(streams, leave=leave).values for leave in ("finish", "emit"))
    finish, emit = (values.tobytes() for values in leaves)
    return finish, emit


# ---- the bits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("op", ["sum", "max", "avg", "l2norm", "argmax"])
def test_the_bits_are_the_same_on_scalar_cores(op: str, element: str, preset: str) -> None:
    row = builtin(op, element)
    assert reduced(op, element, preset, D) == reduced(op, element, preset, "card")
    expected = row.reference(patterns(element), preset=preset).tobytes()
    assert reduced(op, element, preset, D)[0] == expected
    if op == "avg":  # it divides in float64
        assert reduced(op, element, preset, F) == reduced(op, element, preset, "card")
    else:
        assert row.image(element, preset, F).code == row.image(element, preset, D).code


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("op", ["sum", "max", "avg", "l2norm", "argmax"])
def test_the_bits_are_the_same_without_floating_point(op: str, element: str, preset: str) -> None:
    assert reduced(op, element, preset, PSPIN) == reduced(op, element, preset, "card")
    used = builtin(op, element).image(element, preset, PSPIN).extensions
    assert set(used) <= {"i", "m", "c"}


@pytest.mark.parametrize("element", ["int8", "int32", "int64", "bool"])
@pytest.mark.parametrize("op", ["sum", "prod", "max", "argmax", "bxor", "sat_sum"])
def test_the_bits_are_the_same_on_cores_of_integers(op: str, element: str) -> None:
    if element == "bool" and op != "bxor":
        pytest.skip("not for bools")
    assert reduced(op, element, "wide", PSPIN) == reduced(op, element, "wide", "card")
    used = builtin(op, element).image(element, machine=PSPIN).extensions
    assert set(used) <= {"i", "m", "c"}


@pytest.mark.parametrize(
    "isa",
    [
        "rv64imafd", "rv64gc_zfh", "rv64gc_zfh_zfbfmin_zba_zbb_zicond", "rv64gcv", "rv64gcv_zvfh",
        "rv64gcv_zfbfmin_zvfbfmin", "rv64gcv_zvfh_zfbfmin_zvfbfmin",
    ],
)  # fmt: skip
@pytest.mark.parametrize("op", ["sum", "maximum", "avg", "logsumexp"])
def test_the_bits_are_the_same_with_any_extensions(op: str, isa: str) -> None:
    for element in ("float16", "bfloat16", "float8_e4m3fn"):
        for preset in ("wide", "per-add"):
            machine = of_isa(isa)
            assert reduced(op, element, preset, machine) == reduced(op, element, preset, "card")
            image = builtin(op, element).image(element, preset, machine)
            assert set(image.extensions) <= set(provided(isa, 512))
            vectors = target_of(machine).vectors and op != "logsumexp"  # which has branches
            assert not vectors or "v" in image.extensions


@pytest.mark.parametrize("element", ["float16", "bfloat16"])
def test_conversions_in_integers_are_exact(element: str) -> None:
    """Every pattern widens, and float32 of all exponents and ends of fractions narrow, as where
    there are instructions for it."""
    row = format_of(element)
    every = np.arange(1 << 16, dtype=np.uint16).view(row.dtype)
    nic = Nic(F, threads=1)
    nic.load(kernel("sum", element, machine=F))
    wide = nic.reduce([every], leave="emit").values
    numbers = ~np.isnan(every.astype(np.float32))
    assert (wide.view(np.uint32)[~numbers] == 0x7FC00000).all()
    assert wide[numbers].tobytes() == every[numbers].astype(np.float32).tobytes()

    high = np.arange(0, 1 << 16, dtype=np.uint32) << 16
    low = [0, 1, 0xFFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xEFFF, 0xFFFF]
    rng = np.random.default_rng(1)
    given = np.concatenate([*(high | x for x in low), high | rng.integers(0, 1 << 16, 1 << 16)])
    floats = given.astype(np.uint32).view(np.float32)

    @nicemu.reduce_op(element="float32", result=element)
    def narrowed(a: Any, b: Any) -> Any:
        return a + b

    nic.load(narrowed)
    got = nic.reduce([floats]).values
    with np.errstate(all="ignore"):
        want = floats.astype(row.dtype)
    numbers = ~np.isnan(floats)
    assert got[numbers].tobytes() == want[numbers].tobytes()
    assert (got.view(np.uint16)[~numbers] == row.canonical_nan).all()


def test_check_asks_the_machines_image() -> None:
    found = builtin("l2norm", "bfloat16").check(D, element="bfloat16", preset="per-add")
    assert found.ok, str(found)
    assert found.findings[0].detail.endswith("nothing undefined; of c f i")


def test_an_op_of_ones_own() -> None:
    @nicemu.reduce_op(accumulator=[("n", "int32"), ("total", "element")], result="element")
    def mean(a: Any, b: Any) -> Any:
        return a.n + b.n, a.total + b.total

    mean.lift(lambda x: (1, x))
    mean.finish(lambda a: a.total / np.float32(a.n))
    x = np.random.default_rng(2).standard_normal((6, 1000)).astype(ml_dtypes.bfloat16)
    results = [
        nicemu.Communicator(nicemu.Fabric(6, machine=machine)).allreduce(x, mean).whole()
        for machine in ("card", "cv32e40p", of_isa("rv64gcv"))
    ]
    assert len({result.tobytes() for result in results}) == 1


# ---- where images are taken ----------------------------------------------------------------------


def test_a_communicator_takes_the_image_of_its_machine() -> None:
    x = np.random.default_rng(3).standard_normal((4, 700)).astype(np.float16)
    for algorithm in ("in-network", "ring"):
        results = [
            nicemu.Communicator(nicemu.Fabric(4, "tree(2)", machine=machine))
            .allreduce(x, "sum", preset="per-add", algorithm=algorithm)
            .whole()
            for machine in ("card", "cv32e40p")
        ]
        assert results[0].tobytes() == results[1].tobytes()


def test_images_for_other_cores_are_refused_before_they_run() -> None:
    image = kernel("sum", "float16")
    assert {"v", "zvfh"} <= set(image.extensions)
    words = r"image of sum needs .*v.*, which cores of pspin lack: make it for them, by machine='p"
    with pytest.raises(ImageError, match=words):
        Nic("pspin").load(image)
    world = nicemu.Communicator(nicemu.Fabric(2, machine="pspin"))
    x = np.ones((2, 4), np.float16)
    for algorithm in ("in-network", "ring"):
        with pytest.raises(ImageError, match=words):
            world.allreduce(x, image, algorithm=algorithm)
    whole = world.allreduce(np.ones((2, 4), np.int32)).whole()  # the world is as it was
    assert whole.tolist() == [2] * 4


def test_a_machine_of_ones_own_is_no_preset() -> None:
    for name in ("mine", "card"):
        with pytest.raises(ImageError, match=f"cores of {name} lack: .*by machine=that Machine$"):
            Nic(Machine(name, isa="rv64imac")).load(kernel("sum", "float16"))
    for field in ({"isa": 5}, {"name": None}, {"timing": None}):
        with pytest.raises(ArgumentError, match=f"^{next(iter(field))} "):
            replace(PSPIN, **field)


@pytest.mark.parametrize("element", ["int8", "uint8", "bool", "float16", "bfloat16"])
def test_bytes_and_float32_need_no_zvfh(element: str) -> None:
    """Conversions at 16 bits, of integers to and from float32, are of V."""
    to, back = ("float32", "int8") if element[0] not in "fb" else ("int8", "float32")

    @nicemu.reduce_op(element=element, accumulator=to, result=back)
    def total(a: Any, b: Any) -> Any:
        return a + b

    (total.lift if to == "int8" else total.finish)(lambda x: np.int8(x))
    results = []
    for machine in ("card", of_isa("rv64gcv"), of_isa("rv64gcv_zfbfmin_zvfbfmin"), D):
        nic = Nic(machine, threads=1)
        nic.load(total)
        results.append(nic.reduce(patterns(element)).values.tobytes())
    assert len(set(results)) == 1


def test_cores_without_what_an_op_needs() -> None:
    none = of_isa("rv64i")
    with pytest.raises(
        OpError, match=r"^prod: it multiplies .*, and cores of rv64i have no m: use another machine"
    ):
        builtin("prod", "int64").image("int64", machine=none)
    with pytest.raises(ArgumentError, match="machine 'no' is unknown"):
        kernel("sum", "int8", machine="no")
    with pytest.raises(
        ArgumentError, match=r"image is of type Machine: pass a nicemu\.KernelImage or R"
    ):
        Nic("pspin").load(none)  # type: ignore[arg-type]


def test_cost_and_disasm_are_of_the_machines_image() -> None:
    op = builtin("sum", "float16")
    cost = op.cost("cv32e40p", element="float16")
    assert not any(name.startswith("v") for name in cost.classes)
    assert cost.instructions_per_packet > 512
    text = str(op.disasm("cv32e40p", element="float16"))
    assert "fadd.s" in text and "vsetvli" not in text
    assert "vsetvli" in str(op.disasm(element="float16"))


def test_bench_on_scalar_cores() -> None:
    done = CliRunner().invoke(main, ["bench", "op", "--machine", "cv32e40p", "--json", "-"])
    assert done.exit_code == 0, done.output
    assert '"op": "sum"' in done.output and "scalar_sum" not in done.output
    done = CliRunner().invoke(main, ["op", "cost", "avg", "--element", "f16", "--machine", "pspin"])
    assert done.exit_code == 0 and " on pspin " in done.output


# ---- one place, one cache ------------------------------------------------------------------------


def test_images_are_kept_by_what_cores_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NICEMU_CACHE_DIR", str(tmp_path))
    op = nicemu.reduce_op(lambda a, b: a + b, name="total", element="int32")
    assert isinstance(op, ReduceOp)
    vectors = op.image(machine="card")
    assert op.image() is vectors and op.image(machine="spatz") is vectors
    assert op.image(machine="pspin").code != vectors.code
    assert op.image(machine=replace(PSPIN, name="again")) is op.image(machine="pspin")
    assert len(list(tmp_path.glob("*.image"))) == 2
    assert KernelImage.from_bytes(vectors.to_bytes()).extensions == vectors.extensions


def test_every_machine_is_the_default() -> None:
    assert target_of(None) is EVERY and target_of("card") == EVERY
    assert EVERY.features.count("+") == 15 and "+zvfbfwma" in EVERY.features
    assert target_of("pspin").features == "+m,+a,+c"
    assert provided("rv64gc_zfbfmin", 512)[-3:] == ("priv", "h16", "cd")


# ---- C and assembly ------------------------------------------------------------------------------


def test_c_has_the_same_bits() -> None:
    pytest.importorskip("ziglang", reason="pip install 'nicemu[c]'")
    op = nicemu.reduce_op.c(
        "float lift(float x) { return x * x; } float merge(float a, float b) { return a + b; }"
        "float finish(float a) { return sqrtf(a); }",
        name="l2norm",
    )
    for element in ELEMENTS:
        nic = Nic(F, threads=1)
        nic.load(op, element=element)
        got = nic.reduce(patterns(element)).values
        assert got.tobytes() == reduced("l2norm", element, "wide", "card")[0]


def test_assembly_is_refused_with_its_line() -> None:
    pytest.importorskip("ziglang", reason="pip install 'nicemu[c]'")
    op = nicemu.reduce_op.asm(
        "first:\nload:\nacc:\nmerge:\n  li a0, 0\n  ret\nemit:\nfinish:\n"
        "  vsetvli t0, a2, e32, m8, ta, ma\n  li a0, 0\n  ret\n",
        element="int32",
        name="odd",
    )
    assert op.image(machine="card").extensions == op.image().extensions
    words = r"odd \(odd\.s:9\): vsetvli is of v, and cores of pspin have no v: use what they have"
    with pytest.raises(OpError, match=words):
        Nic("pspin").load(op)
    found = op.check("pspin")
    assert not found.ok and found.findings[0].found == "no"
    assert found.findings[0].detail == (
        "vsetvli is of v, and cores of pspin have no v: odd.s:9: vsetvli t0, a2, e32, m8, ta, ma"
    )
