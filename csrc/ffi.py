"""cffi builder: compiles csrc/*.c into nicemu._nicemu; the header is the cdef.

setup.py names this file; nothing at run time imports it.  NICEMU_CFLAGS and NICEMU_LDFLAGS of the
environment are added to the flags.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).parent
ROOT = HERE.parent


def cdef(header: Path) -> str:
    """The declarations of a C header as cffi reads them: preprocessor lines dropped."""
    lines = header.read_text().splitlines()
    return "\n".join(line for line in lines if not line.startswith("#"))


# Files are small and call each other for every frame: inlined across files, the whole path of
# packets is an eighth faster with GCC 12.
ACROSS_FILES = "-flto=auto"


def compiles_across_files() -> bool:
    """Can the C compiler and its linker optimise across files?  Some need a linker of their own."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "a.c"), Path(folder, "a.so")
        source.write_text("int nicemu(void) { return 0; }\n")
        command = [*compiler, ACROSS_FILES, "-fPIC", "-shared", str(source), "-o", str(library)]
        try:
            return not subprocess.run(command, capture_output=True).returncode
        except OSError:  # there is no such compiler: its own error is to be seen
            return False


across = [ACROSS_FILES] if compiles_across_files() else []


def flags(variable: str, *base: str) -> list[str]:
    """Flags for the compiler or linker; those of the environment variable come last."""
    return [*base, *across, *os.environ.get(variable, "").split()]


# No contraction, no fast-math, no -march: the same bits on every machine.
COMPILE = ("-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden")
WARN = ("-Wall", "-Wextra")

ffi = FFI()
ffi.cdef(cdef(HERE / "nicemu.h"))
ffi.set_source(
    "nicemu._nicemu",
    '#include "nicemu.h"',
    sources=sorted(str(p.relative_to(ROOT)) for p in HERE.glob("*.c")),
    include_dirs=[str(HERE.relative_to(ROOT))],
    depends=sorted(str(p.relative_to(ROOT)) for p in HERE.iterdir() if p.suffix in (".h", ".def")),
    extra_compile_args=flags("NICEMU_CFLAGS", *COMPILE, *WARN),
    extra_link_args=flags("NICEMU_LDFLAGS"),
    py_limited_api=True,
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
)

if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit("csrc/ffi.py is used by setup.py: run `pip install .`")
