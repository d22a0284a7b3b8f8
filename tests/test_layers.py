"""The layers: who may import whom, in Python and in C; and no state that is nobody's.

The tables here are the design.  A new module or header gets a row, at its level, or the test fails.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

import nicemu
import nicemu._nicemu

ROOT = Path(nicemu.__file__).parent
CSRC = Path(__file__).parent.parent / "csrc"

#: of `nicemu`, a module each
COMMANDS = ("allreduce", "op", "bench", "run", "disasm", "cache", "guide")
#: Python modules from the bottom to the top.  A module imports only from lines above its own.
LEVELS: tuple[tuple[str, ...], ...] = (
    ("_nicemu",),  # the C core
    ("errors", "order", "tables", "network.counters"),
    ("compiler", "ops", "device", "network", "collectives", "bench"),  # folders
    ("arguments",),
    ("dtypes", "device.machine", "_core", "files"),
    (
        "device.banks",
        "device.image",
        "device.elf",
        "gradients",
        "device.isa",
        "network.packet",
        "network.pcap",
        "network.relay",
        "network.topology",
    ),  # data
    ("compiler.target",),
    (
        "compiler.fingerprint",
        "compiler.irmath",
        "compiler.lines",
        "compiler.llvm",
        "ops.opmath",
        "device.schedule",
        "network.records",
        "device.words",
    ),
    ("compiler.clang", "network.timeline"),
    ("compiler.scalar",),
    ("compiler.kernels", "compiler.c_ir", "compiler.python_ir"),
    ("compiler.vectors", "ops.about", "ops.samples"),
    ("compiler.soft",),
    ("compiler.compile",),
    ("compiler.host", "ops.bounds", "compiler.assembly"),
    ("collectives.partials", "device.nic", "device.bare"),
    ("ops.flow",),
    ("ops.steady",),
    (
        "ops.cost",
        "ops.check",
        "device.listing",
        "ops.trace",
        "device.perf",
        "bench.op",
        "bench.insn",
        "bench.scalar",
    ),
    ("ops.op",),
    ("ops.builtin",),
    ("ops.opfile",),
    (
        "reference",
        "reference.scalar",
        "reference.arithmetic",
        "reference.entries",
        "reference.tree",
        "reference.error",
    ),
    ("collectives.algorithms", "collectives.numerics", "network.exchange"),
    ("network.fabric", "collectives.collective"),
    ("collectives.least",),
    ("collectives.communicator",),
    ("collectives.expected",),
    ("bench.collective", "bench.nic"),
    ("bench.plot",),
    ("commands",),
    ("commands.console", "commands.outputs", "commands.options"),
    ("commands.bench_collective",),
    *((f"commands.{name}",) for name in COMMANDS),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: i for i, names in enumerate(LEVELS) for name in names}
#: Installed packages -> the only modules that may import them (numpy: any).
OUTSIDE = {
    "click": {
        "cli",
        *(
            f"commands.{name}"
            for name in ("console", "outputs", "options", "bench_collective", *COMMANDS)
        ),
    },
    "elftools": {"compiler.assembly", "compiler.compile", "compiler.llvm"},
    "llvmlite": {"compiler.llvm", "compiler.python_ir"},
    "numba": {"compiler.python_ir"},
    "matplotlib": {"bench.plot"},
    "ml_dtypes": {"dtypes"},
    "rich": {"commands.console", "commands.guide"},
    "safetensors": {"gradients"},
}
#: The C core is behind one door; nic and exchange hand it descriptions of reductions, packet frames
#: and fabric trees; records reads what it puts down.
DOOR = {
    "_core",
    "device.nic",
    "network.packet",
    "network.records",
    "network.exchange",
    "network.fabric",
}
#: The reference shares nothing with what it is held against.
REFERENCE_MAY = {
    "errors",
    "dtypes",
    "order",
    *(m for level in LEVELS for m in level if m.startswith("reference")),
}


def modules() -> dict[str, Path]:
    """Module -> its file, all but the package itself."""
    out = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(p for p in parts if p != "__init__")
        if name:
            out[name] = path
    return out


def imports(path: Path) -> Iterator[str]:
    """Everything that a file imports, wherever in it; submodules of nicemu by their own name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}".removeprefix("nicemu.")
                whole = f"nicemu.{inner}" if inner in LEVEL else node.module
                yield str(whole)


def own(path: Path) -> set[str]:
    """The modules of nicemu that it imports."""
    return {i.removeprefix("nicemu.") for i in imports(path) if i.startswith("nicemu.")}


def test_every_module_has_a_level() -> None:
    assert set(modules()) | {"_nicemu"} == set(LEVEL)


@pytest.mark.parametrize("name", sorted(modules()))
def test_modules_import_from_below(name: str) -> None:
    for other in own(modules()[name]):
        below = LEVEL[other] < LEVEL[name]
        both = name.startswith("reference") and other.startswith("reference")
        assert below or both, f"{name} imports {other}"
        assert other != "_nicemu" or name in DOOR, f"{name} goes round the door"
    if name.startswith("reference"):
        assert own(modules()[name]) <= REFERENCE_MAY


@pytest.mark.parametrize("name", sorted(modules()))
def test_packages_are_imported_where_they_belong(name: str) -> None:
    for module in imports(modules()[name]):
        top = module.partition(".")[0]
        if top in sys.stdlib_module_names or top in ("nicemu", "numpy"):
            continue
        assert name in OUTSIDE.get(top, ()), f"{name} imports {module}"


#: what `import nicemu` and what its first uses may not pull in
HEAVY = ("numba", "llvmlite", "torch", "matplotlib", "rich", "click", "safetensors", "elftools")
STEPS = {
    "import nicemu": HEAVY,
    "import nicemu; dir(nicemu)": HEAVY,
    "import nicemu; nicemu.Nic()": HEAVY,
    "import nicemu.device.elf, nicemu.device.bare": HEAVY,
    "import nicemu.reference.tree, nicemu.reference.error": (
        *HEAVY,
        "nicemu._nicemu",
        "nicemu._core",
    ),
    "import nicemu; nicemu.kernel": HEAVY,  # numba and llvmlite when an image is built
    "import nicemu; nicemu.reduce_op(lambda a, b: a + b, name='f').lift(lambda x: x)": HEAVY,
    "import nicemu.cli": ("numba", "llvmlite", "torch", "matplotlib", "safetensors", "elftools"),
}


@pytest.mark.parametrize("code", STEPS)
def test_imports_are_light(code: str) -> None:
    script = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    assert "nicemu" in loaded and not loaded & set(STEPS[code])


def test_public_names() -> None:
    """Each name of __all__ is there, and nothing else is."""
    for name in nicemu.__all__:
        assert getattr(nicemu, name) is not None
    assert set(nicemu.__all__) == set(nicemu._WHERE)
    with pytest.raises(AttributeError):
        _ = nicemu.no_such_name  # type: ignore[attr-defined]


# ---- C ---------------------------------------------------------------------------------------

#: header -> the headers it may include; all else may not be included by headers at all
HEADERS: dict[str, set[str]] = {
    "base.h": set(),
    "nicemu.h": set(),
    "alu.h": {"base.h"},
    "fp.h": {"base.h"},
    "fp_estimate.h": {"fp.h"},
    "mem.h": {"base.h", "nicemu.h"},
    "packet.h": {"base.h", "nicemu.h"},
    "crc.h": {"base.h"},
    "hart.h": {"base.h", "fp.h", "mem.h", "nicemu.h"},
    "decode.h": {"hart.h"},
    "cores.h": {"hart.h"},
    "clock.h": {"base.h"},
    "link.h": {"base.h", "nicemu.h"},
    "buffer.h": {"base.h"},
    "stream.h": {"base.h"},
    "slot.h": {"packet.h"},
    "station.h": {"cores.h"},
    "group.h": {"buffer.h", "nicemu.h", "packet.h", "path.h"},
    "path.h": {"base.h"},
    "known.h": {"banks.h"},
    "trace.h": {"nicemu.h", "path.h"},
    "outlet.h": {"buffer.h", "group.h", "known.h", "packet.h", "path.h", "trace.h"},
    "host.h": {"outlet.h"},
    "chunk.h": {"device.h"},
    "device.h": {"outlet.h", "schedule.h", "slot.h", "station.h"},
    "fabric.h": {"clock.h", "device.h", "host.h", "link.h"},
    "simd.h": {"hart.h"},
    "log.h": {"hart.h"},
    "cost.h": {"decode.h"},
    "banks.h": {"base.h", "nicemu.h"},
    "booking.h": {"banks.h"},
    "inbound.h": {"base.h"},
    "schedule.h": {"booking.h", "cores.h", "inbound.h", "path.h"},
    "vwalk.h": {"exec_v.h"},
    "access.h": {"cost.h"},
    "timing.h": {"access.h"},
    "vloops.h": {"hart.h"},
    "vloops_int.h": {"vloops.h"},
    "vloops_fp.h": {"fp_estimate.h", "vloops_int.h"},
    "vloops_x86.h": {"vloops_fp.h"},
    "vloops_table.h": set(),
    "fp_env.h": {"simd.h", "vloops.h"},
    "exec_v.h": {"vloops.h"},
}
#: source -> what it may include besides its own header.  fp, mem, packet, clock, link and slot are
#: leaves; bodies of instructions see the hart, and only those that reach other harts see cores.h.
SOURCES: dict[str, set[str]] = {
    "fp.c": {"fp.h"},
    "mem.c": {"mem.h"},
    "packet.c": {"crc.h", "packet.h"},
    "crc.c": {"crc.h"},
    "decode.c": {"decode.h", "vloops.h"},
    "disasm.c": {"cores.h", "decode.h"},
    "csr.c": {"decode.h", "fp_env.h"},
    "run.c": {"cores.h", "decode.h", "fp_env.h", "log.h", "timing.h"},
    "cost.c": {"cost.h"},
    "banks.c": {"banks.h"},
    "booking.c": {"booking.h"},
    "known.c": {"known.h"},
    "inbound.c": {"inbound.h"},
    "schedule.c": {"schedule.h"},
    "access.c": {"access.h", "vwalk.h"},
    "timing.c": {"timing.h"},
    "log.c": {"cores.h", "decode.h", "exec_v.h", "fp_env.h", "log.h"},
    "cores.c": {"cores.h", "decode.h", "simd.h", "timing.h"},
    "nic.c": {"station.h"},
    "station.c": {"station.h"},
    "clock.c": {"clock.h"},
    "link.c": {"link.h", "path.h"},
    "slot.c": {"slot.h"},
    "trace.c": {"trace.h"},
    "group.c": {"group.h"},
    "host.c": {"host.h", "stream.h"},
    "chunk.c": {"chunk.h"},
    "device.c": {"chunk.h"},
    "fabric.c": {"fabric.h", "stream.h"},
    "party.c": {"fabric.h"},
    "exchange.c": {"fabric.h"},
    "relay.c": {"fabric.h"},
    "failure.c": {"fabric.h"},
    "digest.c": {"fabric.h"},
    "simd.c": {"simd.h", "vloops.h"},
    "exec_i.c": {"alu.h", "hart.h"},
    "exec_fuse.c": {"alu.h", "decode.h"},
    "exec_mem.c": {"cores.h", "timing.h"},
    "exec_sys.c": {"hart.h"},
    "exec_f.c": {"hart.h"},
    "exec_f_avx2.c": {"simd.h", "vloops.h"},
    "exec_v.c": {"exec_v.h", "decode.h"},
    "exec_vperm.c": {"exec_v.h"},
    "exec_vred.c": {"exec_v.h"},
    "exec_vmem.c": {"exec_v.h"},
    "exec_vmem_each.c": {"vwalk.h"},
    "exec_vmem_x86.c": {"exec_v.h", "simd.h"},
    "vloops_portable.c": {"vloops_fp.h", "vloops_table.h"},
    "vleaf_x86.h": {"exec_v.h"},
    "vloops_avx2.c": {"vloops_x86.h", "vloops_fp.h", "vloops_table.h", "vleaf_x86.h", "simd.h"},
    "vloops_avx512.c": {"vloops_x86.h", "vloops_fp.h", "vloops_table.h", "vleaf_x86.h", "simd.h"},
}
#: whole objects are made and freed here; all else takes memory from them
ALLOCATE = {
    "booking.c", "exchange.c", "fabric.c", "known.c", "party.c", "relay.c", "trace.c",
}  # fmt: skip
SYSTEM_HEADERS: dict[str, set[str]] = {
    "base.h": {"stdbool.h", "stddef.h", "stdint.h", "string.h"},
    "nicemu.h": {"stddef.h", "stdint.h"},
    **{name: {"stdlib.h"} for name in ALLOCATE},
    "banks.c": {"stdlib.h"},  # qsort
    "cores.c": {"sys/mman.h"},  # memory of harts
    "disasm.c": {"stdio.h"},  # snprintf
    "fp_env.h": {"xmmintrin.h"},
    "stream.h": {"emmintrin.h"},
    "simd.c": {"cpuid.h"},
    "crc.c": {"immintrin.h"},
    "exec_f_avx2.c": {"immintrin.h"},
    "exec_vmem_x86.c": {"immintrin.h"},
    "vloops_avx2.c": {"immintrin.h"},
    "vloops_avx512.c": {"immintrin.h"},
}


def includes(name: str) -> set[str]:
    found = re.findall(r'^#include "(.+)"', (CSRC / name).read_text(), re.M)
    return {i for i in found if i.endswith(".h")}


def test_every_c_file_has_a_row() -> None:
    files = {p.name for p in CSRC.iterdir() if p.suffix in (".c", ".h")}
    assert files == {*HEADERS, *SOURCES}


@pytest.mark.parametrize("name", [*HEADERS, *SOURCES])
def test_c_includes(name: str) -> None:
    assert includes(name) <= {**HEADERS, **SOURCES}[name]
    system = set(re.findall(r"^#include <(.+)>", (CSRC / name).read_text(), re.M))
    assert system <= SYSTEM_HEADERS.get(name, set())


def test_headers_form_no_circle() -> None:
    done: set[str] = set()
    while left := set(HEADERS) - done:
        free = {h for h in left if HEADERS[h] <= done}
        assert free, left
        done |= free


@pytest.mark.parametrize("name", [*HEADERS, *SOURCES])
def test_c_has_no_output_and_no_way_out(name: str) -> None:
    text = re.sub(r"/\*.*?\*/", "", (CSRC / name).read_text(), flags=re.S)
    for word in ("printf", "fprintf", "puts", "perror", "abort", "exit", "assert", "getenv"):
        assert not re.search(rf"\b{word}\(", text), word
    for word in ("malloc", "calloc", "realloc", "aligned_alloc", "free"):
        assert name in ALLOCATE or not re.search(rf"\b{word}\(", text), word
    assert not re.search(r"\b(_Thread_local|__thread|goto|setjmp|errno)\b", text)


def test_the_header_is_the_cdef() -> None:
    """Functions of nicemu.h are all there are: each has a definition, and Python can call it."""
    header = re.sub(r"/\*.*?\*/", "", (CSRC / "nicemu.h").read_text(), flags=re.S)
    declared = set(re.findall(r"\b(nicemu_\w+)\(", header))
    assert declared and all(hasattr(nicemu._nicemu.lib, name) for name in declared)
    defined = set()
    for name in SOURCES:
        defined |= set(re.findall(r"^[\w *]*\b(nicemu_\w+)\(", (CSRC / name).read_text(), re.M))
    assert defined == declared


#: from the C run-time's start-up code, which also finds out what the CPU can do, and from cffi
NOT_OURS = {"completed.0", "__dso_handle", "__TMC_END__", "__cpu_model", "__cpu_features2"}


def test_no_mutable_state_in_the_extension() -> None:
    """What lies in its .data and .bss belongs to cffi or the C run-time; hence two devices, or two
    threads, never meet.  (.data.rel.ro is read-only once loaded.)"""
    with Path(nicemu._nicemu.__file__).open("rb") as file:
        elf = ELFFile(file)
        table = elf.get_section_by_name(".symtab")
        if table is None:
            pytest.skip("the extension is stripped")
        symbols = list(table.iter_symbols())
        if any(s.name.startswith("__asan") for s in symbols):
            pytest.skip("sanitizers add their own")
        writable = set()
        for s in symbols:
            index = s["st_shndx"]
            if s["st_info"]["type"] not in ("STT_OBJECT", "STT_COMMON", "STT_TLS"):
                continue
            section = elf.get_section(index).name if isinstance(index, int) else str(index)
            if section in (".data", ".bss", ".tdata", ".tbss", "SHN_COMMON"):
                writable.add(s.name)
        assert elf.get_section_by_name(".data.rel.ro") is not None
        assert "insn_rows" in {s.name for s in symbols}
    assert {n for n in writable if not n.startswith("_cffi_")} <= NOT_OURS
