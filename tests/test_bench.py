"""The benches: costs of instructions, rates of ops, and what may never be reported."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import nicemu
from nicemu import ArgumentError, Communicator, Fabric, Nic, TimingError
from nicemu._core import class_names
from nicemu.bench import insn as bench_insn
from nicemu.bench.insn import InsnCosts, insn_costs
from nicemu.bench.op import LINES, LineRate, OpRate, op_rates, streamed
from nicemu.bench.scalar import scalar_sum
from nicemu.cli import main
from nicemu.commands import bench as bench_commands
from nicemu.commands import bench_collective
from nicemu.device.machine import MACHINES
from nicemu.device.words import code, word
from nicemu.dtypes import format_of
from nicemu.ops.op import ReduceOp
from tests import page
from tests.test_cli import refused
from tests.test_timing import DIVISORS, VECTOR

CARD = MACHINES["card"]
LINERATE = page.path("linerate").read_text()


# ---- instructions --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def card() -> InsnCosts:
    return insn_costs(CARD, (16, 32), (1, 2, 4))


#: instruction -> latency and cycles each; the FPU is pipelined, of latency 1
SCALAR: dict[str, tuple[float | None, float]] = {
    "add": (1, 1),
    "mul": (1, 1),
    "mulh": (5, 5),
    "div by 0x3": (DIVISORS[3], DIVISORS[3]),
    "ld": (2, 1),
    "bne, not taken": (None, 1),
    "beq, taken": (None, 3),
    "jal": (None, 2),
    "csrrs": (None, 4),
    "fence": (None, 4),
    "fadd.s": (2, 1),
    "fdiv.s": (19, 19),
}


@pytest.mark.parametrize("name", SCALAR)
def test_scalar_instructions_cost_what_rtl_takes(card: InsnCosts, name: str) -> None:
    (row,) = (row for row in card.rows if row.instruction == name)
    assert (row.latency, row.cycles) == SCALAR[name]
    assert row.sew is row.lmul is row.elements is row.per_cycle is None


@pytest.mark.parametrize("lmul", [1, 2, 4])
@pytest.mark.parametrize(
    ("sequence", "name", "chained", "of"),
    [
        ("vfadd_dep", "vfadd.vv", True, 1),
        ("vfadd_indep", "vfadd.vv", False, 2),
        ("vadd_indep", "vadd.vv", False, 2),
        ("vle", "vle16.v", False, 2),
        ("vse", "vse16.v", False, 2),
        ("vlse16", "vlse16.v", False, 1),
        ("vslidedown", "vslidedown.vi", False, 1),
        ("vfmacc_dep", "vfmacc.vv", True, 1),
    ],
)
def test_vector_instructions_cost_what_rtl_takes(
    card: InsnCosts, lmul: int, sequence: str, name: str, chained: bool, of: int
) -> None:
    """`of`: instructions of the sequence that was counted."""
    (row,) = (r for r in card.rows if (r.instruction, r.sew, r.lmul) == (name, 16, lmul))
    words, memory = CARD.vlen * lmul // CARD.timing.word, CARD.timing.memory_latency
    assert (row.latency if chained else row.cycles) == VECTOR[sequence](words, memory) / of
    assert row.elements == CARD.vlen * lmul // 16 and row.per_cycle == row.elements / row.cycles


def test_every_class_is_measured(card: InsnCosts) -> None:
    assert {row.cls for row in card.rows} == set(class_names()) - {"system"}
    assert len(str(card).splitlines()) == len(card.rows) + 2 * 2
    assert max(map(len, str(card).splitlines())) <= 100


def test_a_machine_is_asked_for_what_it_has() -> None:
    pspin = insn_costs(MACHINES["pspin"])
    assert {row.cls for row in pspin.rows}.isdisjoint({"fadd", "vload"})
    (load,) = (row for row in pspin.rows if row.instruction == "ld")
    assert (load.latency, load.cycles) == (3, 2)  # a port of four bytes
    lines = [row for row in pspin.rows if row.instruction == "add"]
    assert lines[0].cycles == 1  # its code has been fetched before
    assert "fcvt.s.h" not in {r.instruction for r in insn_costs(MACHINES["cv32e40p"]).rows}
    wide = insn_costs(replace(CARD, vlen=1024), (64,), (8,))
    assert {row.elements for row in wide.rows if row.cls == "vfadd"} == {128}


def test_other_widths_are_refused() -> None:
    with pytest.raises(ArgumentError, match="sew '12' is unknown: use one of 8, 16"):
        insn_costs(CARD, (12,))
    with pytest.raises(ArgumentError, match="lmul '3' is unknown"):
        insn_costs(CARD, (16,), (3,))


@pytest.mark.parametrize(
    ("rows", "of", "said"),
    [
        ("SCALAR", 2, "add on card takes 0.5 cycles: its operands alone take 1:"),
        ("VECTOR", 2, "vle16.v on card takes 4.5 cycles: its operands alone take 8:"),
    ],
)
def test_an_instruction_is_not_faster_than_its_operands(
    monkeypatch: pytest.MonkeyPatch, rows: str, of: int, said: str
) -> None:
    """A clock that runs slow is found out: by the issue, or by the width of the vector unit."""
    right = bench_insn._cycles
    monkeypatch.setattr(bench_insn, "_cycles", lambda *args: right(*args) / of)
    loads = bench_insn.VECTOR[1:]
    monkeypatch.setattr(bench_insn, "VECTOR", loads if rows == "VECTOR" else ())
    monkeypatch.setattr(bench_insn, "SCALAR", bench_insn.SCALAR if rows == "SCALAR" else ())
    with pytest.raises(TimingError, match=said):
        insn_costs(CARD, (16,), (4,))


# ---- rates ---------------------------------------------------------------------------------------


def rate(**changed: Any) -> OpRate:
    """A packet of 512 halves in 256 cycles."""
    fields: dict[str, Any] = {
        "op": "sum", "preset": "wide", "element": "float16", "accumulator": "float32",
        "machine": CARD, "entry": "acc", "payloads": 1, "count": 512, "payload": 1024,
        "terms": {"issue": 45, "vector": 203.5, "conflicts": 7.5}, "instructions": 45,
        "scalar_bytes": 8, "vector_bytes": 5120,
    }  # fmt: skip
    if "cycles" in changed:
        changed["terms"] = {"issue": changed.pop("cycles")}
    return OpRate(**{**fields, **changed})


@pytest.mark.parametrize(("c", "gb_per_s"), [(9, 14.2), (22, 5.8)])
def test_the_formula_of_scalar_loops(c: int, gb_per_s: float) -> None:
    """Eight cores of 1 GHz: 128/c Gb/s of 16-bit elements, twice that of 32-bit elements."""
    half = rate(cycles=512 * c, vector_bytes=0)
    assert half.element_cycles == c and half.rate == pytest.approx(128e9 / c)
    assert round(half.rate / 1e9, 1) == gb_per_s
    single = rate(cycles=256 * c, count=256, element="float32", vector_bytes=0)
    assert single.element_cycles == c and single.rate == pytest.approx(256e9 / c)


@pytest.mark.parametrize(
    ("element", "instructions", "waits"), [("float16", 9, 3), ("float32", 8, 2)]
)
def test_a_scalar_loop_keeps_to_the_formula(element: str, instructions: int, waits: int) -> None:
    """A turn: instructions, what they wait for loads and the FPU, and a taken branch."""
    image, bits = scalar_sum(element), 8 * format_of(element).size
    alone, all_eight = (
        op_rates([(image, replace(CARD, cores=cores), 4096)]).rows[0] for cores in (1, 8)
    )
    c = instructions + waits + CARD.timing.taken_branch
    assert alone.element_cycles == pytest.approx(c, rel=1e-3)
    assert alone.rate == pytest.approx(bits * 1e9 / c, rel=1e-3)
    lost = all_eight.terms["conflicts"] / all_eight.count
    assert all_eight.element_cycles == pytest.approx(c + lost, rel=1e-3) and lost > 0
    assert all_eight.rate == pytest.approx(8 * bits * 1e9 / (c + lost), rel=1e-3)
    assert all_eight.bottleneck == "issue" and all_eight.cores_needed(LINES[0]) > CARD.cores


@pytest.mark.parametrize(("line", "left"), [(LINES[0], 0.64), (LINES[1], 0.16)])
def test_cycles_that_a_line_rate_leaves(line: LineRate, left: float) -> None:
    """For a 16-bit element, on eight cores of 1 GHz."""
    assert rate().element_cycles * rate().share(line) == pytest.approx(left)
    cycles = int(left * 512)
    assert rate(cycles=cycles, vector_bytes=0, instructions=1).share(line) >= 1
    assert rate(cycles=cycles + 1, vector_bytes=0, instructions=1).share(line) < 1
    assert rate(cycles=cycles, vector_bytes=0, instructions=1).cores_needed(line) <= CARD.cores
    assert rate(cycles=cycles + 1, vector_bytes=0, instructions=1).cores_needed(line) > CARD.cores


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"instructions": 257}, "257 instructions in 256 cycles: a core of card has 1 a cycle"),
        ({"scalar_bytes": 8 * 256 + 1}, "2049 bytes of scalar loads and stores .* has 8 a cycle"),
        ({"vector_bytes": 32 * 256 + 1}, "8193 bytes of vector loads and stores .* has 32 a cycle"),
        ({"float_bits": 256 * 256 + 1}, "65537 bits of vector floating point .* has 256 a cycle"),
        ({"integer_bits": 64 * 256 + 1}, "16385 bits of vector integers .* has 64 a cycle"),
        ({"payloads": 8, "payload": 1281}, "10248 bytes of payload in 256 cycles"),
        ({"cycles": 0}, "in 0 cycles"),
        ({"machine": MACHINES["pspin"]}, "5120 bytes of vector .* of pspin has 0 a cycle"),
        (
            {"machine": replace(CARD, banks=32)},
            "41024 bytes of its banks .* a cluster",
        ),
    ],
)
def test_what_the_arithmetic_forbids_is_no_result(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(TimingError, match=said):
        rate(**changed)
    rate(instructions=256, payload=1280, payloads=8)
    rate(scalar_bytes=0, vector_bytes=32 * 256)
    rate(machine=replace(CARD, cores=1), scalar_bytes=8 * 256, vector_bytes=24 * 256)


def test_sums_are_no_faster_than_the_unit_adds() -> None:
    """Of four packets in one pass three sums of 32 bits for each element, in words of 256 bits;
    half of the cycles would not do for that, and would for all the bytes.
    """
    image = nicemu.kernel("sum", "float16")
    row = next(r for r in op_rates([(image, CARD, 1024)]).rows if r.entry == "first4_finish")
    sums, out = 3 * 512 * 32, 512 * 32  # and the last conversion, of wider operands
    assert row.float_bits >= sums + out and row.integer_bits == 0
    assert row.float_bits <= row.cycles * CARD.timing.word
    with pytest.raises(TimingError, match=r"bits of vector floating point in .* has 256 a cycle"):
        replace(row, terms={name: 0.5 * cycles for name, cycles in row.terms.items()})


def test_what_does_not_narrow_is_not_counted_twice() -> None:
    """vfnmadd is as wide as vfmadd: neither takes more bits than the unit has."""
    pytest.importorskip("ziglang", reason="needs the extra c")
    sums = []
    for sign in ("", "-"):
        source = "float merge(float a, float b) { float x = a; "
        source += f"for (int i = 0; i < 24; i++) x = fmaf({sign}b, x, x); return x; }}"
        op = nicemu.reduce_op.c(source, name="passes", element="float32")
        rows = op_rates([(op.image(), CARD, 1024)]).rows
        sums.append(next(row.float_bits for row in rows if row.entry == "acc"))
    assert sums[0] == sums[1]


def idle() -> nicemu.KernelImage:
    """An op that has done with a packet before it could have been read."""
    image = scalar_sum("float16")
    back = code([word("addi", 10, 0, 0), word("jalr", 0, 0, 1)])
    return replace(image, op="idle", code=back, entries=dict.fromkeys(image.entries, 0))


def test_an_op_that_reads_nothing_has_no_rate() -> None:
    with pytest.raises(TimingError, match="acc of idle: 1024 bytes of payload in 3 cycles"):
        op_rates([(idle(), CARD, 1024)])


def test_cycles_are_those_of_a_reduction() -> None:
    """Whole packets of four workers on one core, in one pass each."""
    machine = replace(CARD, cores=1)
    image = nicemu.kernel("sum", "bfloat16")
    row = op_rates([(image, machine, 1024)]).rows[-1]
    assert row.entry == "first4_finish"
    nic = Nic(machine, cycles=True)
    nic.load(image)
    packets = 40
    cycles = nic.reduce(np.ones((4, packets * 512), nicemu.bfloat16), payload=1024).cores[0].cycles
    assert cycles is not None and cycles.total == packets * row.cycles
    assert row.packet_cycles == row.cycles / 4 and row.element_cycles == row.cycles / (4 * 512)


@pytest.mark.parametrize(("vlen", "element"), [(128, "bfloat16"), (512, "float32")])
def test_cores_wait_for_each_other_as_in_a_reduction(vlen: int, element: str) -> None:
    machine = replace(CARD, vlen=vlen)
    image = nicemu.kernel("sum", element)
    row = op_rates([(image, machine, 1024)]).rows[-1]
    nic = Nic(machine, conflicts=True)
    nic.load(image)
    packets = 20
    values = np.ones((4, machine.cores * packets * row.count), format_of(element).dtype)
    for core in nic.reduce(values, payload=1024).cores:
        assert core.cycles is not None
        assert core.cycles.total == pytest.approx(packets * row.cycles, rel=0.01)
        assert core.cycles.terms["conflicts"] >= packets * row.terms["conflicts"]


def test_entries_of_a_stream() -> None:
    image = nicemu.kernel("sum", "float16")
    few = [str(entry) for entry in streamed(image, replace(CARD, max_fan_in=2))]
    assert few == ["acc", "acc2"]
    assert [str(entry) for entry in streamed(image, CARD)] == ["acc", "acc8", "first4_finish"]
    assert [str(entry) for entry in streamed(scalar_sum("f16"), CARD)] == ["acc"]


def test_line_rates_are_refused() -> None:
    for ports, bits in ((0, 1e9), (1, 0.0), (1, -1.0), (1, float("inf")), (1, float("nan"))):
        with pytest.raises(ArgumentError, match=r"ports 0|rate .* bit/s: use more than 0"):
            LineRate(ports, bits)
    with pytest.raises(ArgumentError, match="payload 1 is out of range"):
        op_rates([(scalar_sum("f16"), CARD, 1)])
    with pytest.raises(ArgumentError, match="no op"):
        op_rates([])


# ---- the scalar sum ------------------------------------------------------------------------------


@pytest.mark.parametrize("element", ["float16", "bfloat16", "float32"])
def test_the_scalar_sum_has_the_bits_of_sum(element: str) -> None:
    dtype = format_of(element).dtype
    x = np.random.default_rng(3).standard_normal((9, 700)).astype(dtype)
    x[0, :3], x[1, :3] = (np.inf, np.nan, 6e4), (-np.inf, 1, 6e4)
    results = [
        Communicator(Fabric(9, topology)).allreduce(x, op).whole()
        for topology in ("star", "cards")
        for op in (scalar_sum(element), "sum")
    ]
    assert results[0].tobytes() == results[1].tobytes()
    assert results[2].tobytes() == results[3].tobytes()
    nic = Nic(threads=1)
    nic.load(scalar_sum(element))
    assert nic.handle("finish", count=0).status == 0


def test_the_scalar_sum_is_for_floats() -> None:
    with pytest.raises(ArgumentError, match="scalar_sum of int8: use one of float16"):
        scalar_sum("int8")
    with pytest.raises(ArgumentError, match="preset 'per-add'"):
        scalar_sum("float16", "per-add")


# ---- the commands --------------------------------------------------------------------------------


def bench(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["bench", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_bench_insn(tmp_path: Path) -> None:
    out = tmp_path / "insn.csv"
    shown = bench(
        "insn", "--machine", "card", "--vlen", 128, "--sew", 16, "--lmul", 1, "--csv", out
    )
    assert shown.exit_code == 0 and "vectors of VLEN 128" in shown.stdout
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    add = next(row for row in rows if row["instruction"] == "vfadd.vv")
    assert (add["elements"], add["latency"]) == ("8", "4.0")
    told = json.loads(bench("insn", "--machine", "pspin", "--json", "-").stdout)
    assert told["machine"]["name"] == "pspin"
    assert told["rows"][0] == {
        "cls": "alu", "instruction": "add", "sew": None, "lmul": None, "latency": 1.0,
        "cycles": 1.0, "elements": None, "elements_per_cycle": None,
    }  # fmt: skip


def test_bench_op(tmp_path: Path) -> None:
    out = tmp_path / "rates.json"
    asked = ("--vlen", 128, "--vlen", 512, "--payload", 256, "--payload", 1024)
    shown = bench("op", "sum", "scalar_sum", "--dtype", "bf16", *asked, "--json", out)
    assert shown.exit_code == 0, shown.stderr
    assert "line rate, the aggregate ingress of the\ndevice: 1x200 = 200 Gb/s" in shown.stdout
    assert "4x200 = 800 Gb/s" in shown.stdout
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 2 * 2 * (3 + 1)
    for row in rows:
        assert row["cycles"] == sum(row["terms"].values())
        assert [line["ports"] for line in row["line_rates"]] == [1, 4]
        assert row["line_rates"][0]["margin"] == row["line_rates"][0]["share"] - 1
    ports = bench("op", "scalar_sum", "--dtype", "f32", "--ports", 2, "--rate", 5, "--csv", "-")
    (flat,) = csv.DictReader(io.StringIO(ports.stdout))
    assert float(flat["2x5G_share"]) == float(flat["bits_per_second"]) / 10e9 > 1
    table = bench("op", "scalar_sum", "--dtype", "f32", *asked[:4], "--by-vlen").stdout
    assert table.splitlines()[-1].split()[-4:] == ["none", "-90.7%", "none", "-97.7%"]
    table = bench("op", "sum", "--dtype", "f16", *asked[:4], "--by-vlen").stdout
    rates = {line.split()[0]: line.split()[1:] for line in table.splitlines()[-3:]}
    assert rates["acc"][-4] == "512" and rates["acc8"][-4] == "128"
    for line in rates.values():
        at = {"128": 0, "512": 1, "none": 1}[line[-4]]
        assert float(line[-3].rstrip("%")) == pytest.approx(float(line[at]) / 2 - 100, abs=1)


def test_bench_op_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "ops.py"
    path.write_text(
        "import nicemu\n\n"
        "@nicemu.reduce_op(element='float32')\ndef f(a, b):\n    return a + 2 * b\n"
    )
    shown = bench("op", f"{path}:f", "--machine", "spatz")
    assert "spatz: 1 core of 1 GHz, f, float32, wide, VLEN 512" in shown.stdout
    sat = bench("op", "sat_sum", "--dtype", "int8", "--vlen", 128, "--payload", 64)
    assert "sat_sum, int8, wide, VLEN 128, packets of 64 bytes" in sat.stdout


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        (bench_commands, ["insn", "--sew", 16, "--lmul", 1]),
        (bench_commands, ["op", "sum", "--dtype", "float16"]),
        (bench_commands, ["nic", "--payload", 256, "--ports", 1, "--packets", 10]),
        (bench_collective, ["allreduce", "-e", 8, "-n", 1]),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_progress_is_shown(
    module: Any, arguments: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From before ops are compiled, which may take seconds."""
    events: list[str] = []
    told: list[tuple[int, int]] = []
    image = ReduceOp.image

    @contextmanager
    def bar(what: str) -> Iterator[Callable[[int, int], None]]:
        events.append("bar")
        yield lambda done, total: told.append((done, total))

    def compiled(self: ReduceOp, *arguments: Any) -> nicemu.KernelImage:
        events.append("image")
        return image(self, *arguments)

    monkeypatch.setattr(module, "progress", bar)
    monkeypatch.setattr(ReduceOp, "image", compiled)
    assert bench(*arguments).exit_code == 0
    assert events[0] == "bar" and ("image" in events) == (arguments[0] != "insn")
    assert told == sorted(told) and told[0][0] == 0 and told[-1][0] < told[0][1]


def test_bench_refuses(tmp_path: Path) -> None:
    out = tmp_path / "x"
    for arguments, said in (
        (("op", "mean"), "'mean'"),
        (("op", "sum", "--dtype", "f17"), "f17"),
        (("op", "band"), "band"),
        (("op", "--vlen", 100), "vlen 100"),
        (("op", "--payload", 5000), "payload 5000"),
        (("op", "--rate", "nan"), "rate nan"),
        (("op", "--ports", 0), "ports 0"),
        (("op", "--json", out, "--csv", out), "name two files"),
        (("op", "--json", tmp_path), str(tmp_path)),
        (("op", "--plot", "a.gif"), ".png, .svg, .pdf"),
        (("op", "scalar_sum", "--machine", "pspin"), "which cores of pspin lack"),
        (("insn", "--sew", 3), "sew '3'"),
        (("insn", "--vlen", 64), "vlen 64"),
    ):
        refused(bench(*arguments), said)
    assert not out.exists()


# ---- the guide -----------------------------------------------------------------------------------


def test_the_tables_of_the_guide() -> None:
    """As its commands print them: ``python -m tests.page linerate`` makes the page."""
    printed = [(found["shown"], lines) for found, lines in page.run(LINERATE, {})]
    assert len(printed) == 5
    for shown, lines in printed:
        assert lines == shown


# ---- pictures ------------------------------------------------------------------------------------


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install 'nicemu[viz]'")
    for name, start in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")):
        asked = ("--payload", 64, "--payload", 1024, "--vlen", 128, "--vlen", 512)
        assert bench("op", "--plot", tmp_path / name, *asked).exit_code == 0
        assert (tmp_path / name).read_bytes().startswith(start)
    text = (tmp_path / "a.svg").read_text()
    for said in (
        "roofline, packets of 1,024 bytes, VLEN 512",
        "vector FP unit, 8 sums of 32 bits a cycle",
        "4x200 Gb/s of 16-bit elements",
        "sum bfloat16 wide, first4_finish",
        "payload taken in, packets of 1,024 bytes",
        "payload taken in, VLEN 512",
    ):
        assert said in text


def test_a_picture_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    refused(bench("op", "--plot", tmp_path / "a.png"), "a.png", "pip install 'nicemu[viz]'")
