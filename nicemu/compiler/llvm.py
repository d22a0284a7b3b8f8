"""The door to LLVM: IR as text in; IR as text, a RISC-V object, or functions of the host out.

Owns: the target of the cores, the optimiser's settings, and llvmlite, which it imports when first
used.  What the IR computes is the others' affair.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from typing import Any

from nicemu.compiler.target import EVERY, Target
from nicemu.errors import ImageError

__all__ = ["RECIPE", "emit", "emit_vectors", "installed", "on_host", "optimise", "undefined"]

TRIPLE = "riscv64-unknown-elf"
TARGET = {
    "cpu": "generic-rv64",
    "opt": 3,
    "reloc": "static",
    "codemodel": "medium",
}
SCALAR = {"loop_vectorization": False, "slp_vectorization": False, "loop_unrolling": True}
KERNEL = {"loop_vectorization": True, "slp_vectorization": False, "loop_unrolling": False}
PLAIN = {"loop_vectorization": False, "slp_vectorization": False, "loop_unrolling": False}
VECTORS = ("instruction_combine", "simplify_cfg")  # passes for loops that are vectors already
# constants are built by instructions, not loaded: an image has no data.  Only the RISC-V back end
# knows these options, so the user's numba does not see them.
OPTIONS = ("-riscv-lower-fpimm-cost=16", "-riscv-max-build-ints-cost=16")
# an instruction of no line is not taken for one of the line before it; code is the same, and of the
# user's numba only what @njit(debug=True) tells a debugger
LINES = "-use-unknown-locations=Enable"
_LOCK = threading.Lock()  # llvmlite parses into one context that all threads share


def installed(package: str) -> str:
    """Its version; "none" where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


#: everything about LLVM that code depends on
RECIPE = (TRIPLE, TARGET, OPTIONS, SCALAR, KERNEL, PLAIN, VECTORS, installed("llvmlite"))


@cache
def _llvm() -> Any:
    try:
        import llvmlite.binding as llvm
    except ImportError as error:
        raise ImageError(f"llvmlite cannot be imported ({error}): pip install llvmlite") from error
    for option in (*OPTIONS, LINES):
        llvm.set_option("nicemu", option)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm


def _linked(llvm: Any, texts: Iterable[str], machine: Any, what: str) -> Any:
    """One module of several; what they have in common must be defined in one of them."""
    linked = None
    for text in texts:
        try:
            module = llvm.parse_assembly(text)
            module.triple = machine.triple
            module.data_layout = str(machine.target_data)
            module.verify()
        except RuntimeError as error:
            line = " ".join(str(error).split())
            raise ImageError(f"{what}: its IR is not valid: {line}") from error
        if linked is None:
            linked = module
        else:
            linked.link_in(module)
    return linked


def _run(llvm: Any, module: Any, machine: Any, settings: dict[str, bool]) -> None:
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    for name, value in settings.items():
        setattr(options, name, value)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)


def _cores(llvm: Any, target: Target) -> Any:
    triple = llvm.Target.from_triple(TRIPLE)
    return triple.create_target_machine(features=target.features, **TARGET)


def _prepared(llvm: Any, machine: Any, texts: Iterable[str], keep: Iterable[str], what: str) -> Any:
    """Several modules linked for a machine, all but the functions to keep internal."""
    module = _linked(llvm, texts, machine, what)
    kept = set(keep)
    for function in module.functions:
        if not function.is_declaration and function.name not in kept:
            function.linkage = "internal"
            function.add_function_attribute("alwaysinline")
    for variable in module.global_variables:
        if not variable.is_declaration:
            variable.linkage = "internal"
    return module


def _for_cores(
    texts: Iterable[str],
    keep: Iterable[str],
    what: str,
    settings: dict[str, bool],
    target: Target,
) -> tuple[Any, Any]:
    """The module that texts are together, after the passes, and its machine."""
    llvm = _llvm()
    machine = _cores(llvm, target)
    module = _prepared(llvm, machine, texts, keep, what)
    _run(llvm, module, machine, settings)
    return module, machine


def optimise(texts: Iterable[str], keep: Iterable[str], what: str) -> str:
    """Modules linked, inlined into the functions to keep, and simplified; no vectors.

    It is the same for all cores: their bits are.

    Raises:
        ImageError: a module is not valid IR.
    """
    with _LOCK:
        module, _ = _for_cores(texts, keep, what, SCALAR, EVERY)
        return str(module)


def emit(texts: Iterable[str], keep: Iterable[str], what: str, target: Target) -> bytes:
    """A RISC-V ELF object of modules, with vectors where the cores have them.

    Raises:
        ImageError: a module is not valid IR.
    """
    with _LOCK:
        settings = KERNEL if target.vectors else PLAIN
        module, machine = _for_cores(texts, keep, what, settings, target)
        return bytes(machine.emit_object(module))


def emit_vectors(text: str, what: str, target: Target) -> bytes:
    """A RISC-V ELF object of a module that stands alone and whose loops are over vectors already.

    Raises:
        ImageError: the module is not valid IR.
    """
    llvm = _llvm()
    with _LOCK:
        machine = _cores(llvm, target)
        module = _linked(llvm, [text], machine, what)
        passes = llvm.create_new_module_pass_manager()
        for name in VECTORS:
            getattr(passes, f"add_{name}_pass")()
        options = llvm.create_pipeline_tuning_options()
        passes.run(module, llvm.create_pass_builder(machine, options))
        return bytes(machine.emit_object(module))


#: Of an x86 host's features those that code for it may use.  All that they do follows IEEE 754;
#: what later ones do does not: avx512bf16 and avxneconvert take subnormal numbers for zeros when
#: they round to bfloat16, and bits would depend on the host.
HOST_FEATURES = (
    "sse", "sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "lzcnt", "bmi", "bmi2", "avx",
    "avx2", "fma", "f16c",
)  # fmt: skip


def _host(llvm: Any) -> Any:
    """The target machine of this process."""
    triple, cpu = llvm.get_process_triple(), llvm.get_host_cpu_name()
    features = llvm.get_host_cpu_features()
    if triple.startswith("x86_64"):
        cpu = "x86-64"
        features = type(features)({name: features.get(name, False) for name in HOST_FEATURES})
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features.flatten(), opt=2, reloc="pic", codemodel="jitdefault", jit=True
    )


def on_host(texts: Iterable[str], keep: Iterable[str], what: str) -> tuple[Any, dict[str, int]]:
    """Modules compiled for the host, without vectors.

    Returns:
        What must outlive the functions, and the address of each that is kept.

    Raises:
        ImageError: a module is not valid IR, or calls what this process does not have.
    """
    llvm = _llvm()
    kept = list(keep)
    with _LOCK:
        machine = _host(llvm)
        module = _prepared(llvm, machine, texts, kept, what)
        _run(llvm, module, machine, SCALAR)
        elf = machine.emit_object(module)
        for name in undefined(elf):  # LLVM would end the process
            if llvm.address_of_symbol(name) is None:
                raise ImageError(
                    f"{what}: its code for the host needs {name}, which is not there: compare on "
                    "cores, with Nic.reduce"
                )
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        engine.add_object_file(llvm.ObjectFileRef.from_data(elf))
        engine.finalize_object()
        return engine, {name: engine.get_function_address(name) for name in kept}


_TABLE = "_GLOBAL_OFFSET_TABLE_"  # which the loader makes


def undefined(elf: bytes) -> list[str]:
    """Symbols that an object needs and does not define."""
    from elftools.elf.elffile import ELFFile

    file: Any = ELFFile(io.BytesIO(elf))
    symbols = file.get_section_by_name(".symtab").iter_symbols()
    return [s.name for s in symbols if s["st_shndx"] == "SHN_UNDEF" and s.name not in ("", _TABLE)]
