"""cffi builder: compiles csrc/*.c into nicemu._nicemu; the header is the cdef.

setup.py names this file; nothing at run time imports it.
"""

import os
import sys
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).parent
ROOT = HERE.parent


def cdef(header: Path) -> str:
    """The declarations of a C header as cffi reads them: preprocessor lines dropped."""
    lines = header.read_text().splitlines()
    return "\n".join(line for line in lines if not line.startswith("#"))


def flags() -> list[str]:
    """Compiler flags: no contraction, no fast-math, no -march; NICEMU_CFLAGS is appended."""
    base = ["-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra"]
    return base + os.environ.get("NICEMU_CFLAGS", "").split()


ffi = FFI()
ffi.cdef(cdef(HERE / "nicemu.h"))
ffi.set_source(
    "nicemu._nicemu",
    '#include "nicemu.h"',
    sources=sorted(str(p.relative_to(ROOT)) for p in HERE.glob("*.c")),
    include_dirs=[str(HERE.relative_to(ROOT))],
    depends=sorted(str(p.relative_to(ROOT)) for p in HERE.iterdir() if p.suffix in (".h", ".def")),
    extra_compile_args=flags(),
    extra_link_args=os.environ.get("NICEMU_LDFLAGS", "").split(),
    py_limited_api=True,
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
)

if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit("csrc/ffi.py is used by setup.py: run `pip install .`")
