"""op.check, op.cost and op.reference: what the author of an op is told, and that it is so."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nicemu
from nicemu import ArgumentError, FaultError, Machine, Nic, ReduceOp
from nicemu.compiler.host import HostKernels
from nicemu.device.image import KernelImage
from nicemu.device.machine import MACHINES
from nicemu.dtypes import format_of
from nicemu.ops.bounds import bounds
from nicemu.ops.builtin import builtin
from nicemu.ops.check import Check, check
from nicemu.ops.samples import LONGEST, digits, every
from tests.encode import encode, image, vtype

CARD = MACHINES["card"]
RA, SP, T0, T1, A0, A1, A2 = 1, 2, 5, 6, 10, 11, 12
RETURN = [encode("c.li", rd=A0, imm=0), encode("c.jr", rs1=RA)]


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NICEMU_CACHE_DIR", str(tmp_path_factory.mktemp("images")))
        yield


@pytest.fixture(scope="module")
def l2norm() -> ReduceOp:
    @nicemu.reduce_op(element="bfloat16", accumulator="float32")
    def l2norm(a: Any, b: Any) -> Any:
        return a + b

    l2norm.lift(lambda x: x * x)
    l2norm.finish(lambda a: math.sqrt(a))
    return l2norm


def of_words(*words: int) -> KernelImage:
    """Every entry is this code; float32 throughout."""
    code = image([*words, *RETURN])
    entries = dict.fromkeys(("first", "load", "acc", "merge", "emit", "finish"), 0)
    return KernelImage("own", "wide", *["float32"] * 4, code, entries)


# ---- cost ----------------------------------------------------------------------------------------


def test_cost_counts_what_runs(l2norm: ReduceOp) -> None:
    cost = l2norm.cost()
    nic = Nic()
    nic.load(l2norm.image())
    x = np.ones(512, nicemu.bfloat16)
    nic.handle("first", [x])
    assert cost.instructions_per_packet == nic.handle("acc", [x]).instructions
    assert cost.instructions_per_element == cost.instructions_per_packet / 512
    assert set(cost.entries) == set(l2norm.image().entries)
    for entry in cost.entries.values():
        assert sum(entry.classes.values()) == entry.instructions
    assert cost.entries["acc"].load_bytes == 512 * 2 + 512 * 4 + 8  # and the table
    assert cost.entries["acc4"].payloads == 4
    assert cost.classes["vfmul"] == cost.classes["vstore"] == 4  # 128 elements at a time


def test_cost_of_the_issue(l2norm: ReduceOp) -> None:
    """Its bounds for packets of 512 elements at VLEN 512."""
    assert max(l2norm.cost().entries[name].instructions for name in ("first", "acc")) <= 80
    sums = builtin("sum", "float16").cost(element="float16", preset="per-add")
    assert max(sums.entries[name].instructions for name in ("first", "acc")) <= 40


def test_cost_depends_on_the_machine(l2norm: ReduceOp) -> None:
    wide = l2norm.cost(Machine("own", vlen=1024))
    narrow = l2norm.cost(Machine("own", vlen=128), 2048)
    assert wide.classes["vfmul"] == 2 and narrow.classes["vfmul"] == 32
    two = l2norm.cost(Machine("own", max_fan_in=2))
    assert "acc2" in two.entries and "acc4" not in two.entries


@pytest.mark.parametrize("payload", [0, 1, 3, 4097, -1])
def test_cost_refuses_payloads(l2norm: ReduceOp, payload: int) -> None:
    with pytest.raises(ArgumentError, match=rf"payload {payload} is out of range: use 4\.\.4096"):
        l2norm.cost(payload=payload)


def test_cost_of_records() -> None:
    @nicemu.reduce_op(
        element="float32", accumulator=[("value", "float32"), ("index", "int64")], result="int64"
    )
    def argmax(a: Any, b: Any) -> Any:
        return (a.value, a.index) if a.value >= b.value else (b.value, b.index)

    @argmax.lift
    def _(x: Any, ctx: Any) -> Any:
        return x, ctx.element

    argmax.finish(lambda a: a.index)
    cost = argmax.cost()
    assert cost.entries["acc"].count == 256 and cost.entries["merge"].count == 1024 // 12
    assert argmax.check().ok


def test_cost_of_what_does_not_end() -> None:
    @nicemu.reduce_op(element="float32")
    def forever(a: Any, b: Any) -> Any:
        while a > -b - 1:
            a = a * a + 1
        return a

    with pytest.raises(FaultError, match="out of budget"):
        forever.cost(Machine("own", budget=10_000))


def test_cost_is_shown(l2norm: ReduceOp) -> None:
    cost = l2norm.cost()
    head, columns, *rows = str(cost).splitlines()
    assert head.startswith("l2norm of bfloat16, wide, on card (VLEN 512): ")
    assert columns.split()[:3] == ["entry", "items", "instructions"] and len(rows) == 22
    assert "<th>vfmul</th>" in cost._repr_html_()
    assert json.loads(json.dumps(cost.record()))["entries"]["acc"]["count"] == 512


# ---- reference -----------------------------------------------------------------------------------


@pytest.mark.parametrize("element", ["float16", "bfloat16"])
@pytest.mark.parametrize("preset", ["wide", "per-hop", "per-add"])
@pytest.mark.parametrize("name", ["sum", "avg", "max"])
def test_reference_gives_the_cores_bits(name: str, preset: str, element: str) -> None:
    """Random patterns, NaNs and infinities among them, on one device and in a tree."""
    op, row = builtin(name, element), format_of(element)
    rng = np.random.default_rng(7)
    streams = [rng.integers(0, 1 << 16, 3000).astype(np.uint16).view(row.dtype) for _ in range(4)]
    nic = Nic()
    nic.load(op.image(element, preset))
    flat = op.reference(streams, preset=preset)
    assert nic.reduce(streams).values.tobytes() == flat.tobytes()
    world = nicemu.Communicator(nicemu.Fabric(4, "tree(2)"))
    result = world.allreduce(streams, op=op, preset=preset)
    assert isinstance(result.order, tuple) and any(isinstance(x, tuple) for x in result.order)
    tree = op.reference(streams, preset=preset, order=result.order)
    assert result.values[0].tobytes() == tree.tobytes()


def test_reference_counts_the_context() -> None:
    @nicemu.reduce_op(element="float32")
    def total(a: Any, b: Any) -> Any:
        return a + b

    @total.lift
    def _(x: Any, ctx: Any) -> Any:
        return x + 1000 * ctx.rank + 100 * ctx.element

    @total.finish
    def _(a: Any, ctx: Any) -> Any:
        return a / ctx.contributors

    ones = [np.ones(3, np.float32)] * 4
    for order in (None, ((0, 1), (2, 3))):
        assert total.reference(ones, order=order).tolist() == [1501, 1601, 1701]


def test_reference_refuses(l2norm: ReduceOp) -> None:
    x = np.ones(3, nicemu.bfloat16)
    with pytest.raises(ArgumentError, match="streams"):
        l2norm.reference([x, x[:2]])
    with pytest.raises(ArgumentError, match=r"is for bfloat16, not float32"):
        l2norm.reference([np.ones(3, np.float32)])
    for order in ((0, 2), 0, (0, -1), (), ((), 0), (0, 0), [0, 1], ([0], 1), ("a",), (True, 0)):
        with pytest.raises(
            ArgumentError, match=r"order .*: use nested tuples of 0\.\.1, each once"
        ):
            l2norm.reference([x, x], order=order)  # type: ignore[arg-type]


def test_reference_takes_rows_and_strides(l2norm: ReduceOp) -> None:
    x = np.array([[3, 6], [4, 8]], nicemu.bfloat16)
    assert l2norm.reference(x).tolist() == l2norm.reference(list(x)).tolist() == [5, 10]
    columns = [x[:, 0], x[:, 1]]
    assert not columns[0].flags.c_contiguous
    assert l2norm.reference(columns).tolist() == l2norm.reference(x.T).tolist() != [5, 10]
    assert l2norm.reference([x[0][:0]] * 2).size == 0


FLOATS = np.ones(3, np.float32)
WRONG: dict[str, tuple[str, Any]] = {
    "flat array": ("streams is ndarray: pass a list", FLOATS),
    "number": ("streams is float32", FLOATS[0]),
    "nothing": ("streams is NoneType", None),
    "no stream": ("streams is empty: pass one array per rank", []),
    "lists": (r"streams\[0\] is list: pass a numpy array", [[1.0]]),
    "mask": (r"streams\[0\] is MaskedArray", [np.ma.masked_array(FLOATS)]),
    "lengths": (r"streams\[1\] has shape \(2,\) and dtype float32: use 1-D", [FLOATS, FLOATS[:2]]),
    "dtypes": (r"streams\[1\] has .* dtype float64: use .* float32", [FLOATS, np.ones(3)]),
    "axes": (r"streams\[0\] has shape \(1, 3\)", [FLOATS[None]]),
    "byte order": ("dtype >f4 is not supported", [FLOATS.astype(">f4")]),
    "objects": ("dtype object is not supported", [np.array([None])]),
}


@pytest.mark.parametrize("case", WRONG)
def test_reference_refuses_streams(case: str) -> None:
    text, streams = WRONG[case]
    with pytest.raises(ArgumentError, match=f"^{text}[^\n]*$"):
        builtin("sum", "float32").reference(streams)


def test_arguments_of_another_kind_are_refused(l2norm: ReduceOp) -> None:
    """Each by a line that names it."""
    x = [np.ones(3, nicemu.bfloat16)]
    odd: Any
    for odd in (["wide"], 3, {}):
        for call in (
            lambda p: l2norm.reference(x, preset=p),
            lambda p: l2norm.image(preset=p),
            lambda p: nicemu.reduce_op(preset=p)(max_of_two),
        ):
            with pytest.raises(ArgumentError, match=r"^preset .* is unknown: use one of wide, "):
                call(odd)
        for call in (l2norm.check, l2norm.cost):
            with pytest.raises(ArgumentError, match=r"^machine .* is unknown: use one of card, "):
                call(odd)
        with pytest.raises(ArgumentError, match=r"^op .* is unknown: use one of sum, "):
            builtin(odd, "float32")
        for make in (nicemu.reduce_op.c, nicemu.reduce_op.asm):
            with pytest.raises(ArgumentError, match=r"^source is \w+: use text or a pathlib.Path$"):
                make(odd, element="float32")
        with pytest.raises(ArgumentError, match=r"^context is \w+: use nicemu.Context$"):
            l2norm.reference(x, context=odd)
    with pytest.raises(ArgumentError, match=r"^context rank 1.5 is no whole number: use 0\.\."):
        l2norm.reference(x, context=nicemu.Context(rank=1.5))  # type: ignore[arg-type]
    for odd in ("x", 1.5, None):
        with pytest.raises(ArgumentError, match=r"^seed .* is no whole number: use 0\.\."):
            l2norm.check(seed=odd)
        with pytest.raises(ArgumentError, match=r"^payload .* is no whole number: use 4\.\.4096$"):
            l2norm.cost(payload=odd)
    with pytest.raises(ArgumentError, match=r"^seed -1 is out of range: use 0\.\."):
        l2norm.check(seed=-1)
    for odd in ({"a": "f4"}, [(1, "float32")], [("a",)], ()):
        with pytest.raises(ArgumentError, match=r"fields|dtype"):
            nicemu.reduce_op(accumulator=odd)(max_of_two)


def max_of_two(a: Any, b: Any) -> Any:
    return max(a, b)


def test_reference_raises_as_cores_do() -> None:
    @nicemu.reduce_op(element="float32")
    def strict(a: Any, b: Any) -> Any:
        return a + b

    @strict.lift
    def _(x: Any) -> Any:
        if x < 0:
            raise ValueError("negative")
        return x

    with pytest.raises(nicemu.StatusError, match="first of strict raised ValueError: negative"):
        strict.reference([np.array([1, -1], np.float32)])
    found = strict.check()
    lift = next(f for f in found.findings if f.what == "lift")
    negative = r"[\d,]+ raised ValueError: negative \(test_check\.py:\d+\): -1\.0"
    assert re.fullmatch(negative, lift.detail) and found.ok
    assert found.commutative == "yes"


def finding(found: Check, what: str) -> Any:
    return next(f for f in found.findings if f.what == what)


def test_cases_that_raise_are_counted_and_shown() -> None:
    """How many, with what text, and the simplest elements: merge of pairs, and both laws."""

    @nicemu.reduce_op(element="int16")
    def guarded(a: Any, b: Any) -> Any:
        if b == 3:
            raise ValueError("three")
        return a // b

    found = guarded.check()
    line = guarded._source.functions_["merge"].__code__.co_firstlineno + 3  # type: ignore[union-attr]
    zero = rf"raised ZeroDivisionError: division by zero in merge \(test_check\.py:{line + 1}\)"
    three = rf"raised ValueError: three \(test_check\.py:{line}\)"
    merge = finding(found, "merge")
    assert re.fullmatch(rf"13 {zero}: 0, 0; \d+ {three}: 0, 3", merge.detail)  # 13 simple ones
    pairs = int(merge.found.split()[0].replace(",", ""))
    row = law(found, "commutative")
    assert row.cases + row.raised == pairs and row.raised > 25
    first, second = row.raising.split("; ")
    assert re.fullmatch(rf"\d+ {zero}: 0, 0", first)
    assert re.fullmatch(rf"\d+ {three}: (0, 3|3, 0)", second)
    assert sum(int(text.split()[0].replace(",", "")) for text in (first, second)) == row.raised
    triples = law(found, "associative")
    assert triples.raised and {": 0, 0, 0", ": 0, 0, 3"} & {
        text[text.rindex(": ") :] for text in triples.raising.split("; ")
    }
    assert "of other cases, how many raise" in str(found) and found.ok
    told = json.loads(json.dumps(found.record()))["laws"][0]
    assert told["raised"] == row.raised and told["raising"] == row.raising


def test_a_law_of_which_each_case_raises_is_not_tried() -> None:
    @nicemu.reduce_op(element="float16")
    def never(a: Any, b: Any) -> Any:
        if not (a > a):
            raise ValueError("never")
        return a

    found = never.check()
    assert found.commutative == found.associative == "not tried"
    assert law(found, "associative").cases == 0 and law(found, "associative").raised > 4096


@pytest.mark.parametrize("passing", [0, 1])
def test_an_op_of_which_no_pair_passes_is_not_good(passing: int) -> None:
    @nicemu.reduce_op(element="int16")
    def strict(a: Any, b: Any) -> Any:
        if a * a + b * b >= passing:  # one pair has less than 1
            raise ValueError("strict")
        return a // (1 + b)

    found = strict.check()
    merge = finding(found, "merge")
    assert found.ok == merge.good == bool(passing)
    assert merge.detail.startswith("no pair passes: ") == (not passing)
    assert ("not to be used" in str(found)) == (not passing)


def test_a_format_without_ends_has_no_cases_of_them() -> None:
    found = builtin("bxor", "bool").check(element="bool")
    assert found.commutative == found.associative == "yes"
    for name in ("commutative", "associative"):
        ends = law(found, name, "ends")
        assert (ends.verdict, ends.cases, ends.raised) == ("not tried", 0, 0)


def test_infinities_and_nans_that_merge_makes_are_shown() -> None:
    @nicemu.reduce_op(element="float32")
    def ratio(a: Any, b: Any) -> Any:
        return a / b

    told = finding(ratio.check(), "merge")
    wanted = r"1 give NaN and are none: 0\.0, 0\.0; \d+ are finite and give infinity: 1\.0, 0\.0"
    assert re.fullmatch(wanted, told.detail)
    plain = finding(builtin("sum", "float32").check(element="float32"), "merge")
    assert plain.detail == "no NaN, infinity or exception of its own"


# ---- laws of merge -------------------------------------------------------------------------------


def law(found: Check, name: str, numbers: str = "ordinary") -> Any:
    return next(x for x in found.laws if (x.name, x.numbers) == (name, numbers))


def test_a_sum_is_associative_up_to_rounding(l2norm: ReduceOp) -> None:
    found = l2norm.check()
    assert found.ok and found.commutative == "yes" and found.associative == "up to rounding"
    row = law(found, "associative")
    assert 0 < row.differ < row.cases and 0 < row.largest_ulp <= 4
    assert law(found, "commutative").differ == 0


def test_the_simplest_example_is_one() -> None:
    """What it says happens, and nothing simpler does: no smaller rank in the list of samples."""

    @nicemu.reduce_op(element="float32")
    def total(a: Any, b: Any) -> Any:
        return a + b

    row = law(total.check(), "associative")
    operands, given = row.example.split(": ")
    a, b, c = (np.float32(x) for x in operands.split(", "))
    assert (a + b) + c != a + (b + c)
    left, right = (np.float32(x.split(" = ")[1]) for x in given.split(", "))
    assert left == (a + b) + c and right == a + (b + c)


@pytest.mark.parametrize("seed", range(3))
def test_an_example_among_random_elements_is_a_short_one(seed: int) -> None:
    """No simple element shows it: of those that do, one of few digits is told."""

    def lifted(element: str) -> str:
        @nicemu.reduce_op(element=element)
        def total(a: Any, b: Any) -> Any:
            return a + b

        @total.lift
        def _(x: Any) -> Any:
            if 1.6 < x < 1.9:
                raise ValueError("between")
            return x

        return str(finding(total.check(seed=seed), "lift").detail.rpartition(": ")[2])

    assert lifted("float16") == lifted("float32") == "1.75"

    @nicemu.reduce_op(element="float32")
    def odd(a: Any, b: Any) -> Any:
        return b if 0.3 < a < 0.4 else a + b

    example = law(odd.check(seed=seed), "commutative").example
    a, b = (np.float32(x) for x in example.partition(":")[0].split(", "))
    assert {0.3 < a < 0.4, 0.3 < b < 0.4} == {True, False}
    assert digits(np.array([a, b])).sum() < 14 < digits(np.array([0.3984375]))[0]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e5m2", "int8", "uint8", "int16"])
def test_all_patterns_are_tried_the_shortest_first(name: str) -> None:
    row = format_of(name)
    values = every(row)
    assert np.unique(values.view(row.bits_dtype)).size == values.size == 1 << (8 * row.size)
    wanted = [0, 1, 2, 3] if row.kind == "uint" else [0, 1, -1, 2, 3]
    first = [x for x in values[:6].astype(float) if not np.signbit(x) or x]  # without -0
    assert first[: len(wanted)] == wanted


def test_digits() -> None:
    told = {0.0: 1, -1.0: 1, 3.0: 2, 100.0: 7, 0.5: 3, -1.5: 3, 0.0625: 9, 2.0**-1074: 2149}
    values = np.array([*told, np.inf, np.nan])
    assert digits(values).tolist() == [*told.values(), LONGEST, LONGEST]
    assert digits(np.array([-128, 127], np.int8)).tolist() == [8, 7]


def test_a_decay_is_neither() -> None:
    @nicemu.reduce_op(element="float32")
    def decay(a: Any, b: Any) -> Any:
        return 0.9 * a + b

    found = decay.check()
    assert found.ok and found.commutative == found.associative == "no"
    assert law(found, "commutative").example == "0.0, 1.0: ab = 1.0, ba = 0.9"
    assert law(found, "associative").largest_ulp > 1e5


def test_pythons_comparison_is_not_a_maximum_of_nans() -> None:
    @nicemu.reduce_op(element="float16")
    def greatest(a: Any, b: Any) -> Any:
        return a if a > b else b

    found = greatest.check()
    assert found.associative == found.commutative == "yes"
    row = law(found, "associative", "ends")
    assert row.verdict == "no" and "nan" in row.example
    assert all(x.verdict == "yes" for x in builtin("max", "float16").check(element="float16").laws)


def test_saturation_is_not_associative() -> None:
    @nicemu.reduce_op(element="int8")
    def saturated(a: Any, b: Any) -> Any:
        s = int(a) + int(b)
        return max(-128, min(127, s))

    found = saturated.check()
    assert found.commutative == "yes"
    row = law(found, "associative")
    assert row.verdict == "no" and row.largest_ulp == 0


def test_records_are_judged_by_their_results() -> None:
    """A pair of sum and what it lost: the parts differ by much, the number does not."""

    @nicemu.reduce_op(element="float32", accumulator=("float32", "float32"), result="float32")
    def compensated(a: Any, b: Any) -> Any:
        s = a[0] + b[0]
        t = s - a[0]
        lost = (a[0] - (s - t)) + (b[0] - t)
        return s, a[1] + b[1] + lost

    compensated.lift(lambda x: (x, 0.0))
    compensated.finish(lambda a: a[0] + a[1])
    found = compensated.check()
    assert found.ok and found.associative == "up to rounding"
    assert law(found, "associative").largest_ulp <= 1


def test_seeds_are_arguments(l2norm: ReduceOp) -> None:
    first, again, other = (l2norm.check(seed=seed) for seed in (0, 0, 1))
    assert first.record() == again.record() and first.record() != other.record()


# ---- the code ------------------------------------------------------------------------------------


def test_code_that_keeps_to_its_memory(l2norm: ReduceOp) -> None:
    found = bounds(l2norm.image(), CARD)
    assert not found.faults and found.stack == 0 and found.calls == 22 * 4


def test_an_access_behind_a_payload_is_found() -> None:
    """A vector load of 16 bytes per payload that does not look at the count."""
    wild = of_words(
        encode("ld", rd=T0, rs1=A1, imm=0),
        encode("c.slli", rd=A2, shamt=2),
        encode("add", rd=T0, rs1=T0, rs2=A2),
        encode("lw", rd=T1, rs1=T0, imm=0),
    )
    found = bounds(wild, CARD)
    assert len(found.faults) == 6
    assert found.faults[0].startswith(
        "first of 64 items: load access fault, 0 bytes behind the pay"
    )
    assert "behind the destination" in found.faults[-1]


def test_a_write_to_a_payload_is_found() -> None:
    found = bounds(
        of_words(encode("ld", rd=T0, rs1=A1, imm=0), encode("sw", rs1=T0, rs2=0, imm=0)), CARD
    )
    assert "store/AMO access fault, in the payload 0" in found.faults[0]


def test_the_stack_is_measured() -> None:
    deep = of_words(encode("sd", rs1=SP, rs2=RA, imm=-512))
    assert bounds(deep, CARD).stack == 512
    below = of_words(
        encode("lui", rd=T0, hi20=4),
        encode("sub", rd=T0, rs1=SP, rs2=T0),
        encode("sd", rs1=T0, rs2=RA, imm=-8),
    )
    assert "8 bytes before the stack" in bounds(below, CARD).faults[0]


def test_endless_code_is_found() -> None:
    found = bounds(of_words(encode("c.j", target=0)), replace(CARD, budget=1000))
    assert found.faults[0] == "first of 64 items: does not end within 1,000 instructions"


def test_unknown_instructions_are_found(l2norm: ReduceOp) -> None:
    wrong = of_words(encode("vsetvli", rd=T0, rs1=A2, vtype=vtype(32)), 0xFFFF_FFFF)
    host = HostKernels("own", l2norm._source, wrong.formats)
    found = check(wrong, host, "card", 0)
    assert not found.ok and found.associative == "not tried"
    assert found.findings[0].detail == "0xffffffff at 0x4 is no instruction of the cores"
    assert "not to be used" in str(found)


def test_other_bits_than_the_hosts_are_found(l2norm: ReduceOp) -> None:
    """An image of another op."""
    wrong = builtin("max", "float32").image("float32")
    found = check(wrong, HostKernels("own", l2norm._source, wrong.formats), "card", 0)
    same = next(f for f in found.findings if f.what == "same bits as on the host")
    assert not same.good and not found.ok and "cases differ" in same.detail


def test_what_does_not_end_is_told() -> None:
    @nicemu.reduce_op(element="float32")
    def forever(a: Any, b: Any) -> Any:
        while a > -b - 1:
            a = a * a + 1
        return a

    found = forever.check(Machine("own", budget=10_000))
    assert not found.ok
    memory = next(f for f in found.findings if f.what == "memory kept to")
    assert "does not end" in memory.detail


def test_check_is_shown(l2norm: ReduceOp) -> None:
    found = l2norm.check()
    text = str(found)
    assert text.startswith("l2norm of bfloat16, wide, on card (VLEN 512): good\n")
    assert "65,536 patterns" in text and max(map(len, text.splitlines())) <= 130
    assert found._repr_html_().count("<table>") == 2
    assert json.loads(json.dumps(found.record()))["ok"] is True


def test_notes_are_shown() -> None:
    @nicemu.reduce_op(element="float32")
    def halves(a: Any, b: Any) -> Any:
        return np.float64(a) + b

    assert f"{Path(__file__).name}" in str(halves.check()) and "float64" in str(halves.check())
