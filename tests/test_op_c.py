"""Reduce ops in C: the same bits as Python's, and everything that is refused, with its line."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nicemu
from nicemu import (
    Communicator,
    Context,
    FaultError,
    ImageError,
    Nic,
    OpError,
    ReduceOp,
    StatusError,
    reduce_op,
)
from nicemu.compiler import clang
from nicemu.compiler.c_ir import _MATH, _SINGLE

pytest.importorskip("ziglang", reason="pip install 'nicemu[c]'")

SUM = "float merge(float a, float b) { return a + b; }"


def reduced(op: ReduceOp, streams: Any, element: str | None = None) -> np.ndarray:
    nic = Nic(threads=1)
    nic.load(op.image(element))
    return nic.reduce(streams).values


# ---- what C computes -----------------------------------------------------------------------------
NORM = """
static float square(float x) { return x * x; }
float lift(float x) { return square(x); }
float merge(float a, float b) { return a + b; }
float finish(float a) { return sqrtf(a); }
"""


def python_norm() -> ReduceOp:
    @reduce_op(name="norm")
    def norm(a: Any, b: Any) -> Any:
        return a + b

    norm.lift(lambda x: x * x)
    norm.finish(lambda a: math.sqrt(a))
    return norm


@pytest.mark.parametrize("element", ["float16", "bfloat16", "float8_e5m2", "float32"])
def test_the_bits_and_the_code_are_those_of_python(element: str) -> None:
    c, python = reduce_op.c(NORM, name="norm"), python_norm()
    assert c.image(element).code == python.image(element).code
    dtype = nicemu.dtypes.format_of(element).dtype
    x = np.arange(1 << 16, dtype=np.uint16).astype(np.uint8 if dtype.itemsize == 1 else np.uint16)
    streams = np.stack([x, x[::-1]]).view(dtype) if dtype.itemsize < 4 else np.float32([[3], [4]])
    got = reduced(c, streams, element)
    assert got.tobytes() == reduced(python, streams, element).tobytes()


def test_constants_are_not_contracted() -> None:
    op = reduce_op.c("float merge(float a, float b) { return a * b - 1.0f; }", element="float32")
    x = np.float32(1 + 2**-12)
    (got,) = reduced(op, np.array([[x], [x]]))
    assert got == np.float32(x * x) - 1 != np.float64(x) ** 2 - 1


def test_a_record_and_the_context() -> None:
    op = reduce_op.c(
        """
        accumulator_t lift(element_t x, context_t ctx) {
            return (accumulator_t){.value = x, .rank = ctx.rank, .index = ctx.element};
        }
        accumulator_t merge(accumulator_t a, accumulator_t b) {
            return b.value > a.value ? b : a;
        }
        """,
        name="argmax",
        accumulator=[("value", "float32"), ("rank", "int32"), ("index", "int64")],
    )
    x = np.random.default_rng(5).standard_normal((4, 300)).astype(np.float16)
    got = Communicator(4).allreduce(x, op).whole()
    assert got["value"].tolist() == x.max(axis=0).astype(np.float32).tolist()
    assert got["rank"].tolist() == x.argmax(axis=0).tolist()
    assert got["index"].tolist() == list(range(300))


def test_a_result_of_its_own() -> None:
    op = reduce_op.c(
        """
        accumulator_t lift(float x) { return (accumulator_t){x, 1}; }
        accumulator_t merge(accumulator_t a, accumulator_t b) {
            return (accumulator_t){a.total + b.total, a.count + b.count};
        }
        double finish(accumulator_t a) { return (double)a.total / a.count; }
        """,
        accumulator=[("total", "float32"), ("count", "uint8")],
        result="bfloat16",
    )
    x = np.array([[1], [2], [4]], ml_dtypes.bfloat16)
    assert reduced(op, x, "bfloat16").tolist() == [np.float64(7 / 3).astype(ml_dtypes.bfloat16)]


@pytest.mark.parametrize("element", ["int8", "int16", "int32", "int64", "uint8", "bool"])
def test_integers(element: str) -> None:
    op = reduce_op.c("accumulator_t merge(accumulator_t a, accumulator_t b) { return a | b; }")
    x = np.array([[1, 0, 5], [2, 0, 127]]).astype(element)
    assert reduced(op, x, element).tolist() == (x[0] | x[1]).tolist()


def test_what_c_leaves_open() -> None:
    op = reduce_op.c(
        """
        accumulator_t lift(int32_t x) { return (accumulator_t){x, x, x, x, x, x}; }
        accumulator_t merge(accumulator_t a, accumulator_t b) {
            int32_t zero = b.a - b.a, least = 1 << 31;
            return (accumulator_t){
                least % (zero - 1), zero ? a.a / zero : 9, a.a << (b.a + 28), least / (zero - 1),
                0x7fffffff + a.a, (int32_t)(a.a * 1e30f)};
        }
        """,
        accumulator=[(name, "int32") for name in "abcdef"],
    )
    (got,) = reduced(op, np.array([[5], [5]], np.int32), "int32")
    assert got.tolist() == (0, 9, 5 << 1, -(1 << 31), -(1 << 31) + 4, (1 << 31) - 1)


def test_a_switch_needs_no_table() -> None:
    cases = " ".join(f"case {i}: return {i * i % 7}.5f;" for i in range(8))
    op = reduce_op.c(
        f"{SUM}\nfloat finish(float a) {{ switch ((int)a) {{ {cases} default: return a; }} }}"
    )
    x = np.arange(10, dtype=np.float32)
    want = [i * i % 7 + 0.5 for i in range(8)] + [8, 9]
    assert reduced(op, x[None], "float32").tolist() == want


SINGLE = {
    "sqrtf": np.sqrt, "fabsf": np.abs, "floorf": np.floor, "ceilf": np.ceil, "truncf": np.trunc,
    "rintf": np.rint, "roundevenf": np.rint, "expf": np.exp, "exp2f": np.exp2,
    "logf": np.log, "log2f": np.log2, "tanhf": np.tanh,
}  # fmt: skip
PAIRS = {
    "fmax": np.fmax, "fmin": np.fmin, "fmaximum": np.maximum, "fminimum": np.minimum,
    "copysign": np.copysign,
}  # fmt: skip


def test_functions_of_math_h() -> None:
    fields = [(name, "float32") for name in SINGLE]
    calls = ", ".join(f"{name}(x)" for name in SINGLE)
    op = reduce_op.c(
        f"accumulator_t lift(float x) {{ return (accumulator_t){{{calls}}}; }}\n"
        "accumulator_t merge(accumulator_t a, accumulator_t b) { return a; }",
        accumulator=fields,
    )
    x = np.array([0.25, 0.5, 1.5, 2.5, 3.75, 20], np.float32)
    got = reduced(op, x[None], "float32")
    for name, function in SINGLE.items():
        np.testing.assert_allclose(got[name], function(x), rtol=3e-7, err_msg=name)


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_functions_of_two_arguments(kind: str) -> None:
    suffix = "f" if kind == "float32" else ""
    calls = ", ".join(f"{name}{suffix}(a.fmax, b.fmin)" for name in PAIRS)
    each = ", ".join(["x"] * len(PAIRS))
    op = reduce_op.c(
        f"accumulator_t lift(element_t x) {{ return (accumulator_t){{{each}}}; }}\n"
        "accumulator_t merge(accumulator_t a, accumulator_t b) "
        f"{{ return (accumulator_t){{{calls}}}; }}",
        accumulator=[(name, kind) for name in PAIRS],
    )
    a = np.array([1, -2, 0.0, np.nan, 3, np.nan], kind)
    b = np.array([2, -1, -0.0, 4, np.nan, np.nan], kind)
    got = reduced(op, np.stack([a, b]), kind)
    for name, function in PAIRS.items():
        np.testing.assert_array_equal(got[name], function(a, b), err_msg=name)


def test_a_source_file(tmp_path: Path) -> None:
    path = tmp_path / "total.c"
    path.write_text(SUM)
    op = reduce_op.c(path, element="float32")
    assert op.name == "total"
    assert reduced(op, np.float32([[1], [2]])).tolist() == [3]
    path.write_text("\nfloat merge(float a, float b) { return a + c; }")
    with pytest.raises(OpError, match=r"^total \(total\.c:2\): there is no c: declare it$"):
        reduce_op.c(path, element="float32").image()
    with pytest.raises(nicemu.FileFormatError, match=r"none\.c: cannot be read"):
        reduce_op.c(tmp_path / "none.c")


def test_decorators_have_no_place() -> None:
    with pytest.raises(OpError, match="lift belongs into its source text"):
        reduce_op.c(SUM).lift(lambda x: x)


def test_doubles_are_reported() -> None:
    op = reduce_op.c("float merge(float a, float b) {\n  return a * 0.3 + b;\n}", name="decay")
    (note,) = op.image("float32").notes
    assert note.startswith("decay (decay.c:2): computed in float64")
    assert reduce_op.c(SUM).image("float32").notes == ()


def test_check_cost_and_reference() -> None:
    c, python = reduce_op.c(NORM, name="norm"), python_norm()
    assert c.check(element="bfloat16").ok
    costs = [op.cost(element="bfloat16").instructions_per_packet for op in (c, python)]
    assert costs[0] == costs[1]
    x = np.float16([[3], [4]])
    assert c.reference(list(x)).tolist() == [5]


# ---- lines beside instructions -------------------------------------------------------------------
MOMENTS = """
static float far(float d)
{
    float s = d * d;
    return s / 3;
}
accumulator_t lift(element_t x)
{
    accumulator_t a = {x, far(x), 1};
    return a;
}
accumulator_t merge(accumulator_t a, accumulator_t b)
{
    accumulator_t r;
    float d = b.mean - a.mean;
    r.n = a.n + b.n;
    r.mean = fmaf(d, 0.5f, a.mean);
    r.m2 = fmaxf(a.m2, b.m2);
    return r;
}
float finish(accumulator_t a)
{
    return sqrtf(a.m2);
}
"""
BRANCHES = """
int32_t merge(int32_t a, int32_t b) {
    switch (a & 3) {
    case 0:
        return a + b;
    case 1:
        return a * b;
    case 2:
        return a ^ b;
    }
    return b << a;
}
"""
STOPS = """
float merge(float a, float b) {
    if (b > 4)
        __builtin_trap();
    return a - b;
}
"""
MACRO = """
#define TWICE(x) ((x) + (x))
float merge(float a, float b) {
    return a *
        TWICE(b);
}
"""
FIELDS = {"mean": "float32", "m2": "float32", "n": "float32"}
#: source, types, and the lines of which instructions of some mnemonics are
LINES: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "fields": (
        MOMENTS,
        {"element": "float32", "accumulator": tuple(FIELDS.items()), "result": "float32"},
        {"vfmul": 4, "vfdiv": 5, "vfsub": 15, "vfadd": 16, "vfmadd": 17, "vfmax": 18, "vfsqrt": 23},
    ),
    "branches": (
        BRANCHES, {"element": "int32"}, {"andi": 3, "mul": 7, "c.xor": 9, "sllw": 11}
    ),
    "stops": (STOPS, {"element": "bfloat16"}, {"vmfgt": 3}),
    "stops before a branch": (
        "float merge(float a, float b) {\n if (b > 4)\n  __builtin_trap();\n"
        " if (a < 1)\n  return a * b;\n return a - b;\n}",
        {"element": "float32"},
        {"vmfgt": 2},
    ),
    "macro": (MACRO, {"element": "float32"}, {"vfmul": 4, "vfadd": 5}),
    "halves": (
        "float lift(float x) {\n return x * x;\n}\n"
        "float merge(float a, float b) {\n return a +\n b;\n}",
        {"element": "float16", "preset": "per-add"},
        {"vfmul": 2, "vfadd": 5},
    ),
    "widths": (  # vectors are shortened
        "double merge(double a, double b) {\n double c = a * b;\n"
        " return c / (a - b);\n}",
        {"element": "float32", "accumulator": "float64"},
        {"vfmul": 2, "vfdiv": 3, "vfsub": 3},
    ),
    "other ends of lines": (
        "\r\nfloat merge(float a, float b) {\r return a\f -\\\r\n b;\n\r}\n",
        {"element": "float32"},
        {"vfsub": 3},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LINES)
def test_disassembly_shows_the_source(case: str) -> None:
    source, types, wanted = LINES[case]
    rows = reduce_op.c(source, name="shown", **types).disasm().rows
    texts = re.split(r"\r\n|\r|\n", source)
    found: dict[str, set[int]] = {}
    for row in rows:
        if row.source:
            _, line, text = row.source.split(":", 2)
            assert (
                row.source.startswith("shown.c:") and text.strip() == texts[int(line) - 1].strip()
            )
            found.setdefault(row.text.split()[0].split(".v")[0], set()).add(int(line))
    for verb, line in wanted.items():
        assert found.get(verb) == {line}, (verb, found)
    branches = [i for i, text in enumerate(texts, 1) if "if (" in text]
    assert not {*branches} & set().union(*(found.get(x, set()) for x in ("vfmul", "vfsub")))
    own = [row for row in rows if row.text.split()[0].split(".v")[0] in wanted]
    assert all(row.source for row in own if not re.match("andi|mul", row.text))


@pytest.mark.parametrize("case", LINES)
def test_loads_stores_and_loops_are_nobodys(case: str) -> None:
    source, types, _ = LINES[case]
    for row in reduce_op.c(source, **types).disasm().rows:
        if re.match(r"v[ls]e\d|(c\.)?(sub|jr|ld|bnez|beqz) ", row.text):
            assert not row.source, row


@pytest.mark.parametrize(
    "source",
    [STOPS, "float merge(float a, float b) {\n if (b > 4)\n  return a * b;\n return a - b;\n}"],
)
def test_what_is_computed_before_a_branch_is_not_of_its_line(source: str) -> None:
    """Both sides are, in vectors, and LLVM calls them the branch's."""
    branch = next(i for i, text in enumerate(source.split("\n"), 1) if "if" in text)
    rows = reduce_op.c(source, element="float32").disasm().rows
    seen = {row.text.split()[0]: row.source for row in rows}
    assert f":{branch}: if (b > 4)" in seen["vmfgt.vf"]
    assert all(
        f":{branch}:" not in text for verb, text in seen.items() if verb in ("vfsub.vv", "vfmul.vv")
    )


def test_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "total sum.c"
    path.write_text("// é\n" + SUM, "utf-8")
    op = reduce_op.c(path, name="total", element="float32")
    assert {row.source for row in op.disasm().rows} == {"", f"total sum.c:2: {SUM}"}


@pytest.mark.parametrize(
    "directive",
    ["#line 7", "  # line 7", "#/**/line 7", "# 7", "/* a\n */ %:line 7", "#li\\\nne 7"],
)
def test_a_source_that_numbers_its_lines_has_none(directive: str) -> None:
    """A line of the text may not be the one that was meant."""
    source = f"{directive}\n" + SUM.replace("return", "return\n")
    rows = reduce_op.c(source, element="float32").disasm().rows
    assert {row.source for row in rows} == {""}
    plain = reduce_op.c(f"// {directive[-6:]}\n{SUM}", element="float32").disasm().rows
    assert len(plain) == len(rows) and any(row.source for row in plain)


# ---- what is refused -----------------------------------------------------------------------------
BODY = "float merge(float a, float b) {{ {} return a + b; }}"
REFUSED: dict[str, tuple[str, str]] = {
    "no merge": ("float lift(float x) { return x; }", r"no merge .*write float merge\(float a, f"),
    "static": (f"static {SUM}", "there is no merge that is not static"),
    "empty": ("", "there is no merge"),
    "integers": ("int merge(int a, int b) { return a; }", r"merge of c \(c\.c:1\): has another"),
    "result": ("\nint merge(float a, float b) { return a; }", r"c\.c:2\): has another type"),
    "pointers": ("float merge(float *a, float *b) { return *a; }", "write float merge"),
    "nothing": ("void merge(float a, float b) {}", "write float merge"),
    "one": ("float merge(float a) { return a; }", r"takes 1 arguments: .* with context_t"),
    "three": ("float merge(float a, float b, int c) { return a; }", "has another type"),
    "lift": (f"{SUM}\ndouble lift(double x) {{ return x; }}", r"lift of c \(c\.c:2\).*float lift"),
    "header": (f"#include <math.h>\n{SUM}", r"c\.c:1\): there are no headers: leave .*math\.h out"),
    "host's file": (f'#include "/etc/hosts"\n{SUM}', "it includes /etc/hosts"),
    "host's bytes": (
        'float merge(float a, float b) {\n static const char x[] = {\n#embed "/etc/hosts"\n}; '
        "return a + x[0]; }",
        "it includes /etc/hosts",
    ),
    "assembly": (BODY.format('\n__asm__("ecall");'), r"c\.c:2\): it has assembly in it"),
    "assembly outside": (f'__asm__(".word 3");\n{SUM}', "it has assembly in it"),
    "index": (BODY.format("float t[4] = {0}; a = t[7];"), "array index 7 is past the end"),
    "recursion": (
        "static float f(float x) { return x > 1 ? f(x - 1) : x; }\n"
        "float merge(float a, float b) { return f(a + b); }",
        r"c\.c:1\): f calls itself: use a loop",
    ),
    "circle": (
        "static float g(float);\nstatic float f(float x) { return g(x - 1); }\n"
        "static float g(float x) { return f(x - 2); }\n"
        "float merge(float a, float b) { return f(a + b); }",
        "calls itself: use a loop",
    ),
    "global": ("static int n;\n" + BODY.format("a += n++;"), r"c:1\): n keeps its value"),
    "static local": (BODY.format("static int n; a += n++;"), r"c:1\): n keeps its value"),
    "thread local": ("_Thread_local int n;\n" + BODY.format("a += n++;"), "n keeps its value"),
    "extern": ("extern int n;\n" + BODY.format("a += n;"), r"c:2\): n is not defined: define it"),
    "table": (
        "static const float t[] = {1, 3.5, 4, 9, 0, 2, 3, 1};\n" + BODY.format("a = t[(int)a];"),
        "needs a table in memory: compute the values",
    ),
    "malloc": (BODY.format("malloc(8);"), r"c:1\): it calls malloc, which a core does not"),
    "declared": (
        "void *malloc(unsigned long);\n" + BODY.format("a = *(float *)malloc(8);"),
        r"c\.c:2\): it uses malloc",
    ),
    "printf": (BODY.format('printf("x");'), "it calls printf"),
    "powf": (BODY.format("a = powf(a, b);"), "it calls powf, .* sqrt, fabs"),
    "exp of doubles": (BODY.format("a = exp(a);"), "it calls exp, .* expf"),
    "no return": ("float merge(float a, float b) { if (a > b) return a; }", "does not return"),
    "uninitialised": (BODY.format("float c; a += c;"), "'c' is uninitialized"),
    "syntax": (BODY.format("a = ;"), r"c\.c:1\): expected expression: mend the source"),
    "contraction": (
        "float merge(float a, float b) {\n#pragma STDC FP_CONTRACT ON\nreturn a * b + a; }",
        r"c\.c:3\): a #pragma lets the compiler round otherwise",
    ),
    "reassociation": (
        "#pragma clang fp reassociate(on)\n" + SUM, r"a #pragma lets the compiler round otherwise",
    ),
    "constructor": (f"{SUM}\n__attribute__((constructor)) void f(void) {{}}", "an __attribute__"),
    "alloca": (BODY.format("float *p = __builtin_alloca((int)a); a = *p;"), "it allocates memory"),
    "variable array": (BODY.format("float p[(int)a]; a = p[0];"), "it allocates memory"),
    "large array": (BODY.format("float p[1 << 20]; a = p[(int)a];"), "over 64 elements"),
    "long double": (BODY.format("a += (long double)b;"), "it uses long double"),
    "volatile": (BODY.format("volatile int x = a; a = x;"), r"c:1\): it uses volatile: leave it"),
    "odd width": (BODY.format("_BitInt(37) x = a; a = x / 3;"), r"c:1\): it uses integers of a"),
    "vectors": (
        "typedef int v __attribute__((vector_size(8)));\n" + BODY.format("v x = {a}; a = x[1];"),
        "it uses vector types: write numbers",
    ),
    "int128": (BODY.format("__int128 x = a; a = x / 3;"), "it uses __int128"),
    "atomics": (BODY.format("int x = 0; a = __atomic_fetch_add(&x, 1, 0);"), "it has atomics"),
    "pointer": (
        "static float f(float x) { return x; }\n" + BODY.format("float (*g)(float) = f; a = g(a);"),
        "it calls through a pointer",
    ),
    "address": (BODY.format("a = ((float (*)(float))4096)(a);"), "it calls through a pointer"),
    "clock": (BODY.format("a += __builtin_readcyclecounter();"), "it uses llvm.readcyclecounter"),
    "time": (BODY.format("a += __TIME__[0];"), "date or time macro"),
    "two": (f"{SUM}\n{SUM}", r"c\.c:2\): redefinition of 'merge'"),
    "own words": (f"#error use the other file\n{SUM}", "use the other file"),
    "zero byte": (SUM + "\0", "its source has 48 bytes: use at most"),
    "surrogate": ("// \ud800\n" + SUM, "its source is not Unicode"),
    "large": (SUM + " " * clang.MOST_SOURCE, "bytes: use at most 1048576"),
    "long": (BODY.format("a += b * a;" * 5000), "operations: use loops"),
    "nesting": (BODY.format("a = " + "(" * 9999 + "a" + ")" * 9999 + ";"), "nesting level"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    source, message = REFUSED[case]
    with pytest.raises(OpError, match=message) as caught:
        reduce_op.c(source).image("float32")
    assert "\n" not in str(caught.value) and "/tmp" not in str(caught.value)


def test_the_compiler_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clang, "_MEMORY", 1 << 28)
    doubled = "\n".join(f"#define X{i + 1} X{i}+X{i}+X{i}+X{i}" for i in range(16))
    bomb = f"#define X0 1+1\n{doubled}\n" + BODY.format("a = X16;")
    with pytest.raises(OpError, match=r"^c: (clang gave up|compiling takes over)"):
        reduce_op.c(bomb).image("float32")


# ---- what ends on the core -----------------------------------------------------------------------
def stopped(body: str) -> None:
    op = reduce_op.c(BODY.format(body))
    reduced(op, np.float32([[3, 1], [2, 5]]), "float32")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("while (a == a) a += 1;", "out of budget"),
        ("for (;;);", "out of budget"),
        ("float *p = 0; a = *p;", "load access fault .*address 0x0,"),
        ("*(float *)0x10000 = a;", "store/AMO access fault"),
    ],
)
def test_faults(body: str, message: str) -> None:
    with pytest.raises(FaultError, match=message):
        stopped(body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("float t[4] = {a, b}; a = t[(int)b];", r"raised index outside of an array \(c\.c:1\)"),
        ("\nif (b > 4) __builtin_trap();", r"raised __builtin_trap\(\) \(c\.c:2\)"),
        ("if (b > 4) __builtin_unreachable();", r"raised __builtin_unreachable\(\) is reached"),
        ("\na = 8 / (int)(b - b);", r"raised division by zero \(c\.c:2\)"),
        ("a = 8 % (int)(b - b);", r"raised division by zero \(c\.c:1\)"),
    ],
)
def test_statuses(body: str, message: str) -> None:
    with pytest.raises(StatusError, match=message):
        stopped(body)


def test_divisors_that_are_not_zero_cost_nothing() -> None:
    kind = "int32_t merge(int32_t a, int32_t b)"
    for body in ("(a + b) / 3", "b ? a / b : 0", "a % (b | 1)"):
        op = reduce_op.c(f"{kind} {{ return {body}; }}", element="int32")
        assert op.image().statuses == () and "div" not in op.cost().classes
    mean = reduce_op.c(
        f"{kind} {{ return a + b; }} "
        "int32_t finish(int32_t a, context_t ctx) { return a / ctx.contributors; }",
        element="int32",
    )
    assert mean.image().statuses == () and "first4_finish" in mean.image().entries
    assert reduced(mean, np.array([[5], [4], [-30]], np.int32)).tolist() == [-7]


def test_an_element_of_a_trap_is_kept() -> None:
    op = reduce_op.c(BODY.format("if (b > 4) __builtin_trap();"), element="float32")
    nic = Nic(threads=1)
    nic.load(op.image())
    a, b = np.float32([1, 2, 3]), np.float32([4, 5, 6])
    done = nic.handle("acc", [b], accumulator=a, context=Context())
    assert (done.status, done.accumulator.tolist()) == (1, [5, 2, 3])


# ---- the cache, and clang ------------------------------------------------------------------------
def test_a_hit_needs_no_clang(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NICEMU_CACHE_DIR", str(tmp_path))
    image = reduce_op.c(SUM).image("float16")
    monkeypatch.setattr(clang, "find_spec", lambda name: None)
    assert reduce_op.c(SUM).image("float16") == image
    with pytest.raises(ImageError, match=r"need clang: pip install 'nicemu\[c\]'"):
        reduce_op.c(f"{SUM}\n").image("float16")


def test_the_guide() -> None:
    text = (Path(nicemu.__file__).parent / "guide" / "authoring.md").read_text()
    section = re.search(r"^## In C\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert section is not None
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", section[1], re.S):
        exec(block, names)
    assert names["norm"].tolist() == [13]
    x = np.float32([[1, 5], [2, 4]])
    got = reduced(names["argmax"], x, "float32")
    assert got.dtype.names == ("value", "rank") and got["value"].tolist() == [2, 5]
    declared = re.findall(r"`(\w+)`", section[1])
    assert set(_MATH) | {f"{name}f" for name in _SINGLE} <= set(declared)
