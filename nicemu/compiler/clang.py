"""The door to clang, as PyPI's ziglang carries it: C to LLVM IR, assembly to a RISC-V object.

Owns: the program, its flags, the bounds within which it runs, and what it says as data.  It sees
only the files that it is handed.  What C or assembly an op consists of is the front ends' affair.
"""

from __future__ import annotations

import re
import resource
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from nicemu.compiler.llvm import installed
from nicemu.errors import ImageError, OpError

__all__ = ["RECIPE", "Diagnostic", "assemble", "compile_c", "included"]

_TARGET = (
    "--target=riscv64-unknown-elf",
    "-march=rv64gcv_zfh_zvfh_zfbfmin_zvfbfmin_zvfbfwma_zba_zbb_zbs_zicond",
)
_PLAIN = ("-fno-caret-diagnostics", "-fno-color-diagnostics", "-ferror-limit=1")
_TRAPS = "array-bounds,integer-divide-by-zero,unreachable"
_C = (
    *_TARGET,
    *_PLAIN,
    *("-x", "c", "-std=c17", "-nostdinc", "-ffreestanding", "-fno-builtin"),
    *("-S", "-emit-llvm", "-g", "-O0", "-Xclang", "-disable-O0-optnone"),
    # what C leaves open gets the one meaning that guide/authoring.md states
    *("-ffp-contract=off", "-fno-math-errno", "-fno-strict-float-cast-overflow"),
    *("-fwrapv", "-fno-finite-loops", "-fno-strict-aliasing", "-fno-delete-null-pointer-checks"),
    "-ftrivial-auto-var-init=zero",
    f"-fsanitize={_TRAPS}", f"-fsanitize-trap={_TRAPS}",
    *("-Wdouble-promotion", "-Wno-trigraphs"),
    *(
        f"-Werror={name}"
        for name in ("array-bounds", "date-time", "division-by-zero", "return-type",
                     "shift-count-negative", "shift-count-overflow", "sometimes-uninitialized",
                     "uninitialized", "vla")
    ),
)  # fmt: skip
# -g: lines beside instructions; without relaxation, branches are resolved here
_ASSEMBLY = (*_TARGET, *_PLAIN, "-x", "assembler", "-c", "-g", "-mno-relax")
#: everything about clang that code depends on
RECIPE = (_C, _ASSEMBLY, installed("ziglang"))

MOST_SOURCE = 1 << 20  # bytes
_SECONDS = 30
_MEMORY = 2 << 30  # bytes
_OUTPUT = 64 << 20  # bytes


@dataclass(frozen=True)
class Diagnostic:
    """What clang says of a line.

    Attributes:
        file: name of the file.
        line: number of the line, from 1; 0: none.
        kind: "error" or "warning".
        text: what it says.
    """

    file: str
    line: int
    kind: str
    text: str


_DIAGNOSTIC = re.compile(r"^(?:([^:\n]*):(\d+):(?:\d+:)? )?(?:fatal )?(error|warning): (.*)$", re.M)


def _program() -> Path:
    spec = find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise ImageError("ops in C and assembly need clang: pip install 'nicemu[c]'")
    return Path(spec.origin).with_name("zig")


def _run(
    flags: Sequence[str], files: Mapping[str, str], main: str, what: str
) -> tuple[bytes, list[Diagnostic]]:
    """What clang makes of the file main, b"" after an error; and what it says."""
    program = _program()
    with tempfile.TemporaryDirectory(prefix="nicemu-") as folder:
        for name, text in files.items():
            try:
                data = text.encode()
            except UnicodeEncodeError as error:
                raise OpError(f"{what}: its source is not Unicode ({error.reason})") from None
            if len(data) > MOST_SOURCE or b"\0" in data:
                raise OpError(
                    f"{what}: its source has {len(data)} bytes: use at most {MOST_SOURCE}, none 0"
                )
            Path(folder, name).write_bytes(data)
        said, out = Path(folder, "said.txt"), Path(folder, "out.bin")
        read = Path(folder, "read.d")
        command = [*(str(program), "clang", *flags, "-MD", "-MF", read.name, main, "-o", out.name)]
        with said.open("wb") as stderr:
            process = subprocess.Popen(
                command, cwd=folder, env={"LC_ALL": "C"}, stdin=subprocess.DEVNULL, stdout=stderr,
                stderr=stderr,
            )  # fmt: skip
            try:
                for limit, most in (
                    (resource.RLIMIT_AS, _MEMORY),
                    (resource.RLIMIT_FSIZE, _OUTPUT),
                ):
                    resource.prlimit(process.pid, limit, (most, most))
                code = process.wait(_SECONDS)
            except ProcessLookupError:
                code = process.wait()
            except subprocess.TimeoutExpired:
                raise OpError(
                    f"{what}: compiling takes over {_SECONDS} s: use less of macros and nesting"
                ) from None
            finally:
                process.kill()
                process.wait()
        text = said.read_text("utf-8", "replace")
        diagnostics = [
            Diagnostic(file or "", int(line or 0), kind, " ".join(words.split()))
            for file, line, kind, words in _DIAGNOSTIC.findall(text)
        ]
        failed = any(d.kind == "error" for d in diagnostics)
        if code and not failed:
            raise OpError(f"{what}: clang gave up (exit code {code}): use less nesting and macros")
        if failed:
            return b"", diagnostics
        _check_read(read.read_text("utf-8", "replace") if read.exists() else "", files, what)
        return out.read_bytes(), diagnostics


def _check_read(rule: str, files: Mapping[str, str], what: str) -> None:
    """An op is its source: nothing else of this machine went into it."""
    names = re.split(r"(?<!\\)\s+", rule.replace("\\\n", " ").strip())[1:]
    for name in names:
        if name and name not in files:
            raise OpError(included(what, name))


def included(what: str, file: str) -> str:
    """What the author of a source is told that includes a file."""
    return f"{what}: it includes {file}: write what it needs into its source"


def compile_c(files: Mapping[str, str], main: str, what: str) -> tuple[str, list[Diagnostic]]:
    """LLVM IR of a C file, not optimised, with lines and types.

    Args:
        files: name -> text of all files that it may include.
        main: which is compiled; "prelude.h" is included before it.
        what: it is, for messages.

    Returns:
        The IR, "" after an error; and what clang says.

    Raises:
        OpError: too large for clang's bounds, or it includes other files.
        ImageError: ziglang is not installed.
    """
    data, said = _run((*_C, "-include", "prelude.h"), files, main, what)
    return data.decode("utf-8", "replace"), said


def assemble(source: str, what: str) -> tuple[bytes, list[Diagnostic]]:
    """An ELF object of assembly, with lines; b"" after an error; and what clang says.

    Raises:
        OpError: too large for clang's bounds.
        ImageError: ziglang is not installed.
    """
    return _run(_ASSEMBLY, {"op.s": source}, "op.s", what)
