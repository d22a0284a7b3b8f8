"""Cycles counted here beside cycles counted on open RTL: ``python -m tests.rtl FOLDER``.

FOLDER holds ``scalar.csv`` and ``kernels/*.S`` (on CV32E40P, by FPU latency), ``multicore.csv``
(such cores on one scratchpad, by banks and cores) and ``vector.csv`` (sequences on Spatz, by memory
latency), all with cycles per iteration.  The kernels' text is assembled for RV64 by clang (PyPI
``ziglang``); the sequences are made here from their names.
Exit status 1: a scalar kernel is not equal, or one of the others is further off than 5 %.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from nicemu._core import ACCESS, FAULT, Cores, R, W, X
from nicemu.device.banks import waits
from nicemu.device.elf import load_elf
from nicemu.device.isa import extensions
from nicemu.device.machine import MACHINES, Machine
from tests.assemble import assemble
from tests.encode import image

CODE, RETURN, DATA, PAGE = 0x10000, 0x80000, 0x100000, 4096
EBREAK = 0x00100073
UNITS_ON = 3 << 13 | 3 << 9  # mstatus.FS, VS
BREAKPOINT = 3
#: iterations of the two runs whose difference is taken: the first for kernels whose iterations are
#: alike; the files do not say which were used for others, so the instructions decide
ITERATIONS = ((3, 5), (100, 1124))
TOLERANCE = {"scalar": 0.0, "multicore": 0.05, "vector": 0.05}
ROUNDED = 1e-4  # the files' six digits


@dataclass(frozen=True)
class Row:
    """A kernel or sequence on a configuration: cycles per iteration here and on RTL."""

    kind: str
    configuration: str
    name: str
    ours: float
    rtl: float

    @property
    def error(self) -> float:
        """Relative."""
        return self.ours / self.rtl - 1

    @property
    def good(self) -> bool:
        """Within what is asked for."""
        return abs(self.error) <= TOLERANCE[self.kind] + ROUNDED / self.rtl


def hart(machine: Machine, code: bytes, at: int = CODE) -> Cores:
    """One core of a machine with code that returns to a breakpoint, and 4 pages of data."""
    on = None if machine.isa is None else extensions(machine.isa, machine.vlen)
    cores = Cores(1, machine.vlen, extensions=on)
    cores.map(CODE, RETURN - CODE, R | W | X)
    cores.map(RETURN, 64, R | X)
    cores.map(DATA, 4 * PAGE, R | W)
    cores.write(at, code)
    cores.write(RETURN, image([EBREAK]))
    cores.set_csr("mstatus", UNITS_ON)
    cores.x()[1] = RETURN
    cores.set_pc(at)
    cores.start_clock(**asdict(machine.timing))
    return cores


def finish(cores: Cores) -> tuple[int, int]:
    """Run to the breakpoint: cycles and instructions since the counters were cleared."""
    stop = cores.run(1 << 40)
    assert (stop.reason, stop.cause) == (FAULT, BREAKPOINT), stop
    return cores.cycles().total, cores.counters().instructions


# ---- scalar ----------------------------------------------------------------------------------


def assembled(source: Path, folder: Path) -> tuple[bytes, dict[str, int]]:
    """Code of a kernel's text and its symbols; it begins at CODE."""
    out = folder / f"{source.stem}.elf"
    subprocess.run(
        [
            *(sys.executable, "-m", "ziglang", "cc", "-target", "riscv64-freestanding-none"),
            *("-mcpu=generic_rv64+m+a+f+d+c+zicsr+zifencei", "-nostdlib", "-static"),
            *("-Wl,-e,kernel", f"-Wl,--image-base={CODE}", str(source), "-o", str(out)),
        ],
        check=True,
    )
    elf = load_elf(out)
    code = bytearray(RETURN - CODE)
    for segment in elf.segments:
        memoryview(code)[segment.address - CODE :][: len(segment.data)] = segment.data
    return bytes(code), dict(elf.symbols)


def words() -> bytes:
    """What pages A and B hold, by the kernels' contract."""
    x, out = 12345, []
    for _ in range(2 * PAGE // 4):
        x = (x * 1103515245 + 12345) & 0xFFFFFFFF
        out.append(x)
    return np.array(out, np.uint32).tobytes()


def kernel(machine: Machine, code: bytes, entry: int, n: int) -> tuple[int, int, int]:
    """Cycles, instructions and check value of n iterations."""
    cores = hart(machine, code)
    cores.write(DATA, words())
    cores.set_pc(entry)
    cores.x()[10:14] = n, DATA, DATA + PAGE, DATA + 2 * PAGE
    cycles, instructions = finish(cores)
    return cycles, instructions, int(cores.x()[10]) & 0xFFFFFFFF


def core_of(configuration: str) -> Machine:
    """The machine of a configuration of scalar.csv."""
    machine = MACHINES["cv32e40p"]
    latency = re.fullmatch(r"cv32e40p-(?:nofpu|fpu-lat(\d))", configuration)
    assert latency, f"{configuration}: no such configuration"
    return replace(machine, timing=replace(machine.timing, fp_latency=int(latency[1] or 0)))


def scalar(folder: Path) -> Iterator[Row]:
    """Every row of scalar.csv."""
    with tempfile.TemporaryDirectory() as temporary:
        programs: dict[str, tuple[bytes, dict[str, int]]] = {}
        for line in rows(folder / "scalar.csv"):
            name, wanted = line["kernel"], float(line["instructions_per_iteration"])
            if name not in programs:
                source = folder / "kernels" / f"{name}.S"
                programs[name] = assembled(source, Path(temporary))
            code, symbols = programs[name]
            machine, program = core_of(line["core"]), (code, symbols["kernel"])
            check = kernel(machine, *program, 3)[2]
            assert check == int(line["check_value_n3"], 16), f"{name}: check value {check:#x}"
            for few, many in ITERATIONS:
                a, b = kernel(machine, *program, few), kernel(machine, *program, many)
                cycles, instructions = ((b[i] - a[i]) / (many - few) for i in (0, 1))
                if abs(instructions - wanted) < ROUNDED:
                    break
            rtl = float(line["cycles_per_iteration"])
            yield Row("scalar", line["core"], name, cycles, rtl)


def rows(path: Path) -> list[dict[str, str]]:
    """A csv file; none when there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# ---- several cores ---------------------------------------------------------------------------

SCRATCHPAD = 1 << 16  # bytes from 0 on, and from DATA on: where the kernels' accesses are
#: a plain store there is an atomic in that scratchpad
ALIAS = 0x400000
ROOM = 1 << 20  # accesses of a core


def recorded(
    machine: Machine, program: tuple[bytes, dict[str, int]], core: int, n: int
) -> tuple[int, np.ndarray]:
    """Cycles of n iterations on a core by itself, and its accesses."""
    code, symbols = program
    cores = hart(machine, code)
    cores.map(0, CODE, R | W)
    cores.map(DATA + 4 * PAGE, SCRATCHPAD, R | W)
    cores.map(ALIAS, SCRATCHPAD, R | W)
    cores.x()[10:15] = n, DATA, DATA + PAGE, DATA + 2 * PAGE, core
    cores.set_pc(symbols["setup"])
    finish(cores)
    cores.x()[1] = RETURN
    cores.set_pc(symbols["kernel"])
    cores.clear_counters()
    room = np.zeros(ROOM, ACCESS)
    cores.record_accesses(room)
    cycles, _ = finish(cores)
    assert cores.accesses() <= ROOM
    accesses = room[: cores.accesses()]
    accesses["atomic"] |= accesses["address"] >= ALIAS
    return cycles, accesses


def multicore(folder: Path) -> Iterator[Row]:
    """Every row of multicore.csv: the mean of the cores."""
    machine = MACHINES["cv32e40p"]
    runs: dict[tuple[str, int], list[tuple[int, np.ndarray]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for line in rows(folder / "multicore.csv"):
            name, n = line["kernel"], int(line["iterations"])
            active, banks = int(line["active_cores"]), int(line["banks"])
            if (name, n) not in runs:
                program = assembled(folder / "kernels" / f"{name}.S", Path(temporary))
                runs[name, n] = [recorded(machine, program, core, n) for core in range(8)]
            alone = runs[name, n][:active]
            lost = waits([accesses for _, accesses in alone], replace(machine, banks=banks))
            ours = sum(cycles for cycles, _ in alone) + sum(lost)
            rtl = float(line["cyc_per_it_mean"])
            yield Row("multicore", f"{active} on {banks} banks", name, ours / active / n, rtl)


# ---- vector ----------------------------------------------------------------------------------

#: sequences by name, with the element width as {w}, twice that as {ww}, a, b, c, d register groups
LOOP = ("vle{w}.v {a}, (a1)", "vle{w}.v {b}, (a2)", "vfadd.vv {c}, {a}, {b}", "vse{w}.v {c}, (a3)")
OTHER_LOOP = tuple(re.sub("{[abc]}", lambda m: {"{a}": "{d}", "{b}": "{e}", "{c}": "{f}"}[m[0]], i)
                   for i in LOOP)  # fmt: skip
SLOT = "addi zero, zero, 0"
SEQUENCES: dict[str, tuple[str, ...]] = {
    "vle": ("vle{w}.v {a}, (a1)", "vle{w}.v {b}, (a2)"),
    "vse": ("vse{w}.v {a}, (a1)", "vse{w}.v {b}, (a2)"),
    "vlse{w}": ("vlse{w}.v {a}, (a1), a4",),
    "vsse{w}": ("vsse{w}.v {a}, (a1), a4",),
    "vfadd_loop": LOOP,
    "vfadd_loop_sc": ("vsetvli a5, zero, {vtype}", *LOOP, *[SLOT] * 6),
    "vfadd_loop_2b": (*LOOP, *OTHER_LOOP),
    "vfwred_loop": (
        "vle{w}.v {b}, (a1)",
        "vle{ww}.v {wa}, (a2)",
        "vfwadd.wv {wb}, {wa}, {b}",
        "vse{ww}.v {wb}, (a3)",
    ),
    "vfncvt": ("vfncvt.f.f.w {b}, {wa}",),
    "vfwcvt": ("vfwcvt.f.f.v {wa}, {b}",),
    "fp_int_alt": ("vfadd.vv {a}, {b}, {c}", "vadd.vv {d}, {b}, {c}"),
    "vsetvli": ("vsetvli a5, zero, {vtype}",),
}
#: groups that no sequence with a variant uses twice
INDEPENDENT = ("{m} {a}, {b}, {c}", "{m} {d}, {b}, {c}")
DEPENDENT = ("{m} {a}, {a}, {b}",)


def sequence(name: str, sew: int, lmul: int) -> list[str]:
    """Instructions of one iteration."""
    # the register file has four groups of 8 registers, eight of 4 ...
    group = [f"v{i * lmul % 32}" for i in range(1, 7)]
    wide = [f"v{i}" for i in ((8, 16) if lmul == 4 else (4 * lmul, 6 * lmul))]
    names = dict(zip("abcdef", group, strict=True)) | {"wa": wide[0], "wb": wide[1]}
    if lmul < 8:
        names["b"] = "v0" if lmul == 4 else group[1]
    names |= {"w": str(sew), "ww": str(2 * sew), "vtype": f"e{sew},m{lmul},ta,ma"}
    known = {key.format(**names): value for key, value in SEQUENCES.items()}
    return [line.format(**names) for line in known.get(name) or _regular(name, names)]


def _regular(name: str, names: dict[str, str]) -> tuple[str, ...]:
    """A sequence named after one instruction: two independent ones, or one."""
    mnemonic, _, variant = name.partition("_")
    if variant in ("vv", "wv"):  # widening
        source = "{wb}" if variant == "wv" else "{b}"
        return (f"{mnemonic}.{variant} {{wa}}, {source}, {{b}}",)
    if "red" in mnemonic:
        return (f"{mnemonic}.vs {{a}}, {{b}}, {{c}}",)
    if mnemonic.startswith("vslide"):
        return (f"{mnemonic}.vi {{a}}, {{b}}, 1",)
    if mnemonic.startswith(("vfw", "vw")):
        return (f"{mnemonic}.vv {{wa}}, {{b}}, {{b}}",)
    if mnemonic.startswith(("vfmacc", "vmacc")):
        lines = INDEPENDENT if variant == "indep" else INDEPENDENT[:1]
    else:
        lines = DEPENDENT if variant == "dep" else INDEPENDENT
    return tuple(line.replace("{m}", f"{mnemonic}.vv") for line in lines)


def repeated(machine: Machine, body: Sequence[str], vtype: str, n: int) -> int:
    """Cycles of a sequence n times over, one instruction after the other, at vl = VLMAX."""
    code = image([assemble(line) for line in body])
    head = image([assemble(f"vsetvli a5, zero, {vtype}")])
    cores = hart(machine, head + code * n + image([EBREAK]))
    cores.x()[11:15] = DATA, DATA + PAGE, DATA + 2 * PAGE, 16
    cores.run(1)
    cores.clear_counters()
    return finish(cores)[0]


def vector(folder: Path) -> Iterator[Row]:
    """Every row of vector.csv."""
    machine = MACHINES["spatz"]
    few, many = 16, 32
    for line in rows(folder / "vector.csv"):
        found = re.fullmatch(r"(\w+?)(?:_e(\d+)m(\d))?", line["kernel"])
        latency = re.fullmatch(r"spatz-default-memlat(\d+)", line["config"])
        assert found and latency, f"{line['config']} {line['kernel']}: no such sequence"
        sew, lmul = int(found[2] or 16), int(found[3] or 1)
        body = sequence(found[1], sew, lmul)
        timing = replace(machine.timing, memory_latency=int(latency[1]))
        run = replace(machine, timing=timing)
        vtype = f"e{sew},m{lmul},ta,ma"
        a, b = (repeated(run, body, vtype, n) for n in (few, many))
        iterations = (many - few) * (2 if found[1].endswith("_2b") else 1)
        rtl = float(line["cycles_per_iteration"])
        yield Row("vector", line["config"], line["kernel"], (b - a) / iterations, rtl)


def main() -> int:
    """Print the tables."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        print("usage: python -m tests.rtl FOLDER, which holds scalar.csv, vector.csv and kernels/")
        return 2
    folder, good = Path(sys.argv[1]), True
    kinds = (("scalar", scalar), ("multicore", multicore), ("vector", vector))
    for kind, measured in kinds:
        table = list(measured(folder))
        print(f"{kind}: {sum(r.good for r in table)} of {len(table)} within {TOLERANCE[kind]:.0%}")
        for r in table:
            if abs(r.ours - r.rtl) > ROUNDED:
                print(
                    f"  {r.configuration:22} {r.name:24} {r.ours:9.6g} {r.rtl:9.6g} {r.error:+.1%}"
                )
        good &= all(r.good for r in table)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
