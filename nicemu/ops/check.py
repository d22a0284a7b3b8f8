"""What an author should know of an op before trusting it, found by running its image on a core.

Owns: the questions, what counts as an answer, and how answers are shown.  Memory is bounds', what
is tried samples', the host's bits host's.  All but these is asked of an image, whatever made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np

from nicemu._core import VLENS
from nicemu.compiler.host import HostKernels
from nicemu.compiler.target import said, target_of
from nicemu.device.image import LEAVING, Context, Formats, KernelImage
from nicemu.device.isa import uses
from nicemu.device.machine import Machine
from nicemu.device.machine import machine as machine_of
from nicemu.device.nic import Nic, Stream
from nicemu.dtypes import Format, Item, item_of
from nicemu.errors import FaultError, StatusError
from nicemu.ops.about import AboutImage
from nicemu.ops.bounds import bounds
from nicemu.ops.samples import digits, edges, every, ordinary, short, simple
from nicemu.tables import Table

__all__ = ["Check", "Finding", "Law", "check"]

RANDOM = 4096  # random elements or groups of them
SHORT = 512  # the same, of few digits
ROUNDING = 4  # ulp of the largest number involved that rounding explains
SHIFT = 7919  # elements by which the streams of one list are moved against each other
MOST_EDGES = 16  # elements of which all groups with an end of the format are tried
#: law -> the numbers of its operands, and the two ways to merge them
LAWS = {"commutative": (2, "ab", "ba"), "associative": (3, "(ab)c", "a(bc)")}


@dataclass(frozen=True)
class Law:
    """Whether merge obeys a law, on workers' elements, in the form of partial sums.

    Attributes:
        name: "commutative" or "associative".
        numbers: that were merged: "ordinary", or "ends" where one at least is an end of the format,
            such as an infinity or a NaN.
        verdict: "yes": always the same bits; "up to rounding": bits differ, by at most 4 ulp of the
            largest number involved; "no": by more, or an integer differs; "not tried": each case
            raises an exception, or the format has no such numbers.
        cases: groups of elements that were merged both ways.
        differ: of these, how many give other bits.
        raised: groups besides, for which lift, merge or finish raised an exception.
        raising: which exceptions, how often, and the simplest elements for each; "" for none.
        largest_ulp: the largest difference, in ulp of the largest number involved; 0 of integers.
        largest_result_ulp: the same in ulp of the result itself.
        example: the simplest elements that show it, and what both ways give; "" where all agree.
    """

    name: str
    numbers: str
    verdict: str
    cases: int
    differ: int
    raised: int
    raising: str
    largest_ulp: float
    largest_result_ulp: float
    example: str

    @property
    def ulps(self) -> tuple[str, str]:
        """Both as texts."""
        return f"{self.largest_ulp:.3g}", f"{self.largest_result_ulp:.3g}"


@dataclass(frozen=True)
class Finding:
    """An answer.

    Attributes:
        what: was asked.
        found: "yes", "no", or a number.
        detail: on what it rests, or what is wrong.
        good: False where the image must not be used.
    """

    what: str
    found: str
    detail: str
    good: bool = True


@dataclass(frozen=True, repr=False)
class Check(AboutImage):
    """What was found out of an op.

    Attributes:
        findings: static checks, memory, stack, all elements, pairs of them, and the host's bits.
        laws: of merge; none where the op does not run.
        notes: of the compiler.
    """

    findings: tuple[Finding, ...]
    laws: tuple[Law, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True when the image may be used; laws of merge do not count."""
        return all(finding.good for finding in self.findings)

    @property
    def commutative(self) -> str:
        """Verdict of that law on ordinary numbers; "not tried" where the op does not run."""
        return self._verdict("commutative")

    @property
    def associative(self) -> str:
        """Verdict of that law on ordinary numbers; "not tried" where the op does not run."""
        return self._verdict("associative")

    def _verdict(self, name: str) -> str:
        return next(
            (law.verdict for law in self.laws if (law.name, law.numbers) == (name, "ordinary")),
            "not tried",
        )

    def record(self) -> dict[str, Any]:
        """For JSON."""
        told = {"ok": self.ok, **asdict(self)}
        for law in told["laws"]:
            for name in ("largest_ulp", "largest_result_ulp"):  # JSON has no infinity
                law[name] = law[name] if np.isfinite(law[name]) else "inf"
        return told

    def tables(self) -> tuple[Table, ...]:
        """For people: what was found, and the laws of merge where any was tried."""
        head = f"{self.title}: {'good' if self.ok else 'not to be used'}"
        found = [(f.what, f.found, f.detail) for f in self.findings]
        found += [("note", "", note) for note in self.notes]
        laws = [
            (law.name, law.numbers, law.verdict, law.cases, law.raised, law.differ, *law.ulps,
             law.example)
            for law in self.laws
        ]  # fmt: skip
        columns = ("merge is", "numbers", "found", "cases", "raised", "differ", "ulp", "of result",
                   "example")  # fmt: skip
        texts = {"found", "detail", "numbers", "example", "raised"}
        raising = [(law.name, law.numbers, law.raising) for law in self.laws if law.raised]
        tables = [Table(head, ("checked", "found", "detail"), found, texts)]
        if laws:
            said = "cases: merged both ways; ulp: of the largest number involved, at most"
            tables.append(Table(said, columns, laws, texts - {"raised"}))
        if raising:
            said = "of other cases, how many raise an exception, and the simplest"
            tables.append(Table(said, ("merge is", "numbers", "raised"), raising, texts))
        return tuple(tables)


def check(
    image: KernelImage,
    host: HostKernels | None,
    machine: str | Machine,
    seed: int,
    lines: Mapping[int, str] = MappingProxyType({}),
) -> Check:
    """Ask everything.

    Args:
        image: the op.
        host: the same op as code of the host; None: there is none, and nothing is asked of it.
        machine: preset name or :class:`nicemu.Machine`.
        seed: of the random elements.
        lines: offset in the code -> the author's line, where it is written for some cores.
    """
    which = machine_of(machine)
    findings = [_known(image, which, lines)]
    laws: tuple[Law, ...] = ()
    if findings[0].good:
        findings += _kept(image, which)
        lab = _Lab(image, which)
        try:
            findings += _elements(lab, host, seed)
            findings.append(_alike(image, which, seed))
            laws = tuple(
                _law(lab, name, numbers, _ordinary(lab, size, seed) if usual else _ends(lab, size))
                for numbers, usual in (("ordinary", True), ("ends", False))
                for name, (size, *_) in LAWS.items()
            )
        except FaultError as error:
            findings.append(Finding("every element", "no", str(error), good=False))
    return Check(
        op=image.op,
        preset=image.preset,
        element=image.element,
        machine=which,
        findings=tuple(findings),
        laws=laws,
        notes=image.notes,
    )


# ---- the code ------------------------------------------------------------------------------------


def _known(image: KernelImage, machine: Machine, lines: Mapping[int, str]) -> Finding:
    """Is every instruction one of the machine's cores'?"""
    target = target_of(machine)
    found, unknown = uses(image.code)
    lacked = next((use for use in found if use.extension not in target.extensions), None)
    if lacked is not None:
        why = f"is of {said(lacked.extension)}, {target.without(lacked.extension)}"
        detail = f"{lacked.row.name} {why}: {lines.get(lacked.at, f'at {lacked.at:#x}')}"
        return Finding("instructions known", "no", detail, good=False)
    if unknown is not None:
        word = int.from_bytes(image.code[unknown : unknown + 4], "little")
        detail = f"{word:#010x} at {unknown:#x} is no instruction of the cores"
        return Finding("instructions known", "no", detail, good=False)
    used = sorted({use.extension for use in found})
    detail = f"{len(found):,} instructions, {len(image.code):,} bytes, nothing undefined; of "
    return Finding("instructions known", "yes", detail + " ".join(used))


def _kept(image: KernelImage, machine: Machine) -> list[Finding]:
    """Memory and stack."""
    found = bounds(image, machine)
    memory = Finding(
        "memory kept to",
        "no" if found.faults else "yes",
        "; ".join(found.faults) or f"{found.calls:,} calls where no other byte is mapped",
        good=not found.faults,
    )
    stack = Finding("stack", f"{found.stack:,} bytes", f"of {machine.stack:,}")
    return [memory, stack]


# ---- running elements ----------------------------------------------------------------------------


class _Lab:
    """A device with the image, on which exceptions of single elements are found.

    Where something returns statuses, they are shape (count,), uint64, and 0 where there is none.
    """

    def __init__(self, image: KernelImage, machine: Machine) -> None:
        self.nic = Nic(machine, threads=1)
        self.nic.load(image)
        self.payload = min(1024, self.nic.machine.max_payload)

    @property
    def formats(self) -> Formats:
        return self.nic.image.formats

    def run(self, streams: Sequence[Stream], leave: str = "emit") -> tuple[np.ndarray, np.ndarray]:
        """What a device gives, and the statuses that it returns instead."""
        count = streams[0].values.size
        try:
            done = self.nic.reduce(streams, leave=leave, payload=self.payload)
        except StatusError:
            return self._each(streams, leave)
        return done.values, np.zeros(count, np.uint64)

    def _each(self, streams: Sequence[Stream], leave: str) -> tuple[np.ndarray, np.ndarray]:
        """The same, each item in a packet of its own."""
        statuses = np.zeros(streams[0].values.size, np.uint64)
        item = getattr(self.formats, LEAVING[leave])
        least = max(
            self.formats.row_bytes(partials=False), item.size,
            *(s.values.itemsize for s in streams),
        )  # fmt: skip
        values = np.zeros(statuses.size, item.dtype)
        self.nic.reduce(streams, leave=leave, payload=least, out=values, statuses=statuses)
        values[statuses != 0] = 0
        return values, statuses

    def raising(self, statuses: np.ndarray, groups: Sequence[np.ndarray]) -> str:
        """Which exceptions, how often, and the first elements for each."""
        parts = []
        for status in dict.fromkeys(statuses[statuses != 0].tolist()):
            where = np.flatnonzero(statuses == status)
            text = self.nic.image.status_text(status)
            parts.append(f"{where.size:,} {text}: {_shown_elements(groups, where[0])}")
        return "; ".join(parts)


def _shown_elements(groups: Sequence[np.ndarray], at: int) -> str:
    """The elements of a case."""
    return ", ".join(str(group[at]) for group in groups)


def _tried(row: Format, seed: int) -> np.ndarray:
    """All elements of at most 16 bits; of wider ones some, the simplest first."""
    if row.size <= 2:
        return every(row)
    return np.concatenate([simple(row, row.fraction_bits), *_random(row, [seed]), edges(row)])


def _random(row: Format, seeds: Sequence[int]) -> list[np.ndarray]:
    """Groups with an element for each seed, those of the fewest digits first.

    In half of the short ones a single element is random, so that the others can be seen not to
    matter.
    """
    size, number = len(seeds), np.arange(SHORT)
    few = simple(row, 0)[1:5]
    others, turn = few[number // (2 * size) % few.size], number % (2 * size)
    groups = []
    for i, seed in enumerate(seeds):
        numbers = np.where((turn == i) | (turn >= size), short(row, SHORT, seed), others)
        groups.append(np.concatenate([numbers, ordinary(row, RANDOM, seed)]))
    order = np.argsort(sum(map(digits, groups)), kind="stable")
    return [group[order] for group in groups]


def _elements(lab: _Lab, host: HostKernels | None, seed: int) -> list[Finding]:
    """lift and finish on elements, merge on pairs and more; are the bits the host's?"""
    row = lab.formats.element.formats[0]
    elements = _tried(row, seed)
    tried = f"{elements.size:,} {'patterns' if row.size <= 2 else 'elements'}"
    pairs, groups = _ordinary(lab, 2, seed), _groups(_few(lab, 3), 3)
    out = []
    differ = cases = 0
    for what, shown, leave, item, streams in (
        ("lift", tried, "emit", lab.formats.partial, [elements]),
        ("finish", tried, "finish", lab.formats.result, [elements]),
        ("merge", f"{pairs[0].size:,} pairs", "emit", lab.formats.partial, pairs),
        ("", "", "finish", lab.formats.result, groups),  # for the host's bits alone
    ):
        values, statuses = lab.run([Stream(x, rank) for rank, x in enumerate(streams)], leave)
        if host is not None:
            differ += _differing(lab, host, [x[statuses == 0] for x in streams], leave)
        cases += values.size
        if what:
            told = _told(lab, what, shown, streams, values, statuses, item)
            if what == "merge" and statuses.all():  # no two workers can be reduced
                told = replace(told, detail=f"no pair passes: {told.detail}", good=False)
            out.append(told)
    if host is None:
        detail = "assembly runs on cores only"
        out.append(Finding("same bits as on the host", "not asked", detail))
    else:
        out.append(_same("same bits as on the host", differ, cases))
    return out


def _same(what: str, differ: int, cases: int) -> Finding:
    detail = f"{differ:,} of {cases:,} cases differ" if differ else f"{cases:,} cases"
    return Finding(what, "no" if differ else "yes", detail, not differ)


def _alike(image: KernelImage, machine: Machine, seed: int) -> Finding:
    """Are the bits the same with vectors of any length, of payloads one by one and together?"""
    streams = [
        Stream(np.roll(_tried(image.formats.element.formats[0], seed), rank * SHIFT), rank)
        for rank in range(machine.max_fan_in)
    ]
    plain = _Lab(image, replace(machine, max_fan_in=1))
    labs = [_Lab(image, replace(machine, vlen=vlen)) for vlen in _lengths(machine)]
    differ = cases = 0
    partial = []
    for stream in streams:
        values, statuses = plain.run([stream])
        if not statuses.all():
            values[statuses != 0] = values[statuses == 0][0]
        partial.append(Stream(values, stream.rank, 1, True))
    for given in (streams, partial):
        for leave in LEAVING:
            expected, statuses = plain.run(given, leave)
            for lab in labs:
                values, also = lab.run(given, leave)
                other = _bits(values) != _bits(expected)
                wrong = ((statuses == 0) != (also == 0)) | ((statuses == 0) & other)
                differ += int(wrong.sum())
                cases += wrong.size
    return _same("same bits for every VLEN and fan-in", differ, cases)


def _lengths(machine: Machine) -> tuple[int, ...]:
    """Lengths of vectors that a machine's like may have."""
    return VLENS if machine.isa is None else (machine.vlen,)


def _differing(lab: _Lab, host: HostKernels, streams: list[np.ndarray], leave: str) -> int:
    """How many items a device and the host reduce to other bits; the host a chunk at a time."""
    values, _ = lab.run([Stream(x, rank) for rank, x in enumerate(streams)], leave)
    chunk = lab.payload // max(streams[0].itemsize, values.itemsize)
    found = 0
    for number, start in enumerate(range(0, values.size, chunk)):
        part = slice(start, start + chunk)
        context = Context(chunk=number, element=start)
        expected = host.reduce([x[part] for x in streams], leave=leave, context=context)
        found += int(np.sum(_bits(values[part]) != _bits(expected)))
    return found


def _told(
    lab: _Lab,
    what: str,
    tried: str,
    streams: Sequence[np.ndarray],
    values: np.ndarray,
    statuses: np.ndarray,
    item: Item,
) -> Finding:
    """What becomes of elements: exceptions, NaNs and infinities that were not there before."""
    source = item_of(lab.formats.element.formats[0])
    wide = [_wide(elements, source) for elements in streams]
    number, finite = ~np.isnan(wide).any(0), np.isfinite(wide).all(0)
    given, good = _wide(values, item), statuses == 0
    events = [
        ("give NaN and are none", good & np.isnan(given) & number),
        ("are finite and give infinity", good & np.isinf(given) & finite),
    ]
    parts = [lab.raising(statuses, streams)] + [
        f"{int(where.sum()):,} {name}: {_shown_elements(streams, np.flatnonzero(where)[0])}"
        for name, where in events
        if where.any()
    ]
    detail = "; ".join(part for part in parts if part)
    return Finding(what, tried, detail or "no NaN, infinity or exception of its own")


def _wide(values: np.ndarray, item: Item) -> np.ndarray:
    """float64 for each item: NaN where a field is one, else infinite where one is, else 0."""
    out = np.zeros(values.size)
    for name, row in item.fields:
        if row.kind == "float":
            field = values[name] if name else values
            with np.errstate(invalid="ignore"):  # signalling NaNs
                wide = field.astype(np.float64)
            out = np.where(np.isnan(out) | np.isfinite(wide), out, wide)
    return out


def _bits(values: np.ndarray) -> np.ndarray:
    """Items as bytes that can be compared; NaNs are canonical when they leave a core."""
    return np.ascontiguousarray(values).view(f"V{values.dtype.itemsize}")


# ---- laws of merge -------------------------------------------------------------------------------


def _groups(pool: np.ndarray, size: int) -> list[np.ndarray]:
    """All groups of elements of a list, those of elements nearer to its beginning first."""
    ranks = sorted(product(range(len(pool)), repeat=size), key=lambda r: (sum(r), max(r)))
    return list(pool[np.array(ranks)].T)


def _few(lab: _Lab, size: int) -> np.ndarray:
    """The simplest elements."""
    fractions = [row.fraction_bits for row in lab.formats.accumulator.formats]
    pool = simple(lab.formats.element.formats[0], max(fractions))
    return pool if size == 2 else pool[[i for i in range(pool.size) if i < 8 or i >= pool.size - 5]]


def _ordinary(lab: _Lab, size: int, seed: int) -> list[np.ndarray]:
    """Groups of the simplest elements, then of random ones."""
    random = _random(lab.formats.element.formats[0], range(seed + 1, seed + 1 + size))
    groups = zip(_groups(_few(lab, size), size), random, strict=True)
    return [np.concatenate(group) for group in groups]


def _ends(lab: _Lab, size: int) -> list[np.ndarray]:
    """Groups with an end of the format among them; none of a format without ends."""
    ends = edges(lab.formats.element.formats[0])
    pool = np.concatenate([_few(lab, size)[:4], ends])[:MOST_EDGES]
    groups = _groups(np.arange(pool.size), size)
    wanted = np.logical_or.reduce([group >= pool.size - ends.size for group in groups])
    return [pool[group[wanted]] for group in groups]


def _law(lab: _Lab, name: str, numbers: str, groups: list[np.ndarray]) -> Law:
    """Merge groups of elements in two ways and compare."""
    _, *ways = LAWS[name]
    statuses = np.zeros(groups[0].size, np.uint64)

    def run(streams: Sequence[Stream]) -> np.ndarray:
        values, new = lab.run(streams)
        np.copyto(statuses, new, where=statuses == 0)
        return values

    lifted = [
        Stream(run([Stream(elements, rank)]), rank, 1, True) for rank, elements in enumerate(groups)
    ]
    if name == "commutative":
        orders = [lifted, lifted[::-1]]
    else:
        orders = [lifted, [lifted[0], Stream(run(lifted[1:]), 1, 2, True)]]
    results = [run(order) for order in orders]
    raised = int(np.count_nonzero(statuses))
    law = Law(
        name=name,
        numbers=numbers,
        verdict="not tried" if raised == statuses.size else "yes",
        cases=statuses.size - raised,
        differ=0,
        raised=raised,
        raising=lab.raising(statuses, groups),
        largest_ulp=0.0,
        largest_result_ulp=0.0,
        example="",
    )
    at = np.flatnonzero((_bits(results[0]) != _bits(results[1])) & (statuses == 0))
    if not at.size:
        return law
    spread, own, explained = _spread(lab, [s.values[at] for s in lifted], [r[at] for r in results])
    given = zip(ways, _shown([r[at[0]] for r in results]), strict=True)
    shown = ", ".join(f"{way} = {text}" for way, text in given)
    return replace(
        law,
        verdict="up to rounding" if explained else "no",
        differ=int(at.size),
        largest_ulp=spread,
        largest_result_ulp=own,
        example=f"{_shown_elements(groups, at[0])}: {shown}",
    )


def _shown(values: Sequence[Any]) -> list[str]:
    """Two values as text; their bits, where their texts are the same."""
    texts = [str(value) for value in values]
    if texts[0] != texts[1]:
        return texts
    return [f"{np.asarray(value).tobytes()[::-1].hex()} (bits)" for value in values]


def _spread(
    lab: _Lab, operands: list[np.ndarray], results: list[np.ndarray]
) -> tuple[float, float, bool]:
    """How far two results are apart: in ulp of the largest number, in ulp of the result, and
    whether rounding explains it.

    Of records the finished results are compared: a field alone may be any part of a number.
    """
    item: Item = lab.formats.partial
    if not item.scalar:
        item = lab.formats.result
        size = len(operands)
        operands = [lab.run([Stream(x, 0, 1, True)], "finish")[0] for x in operands]
        results = [lab.run([Stream(x, 0, size, True)], "finish")[0] for x in results]
    largest = own = 0.0
    explained = True
    for name, row in item.fields:
        x, y = (r[name] if name else r for r in results)
        if row.kind != "float":
            explained &= bool(np.array_equal(x, y))
            continue
        with np.errstate(all="ignore"):
            wide = [v.astype(np.float64) for v in (x, y)]
            involved = [(o[name] if name else o).astype(np.float64) for o in operands]
            apart = np.abs(wide[0] - wide[1])
            same = (wide[0] == wide[1]) | (np.isnan(wide[0]) & np.isnan(wide[1]))
            apart[same] = 0.0
            apart[~same & ~np.isfinite(apart)] = np.inf
            own = max(own, float((apart / _ulp(row, wide)).max()))
            spread = float((apart / _ulp(row, [*wide, *involved])).max())
        largest = max(largest, spread)
        explained &= spread <= ROUNDING
    return largest, own, explained


def _ulp(row: Format, numbers: Iterable[np.ndarray]) -> np.ndarray:
    """Spacing of a format at the largest of finite magnitudes."""
    magnitude = np.max([np.where(np.isfinite(n), np.abs(n), 0.0) for n in numbers], axis=0)
    lowest = 2 - (1 << (row.exponent_bits - 1))
    exponent = np.maximum(np.frexp(magnitude)[1] - 1, lowest)
    return np.asarray(np.ldexp(1.0, exponent - row.fraction_bits))
