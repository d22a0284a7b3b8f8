"""Banks: what a core asks of memory, and how long it waits for others."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nicemu
from nicemu._core import ACCESS, BEAT, Cores
from nicemu.device.banks import Handed, beats, booked, masks, waits
from nicemu.device.machine import MACHINES, Machine
from nicemu.errors import ArgumentError
from tests import rtl
from tests.assemble import assemble
from tests.encode import image

CARD = MACHINES["card"]


def asked(cycle: int, address: int, size: int = 4, beat: int = 4, atomic: int = 0) -> np.ndarray:
    return np.array([(cycle, address, size, beat, atomic)], ACCESS)


def accesses(lines: list[str], machine: Machine = CARD) -> np.ndarray:
    """What instructions ask, x11 at rtl.DATA, v8 the indices 0, 1, 2, ... of 16 bits."""
    head = [assemble(line) for line in ("vsetvli a5, zero, e16,m1,ta,ma", "vid.v v8")]
    code = image(head + [assemble(line) for line in lines] + [rtl.EBREAK])
    cores = rtl.hart(machine, code)
    cores.x()[11:15] = rtl.DATA, rtl.DATA + rtl.PAGE, 6, 3
    cores.run(len(head))
    room = np.zeros(1000, ACCESS)
    cores.record_accesses(room)
    rtl.finish(cores)
    return room[: cores.accesses()]


# ---- the record ----------------------------------------------------------------------------------


def test_scalar_accesses() -> None:
    """One a cycle; across a word of the 8-byte port, two; what uses a load waits for it."""
    got = accesses(["lw t0, 4(a1)", "sd t0, 6(a1)", "lb t1, 3(a1)", "amoadd.w t2, t0, (a1)"])
    at = got["address"].astype(np.int64) - rtl.DATA
    first = int(got["cycle"][0])
    assert at.tolist() == [4, 6, 3, 0] and got["bytes"].tolist() == [4, 8, 1, 4]
    # the store waits a cycle for t0; it takes two
    assert (got["cycle"].astype(np.int64) - first).tolist() == [0, 2, 4, 5]
    assert got["atomic"].tolist() == [0, 0, 0, 1]
    wanted = beats(got[1:2], CARD)
    assert wanted["cycle"].tolist() == [first + 2, first + 3]
    assert wanted["banks"].tolist() == [1 << 1, 0b1100]


def test_vector_accesses() -> None:
    """Unit-stride by words of the unit, one a cycle; others by element, four a cycle."""
    got = accesses(["vle16.v v16, (a1)"])
    assert got["bytes"].tolist() == [64] and got["beat"].tolist() == [32]
    wanted = beats(got, CARD)
    assert wanted["banks"].tolist() == [0xFF, 0xFF00] and np.diff(wanted["cycle"]).tolist() == [1]
    for line, places in (
        ("vlse16.v v16, (a1), a3", [6 * i for i in range(32)]),
        ("vluxei16.v v16, (a1), v8", list(range(32))),
        ("vlseg2e16.v v16, (a1)", [2 * i for i in range(64)]),
    ):
        got = accesses([line])
        assert (got["address"] - np.uint64(rtl.DATA)).tolist() == places
        assert (got["cycle"] - got["cycle"][0]).tolist() == [i // 4 for i in range(len(places))]
        assert set(got["bytes"].tolist()) == {2}
    assert not accesses(["vsetivli zero, 0, e16,m1,ta,ma", "vle16.v v16, (a1)"]).size


def test_what_did_not_happen_is_not_recorded() -> None:
    cores = rtl.hart(CARD, image([assemble("lw t0, 0(a1)"), assemble("lw t0, 0(zero)")]))
    cores.x()[11] = rtl.DATA
    room = np.zeros(8, ACCESS)
    cores.record_accesses(room)
    cores.run(10)
    assert cores.accesses() == 1


def test_a_record_needs_a_clock_and_says_what_it_lost() -> None:
    with pytest.raises(ArgumentError, match="without a clock"):
        Cores().record_accesses(np.zeros(1, ACCESS))
    cores = rtl.hart(CARD, image([assemble("lw t0, 0(a1)")] * 5 + [rtl.EBREAK]))
    cores.x()[11] = rtl.DATA
    room = np.zeros(8, ACCESS)
    cores.record_accesses(room[:3])
    rtl.finish(cores)
    assert cores.accesses() == 5 and not room[3:]["bytes"].any() and room[:3]["bytes"].all()


def test_a_record_changes_no_cycle() -> None:
    code = image([assemble(line) for line in rtl.sequence("vfadd_loop", 16, 4) * 20] + [rtl.EBREAK])
    totals = []
    for room in (None, np.zeros(100, ACCESS)):
        cores = rtl.hart(CARD, image([assemble("vsetvli a5, zero, e16,m4,ta,ma")]) + code)
        cores.x()[11:15] = rtl.DATA, rtl.DATA + rtl.PAGE, rtl.DATA + 2 * rtl.PAGE, 16
        if room is not None:
            cores.record_accesses(room)
        totals.append((rtl.finish(cores), cores.cycles()))
    assert totals[0] == totals[1]


# ---- beats ---------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 20), st.integers(0, 600), st.integers(1, 80),
            st.sampled_from([4, 8, 32, 64]), st.integers(0, 1),
        ),
        max_size=12,
    ),
    st.sampled_from([1, 2, 8, 16, 32, 64]),
    st.sampled_from([4, 8]),
)  # fmt: skip
def test_beats_are_the_banks_of_every_byte(
    rows: list[tuple[int, ...]], banks: int, width: int
) -> None:
    wanted: dict[int, list[int]] = {}
    for cycle, address, size, beat, atomic in rows:
        for byte in range(address, address + size):
            both = wanted.setdefault(cycle + byte // beat - address // beat, [0, 0])
            bank = 1 << (byte // width % banks)
            both[0] |= bank
            both[1] |= bank * atomic
    got = beats(np.array(rows, ACCESS), replace(CARD, banks=banks, bank_bytes=width))
    assert [tuple(map(int, row)) for row in got] == [(c, *wanted[c]) for c in sorted(wanted)]


def test_no_bytes_have_no_banks() -> None:
    at = np.array([0, 4, 5], np.uint64)
    assert masks(at, at + np.uint64(4), CARD).tolist() == [0b1, 0b10, 0b110]
    for begins, ends in ((at, at), (at, at[::-1]), (at, at[:2])):
        with pytest.raises(ArgumentError):
            masks(begins, ends, CARD)
    with pytest.raises(ArgumentError):
        beats(asked(0, 0, size=0), CARD)


# ---- who waits -----------------------------------------------------------------------------------


def model(cores: list[np.ndarray], dma: np.ndarray, hold: int) -> list[int]:
    """Cycle by cycle, with no event skipped: the rule as the guide states it."""
    todo = [[tuple(map(int, row)) for row in core] for core in cores]
    engine = {int(row["cycle"]): int(row["banks"]) for row in dma}
    late, left = [0] * len(cores), [0] * len(cores)
    pointer, free = [0] * 64, [0] * 64
    now = 0
    while any(todo):
        due = [i for i, rows in enumerate(todo) if rows and rows[0][0] + late[i] == now]
        for i in due:
            left[i] = left[i] or todo[i][0][1]
        for bank in range(64):
            asking = [i for i in due if left[i] >> bank & 1]
            if not asking or free[bank] > now or engine.get(now, 0) >> bank & 1:
                continue
            order = sorted(asking, key=lambda i: (i < pointer[bank], i))
            after = sorted(asking, key=lambda i: (i <= pointer[bank], i))
            winner, pointer[bank] = order[0], after[0]
            left[winner] &= ~(1 << bank)
            free[bank] = now + 1 + hold * (todo[winner][0][2] >> bank & 1)
        for i in due:
            if left[i]:
                late[i] += 1
            else:
                todo[i].pop(0)
        now += 1
    return late


courses = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 15), st.integers(0, 15)), max_size=12,
    unique_by=lambda row: row[0],
).map(lambda rows: np.array(sorted((c, b, b & h) for c, b, h in rows), BEAT))  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(courses, min_size=1, max_size=8), courses, st.integers(0, 3))
def test_waits_are_the_rule_s(cores: list[np.ndarray], dma: np.ndarray, hold: int) -> None:
    from nicemu._core import bank_waits

    assert bank_waits(cores, dma, hold) == model(cores, dma, hold)


def test_a_beat_of_the_dma_engine_wins() -> None:
    core = np.concatenate([asked(3, 0), asked(4, 4)])
    dma = asked(3, 0, 64, 64)
    assert waits([core], CARD, dma) == [1]
    assert waits([core], CARD, asked(2, 0, 64, 64)) == [0]
    assert waits([asked(3, 64)], CARD, dma) == [0]  # another bank


def test_an_atomic_keeps_its_bank() -> None:
    other = asked(1, 256)
    assert waits([asked(0, 0, atomic=1), other], CARD) == [0, 1]
    assert waits([asked(0, 0), other], CARD) == [0, 0]


# ---- who waits in a fabric -----------------------------------------------------------------------


def booking_model(handed: list[Handed], machine: Machine) -> list[int]:
    """Bank by bank, with a set of the cycles in which it is taken."""
    taken: list[set[int]] = [set() for _ in range(machine.banks)]
    span = machine.banks * machine.bank_bytes
    out = []
    for one in handed:
        late = 0
        if one.bytes:
            for byte in range(one.address, one.address + one.bytes, machine.bank_bytes):
                cycle = one.start + (byte - one.address) // machine.dma_bytes
                bank = taken[byte % span // machine.bank_bytes]
                while cycle in bank:
                    cycle += 1
                bank.add(cycle)
        for cycle, banks, held in (map(int, row) for row in one.beats):
            if cycle >= one.cycles:
                break
            wanted = [b for b in range(machine.banks) if banks >> b & 1]
            now = one.start + cycle + late
            while wanted:
                for b in [b for b in wanted if now not in taken[b]]:
                    wanted.remove(b)
                    taken[b] |= set(range(now, now + 1 + (held >> b & 1) * machine.atomic_hold))
                now += 1
            late = now - 1 - one.start - cycle
        out.append(late)
    return out


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 40), st.integers(0, 40), courses).map(lambda h: Handed(*h)),
            st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(1, 12)).map(
                lambda h: Handed(h[0], address=4 * h[1], bytes=4 * h[2])
            ),
        ),
        max_size=10,
    ),
    st.integers(0, 3),
    st.sampled_from([4, 8, 16]),
)  # fmt: skip
def test_bookings_are_the_rule_s(handed: list[Handed], hold: int, dma: int) -> None:
    machine = replace(CARD, banks=4, atomic_hold=hold, dma_bytes=dma)
    assert booked(handed, machine) == booking_model(handed, machine)


def test_what_was_handed_out_before_keeps_its_banks() -> None:
    """Also from a later cycle on; what comes after finds the gaps."""
    two = beats(np.concatenate([asked(0, 0), asked(3, 0)]), CARD)
    one = two[:1]
    calls = [Handed(10, 9, two), Handed(10, 9, one), Handed(11, 9, one), Handed(13, 9, one)]
    assert booked(calls, CARD) == [0, 1, 1, 1]
    assert booked(calls[::-1], CARD) == [0, 0, 0, 2]  # 13, 11, 10, and then 12


@pytest.mark.parametrize("name", ["start", "cycles", "address", "bytes"])
def test_bookings_have_no_numbers_below_0(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name} -1 is out of range"):
        booked([Handed(0), Handed(0)._replace(**{name: -1})], CARD)


def test_the_dma_engine_displaces() -> None:
    """It takes the bank from the call in front of it: the one behind waits for that, too."""
    one = beats(asked(0, 0), CARD)
    call, payload = Handed(5, 9, one), Handed(5, address=0, bytes=64)
    assert booked([call, payload, call], CARD) == [0, 0, 2]
    assert booked([payload, call, call], CARD) == [0, 1, 2]
    assert booked([call, payload._replace(address=64), call], CARD) == [0, 0, 1]


@pytest.mark.parametrize("how", [{"cycles": True}, {"conflicts": True}])
def test_what_a_chunk_asks(how: dict[str, bool]) -> None:
    """As much as is read and written, once; the same whenever, and however cycles are counted."""
    nic = nicemu.Nic(**how)
    nic.load(nicemu.kernel("sum", "bfloat16"))
    streams = [nicemu.Stream(np.ones(512, nicemu.bfloat16))] * 4
    first, second = nic.asked(streams), nic.asked(streams)
    assert first.tobytes() == second.tobytes()
    vector = first["banks"][np.bitwise_count(first["banks"]) == 8]
    assert vector.size == (4 * 2 + 2) * 512 // 32
    total = nic.reduce(streams).cores[0].cycles
    assert total is not None and first["cycle"][-1] < total.total - total.terms["conflicts"]


def test_what_a_chunk_asks_needs_a_clock() -> None:
    nic = nicemu.Nic()
    nic.load(nicemu.kernel("sum", "bfloat16"))
    with pytest.raises(ArgumentError, match="make a Nic with cycles=True"):
        nic.asked([np.ones(5, nicemu.bfloat16)])


def test_what_a_chunk_asks_is_of_one_packet() -> None:
    nic = nicemu.Nic(conflicts=True)
    nic.load(nicemu.kernel("sum", "bfloat16"))
    with pytest.raises(ArgumentError, match="513 elements: pass one packet of each, at most 512"):
        nic.asked([np.ones(513, nicemu.bfloat16)])
    last = nic.reduce([np.ones(513, nicemu.bfloat16)]).cores[0].cycles
    assert last is not None and "conflicts" in last.terms  # it goes on as it was made


def test_bookings_far_ahead() -> None:
    """The table grows with what lies ahead, and gives up where nobody would meet."""
    one = beats(asked(0, 0), CARD)
    far, beyond = (1 << 22) - 1, 1 << 22
    calls = [Handed(at, 9, one) for at in (far, far, beyond, beyond, 0, 0)]
    assert booked(calls, CARD) == [0, 1, 0, 0, 0, 1]
    assert booked([Handed(10**12, 9, one)] * 2, CARD) == [0, 1]  # far from the first, that is


#: kernel -> cycles per iteration on the RTL of eight CV32E40P and the interconnect of PsPIN, by
#: active cores; 64 banks.  The text is ours: eight accesses to one word, back to back or each used.
MEASURED = {
    "loads": (["lw t0, 0(a1)"] * 8, {1: 12, 2: 16, 4: 32, 8: 64}),
    "stores": (["sw t0, 0(a1)"] * 8, {1: 12, 2: 16, 4: 32, 8: 64}),
    "loads, used": (["lw t0, 0(a1)", "add t1, t1, t0"] * 8, {1: 28, 2: 28, 4: 35, 8: 64}),
}


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.parametrize("banks", [64, 32, 16, 8])
def test_eight_cores_take_the_cycles_of_rtl(name: str, banks: int) -> None:
    """Within 5 %, as ``python -m tests.rtl`` has it for all kernels that were measured."""
    body, measured = MEASURED[name]
    machine = replace(MACHINES["cv32e40p"], banks=banks)
    turns = 100
    lines = [*body, "addi a0, a0, -1"]
    at = rtl.CODE + 4 * len(lines)
    code = image([assemble(line) for line in lines])
    code += image([assemble(f"bne a0, zero, {rtl.CODE:#x}", at), rtl.EBREAK])
    cores = rtl.hart(machine, code)
    cores.x()[10:12] = turns, rtl.DATA
    room = np.zeros(8 * turns, ACCESS)
    cores.record_accesses(room)
    alone, _ = rtl.finish(cores)
    for active, cycles in measured.items():
        lost = waits([room] * active, machine)
        assert abs((alone + sum(lost) / active) / turns / cycles - 1) < 0.05, (active, lost)


# ---- the device ----------------------------------------------------------------------------------


def reduced(streams: list[np.ndarray], **how: object) -> nicemu.ReduceResult:
    nic = nicemu.Nic(**how)  # type: ignore[arg-type]
    nic.load(nicemu.kernel("sum", "bfloat16"))
    return nic.reduce(streams)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_conflicts_are_a_term(count: int) -> None:
    """They come on top, depend on no host thread, and change no bit."""
    rng = np.random.default_rng(5)
    streams = [rng.standard_normal(40_000).astype(nicemu.bfloat16) for _ in range(count)]
    plain, counted = reduced(streams), reduced(streams, cycles=True)
    one, two = (reduced(streams, conflicts=True, threads=n) for n in (1, 2))
    assert plain.values.tobytes() == one.values.tobytes() == two.values.tobytes()
    assert [c.cycles for c in one.cores] == [c.cycles for c in two.cores]
    for alone, shared in zip(counted.cores, one.cores, strict=True):
        assert alone.cycles is not None and shared.cycles is not None
        lost = shared.cycles.terms["conflicts"]
        assert alone.cycles.waiting(lost) == shared.cycles
        assert sum(shared.cycles.terms.values()) == shared.cycles.total
    assert any(c.cycles is not None and c.cycles.terms["conflicts"] for c in one.cores)


def test_clusters_share_no_banks() -> None:
    streams = [np.ones(40_000, nicemu.bfloat16)] * 3
    machine = replace(CARD, clusters=8)
    for core in reduced(streams, machine=machine, conflicts=True).cores:
        assert core.cycles is not None and core.cycles.terms["conflicts"] == 0


def test_a_record_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nicemu.device.nic, "RECORD", 10)
    with pytest.raises(ArgumentError, match="of which 10 can be recorded: reduce less"):
        reduced([np.ones(40_000, nicemu.bfloat16)] * 3, conflicts=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"banks": 65}, "banks 65 is out of range"),
        ({"banks": 12}, "use powers of two"),
        ({"bank_bytes": 3}, "use powers of two"),
        ({"bank_bytes": True}, "bank_bytes True is no whole number"),
        ({"clusters": 3}, "8 cores in 3 clusters"),
        ({"atomic_hold": -1}, "atomic_hold -1"),
    ],
)
def test_machines_are_checked(change: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        replace(CARD, **change)  # type: ignore[arg-type]


def test_presets() -> None:
    assert MACHINES["pspin"].clusters == 4 and MACHINES["pspin"].cores == 32
    assert "clusters" in asdict(CARD)


def test_an_access_ends_before_the_end_of_addresses() -> None:
    """Beyond it the words of several of them would add up to few."""
    beyond = np.array([(0, 2**64 - 4, 8, 8, 0)] * 8, ACCESS)
    with pytest.raises(ArgumentError, match="accesses"):
        beats(beyond, MACHINES["card"])
