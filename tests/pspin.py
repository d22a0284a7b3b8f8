"""The published figures of PsPIN beside ours: ``python -m tests.pspin``.

PsPIN's documentation (docs/examples.md of its repository) shows a run of its ping-pong example: 32
packets of 1024 bytes, each answered with its addresses swapped.  Here a handler of our own does the
same work with the same instructions, as that page counts them, on an emulated core of the preset
``pspin``; the packets go through ``nicemu.device.schedule``.

What is known of that run, from the repository: there is one message, and a message has home in one
cluster; packets come 20 ns apart, the default of the example's driver; latency goes from a packet's
arrival to its feedback, throughput from the first feedback to the last; a handler's time goes from
the first to the last of the instructions that are counted, the call of it in the core's loop and
what follows its return.  The handler's own order of instructions is not known: ours is that of what
it does, and no load was moved away from the use of its value.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import cache

import numpy as np

from nicemu._core import ACCESS, Cores, Cycles, R, W, X
from nicemu.device.isa import extensions
from nicemu.device.machine import MACHINES, Machine
from nicemu.device.schedule import SCHEDULINGS, Access, Fetch, Handler, Packet, Service, serve
from tests.assemble import assemble
from tests.encode import image

PSPIN = MACHINES["pspin"]
PACKETS, BYTES, APART = 32, 1024, 20  # cycles
SMALLEST = 64  # bytes

CODE, SCRATCHPAD, DRIVER, PAGE = 0x1000, 0x1000_0000, 0x2000_0000, 0x1000
LOOP, HANDLER = CODE, CODE + 0x100  # in lines of their own
ARGUMENTS = SCRATCHPAD + PAGE  # a core's, behind the packet
#: in the loop of a core: the call of the handler
CALL = ("c.mv a0, s0", "c.jalr s1", "c.nop")
#: swap source and destination, of addresses and of ports, and have the packet sent
PING_PONG = (
    "c.lw a3, 0(a0)",  # the task, in the driver
    "c.lw a4, 16(a3)",  # its packet
    "lhu a2, 2(a4)",  # bytes
    "lbu a5, 0(a4)",  # words of the first header
    "andi a5, a5, 15",
    "c.slli a5, 2",
    "c.add a5, a4",  # the second
    "c.lw a3, 12(a4)",
    "c.lw a1, 16(a4)",
    "c.sw a1, 12(a4)",
    "c.sw a3, 16(a4)",
    "lhu a3, 0(a5)",
    "lhu a1, 2(a5)",
    "sh a1, 0(a5)",
    "sh a3, 2(a5)",
    f"lui a0, {DRIVER >> 12:#x}",
    "c.li a1, 0",
    "c.li a3, 2",
    "sw a1, 132(a0)",  # a command: to whom, ...
    "sw a1, 136(a0)",
    "sw a4, 140(a0)",  # from where
    "sw a1, 144(a0)",
    "sw a2, 148(a0)",  # how much
    "sw a3, 152(a0)",  # what
    "lw a0, 128(a0)",  # ... which is given by this
    "c.jr ra",
)
#: of the documentation, in a handler
INSTRUCTIONS = {"loads": 9, "stores": 10, "scratchpad": 11, "driver": 8, "all": 29}


# ---- the handler, on a core ----------------------------------------------------------------------


def packet() -> bytes:
    """The headers of one: five words, then two ports."""
    addresses = np.array([0x01020304, 0x05060708], "<u4").tobytes()
    ports = np.array([1111, 2222], "<u2").tobytes()
    return bytes([5, 0]) + BYTES.to_bytes(2, "little") + bytes(8) + addresses + ports


def core(machine: Machine) -> Cores:
    """A core that is about to call the handler, whose clock runs."""
    assert machine.isa is not None
    cores = Cores(1, machine.vlen, extensions=extensions(machine.isa, machine.vlen))
    cores.map(CODE, PAGE, R | W | X)
    cores.map(SCRATCHPAD, 2 * PAGE, R | W)
    cores.map(DRIVER, PAGE, R | W)
    for at, lines in ((LOOP, CALL), (HANDLER, PING_PONG)):
        cores.write(at, image(map(assemble, lines)))
    cores.write(SCRATCHPAD, packet())
    cores.write(ARGUMENTS, DRIVER.to_bytes(4, "little"))
    cores.write(DRIVER + 16, SCRATCHPAD.to_bytes(4, "little"))
    cores.x()[8], cores.x()[9] = ARGUMENTS, HANDLER
    cores.set_pc(LOOP)
    cores.start_clock(**asdict(machine.timing))
    return cores


@dataclass(frozen=True)
class Alone:
    """A handler that nothing disturbs, with its code in the instruction cache or not.

    Attributes:
        cycles: from its first instruction to its last.
        begins: cycle and pc of each instruction.
        accesses: to memory, shape (n,), dtype ACCESS.
    """

    cycles: Cycles
    begins: tuple[tuple[int, int], ...]
    accesses: np.ndarray


@cache
def alone(cold: bool) -> Alone:
    """Run it; each instruction ends a run, so that it is known when the next begins."""
    timing = PSPIN.timing if cold else replace(PSPIN.timing, line=0)
    cores = core(replace(PSPIN, timing=timing))
    room = np.zeros(64, ACCESS)
    cores.record_accesses(room)
    begins = []
    for _ in range(len(CALL) + len(PING_PONG)):
        last = cores.cycles()
        begins.append((last.total, cores.pc()))
        cores.run(1)
    sent = cores.read(DRIVER + 132, 24)
    assert np.frombuffer(sent, "<u4").tolist() == [0, 0, SCRATCHPAD, 0, BYTES, 2]
    swapped = np.frombuffer(cores.read(SCRATCHPAD + 12, 8), "<u4").tolist()
    assert swapped == [0x05060708, 0x01020304]
    assert np.frombuffer(cores.read(SCRATCHPAD + 20, 4), "<u2").tolist() == [2222, 1111]
    return Alone(last, tuple(begins), room[: cores.accesses()])


def counted() -> dict[str, int]:
    """Its instructions, as the documentation counts them."""
    texts = [line.removeprefix("c.") for line in (*CALL, *PING_PONG)]
    kinds = Counter(line[0] for line in texts if "(" in line)
    to_driver = int((alone(cold=False).accesses["address"] >= DRIVER).sum())
    accesses = kinds.total()
    return {
        "loads": kinds["l"],
        "stores": kinds["s"],
        "scratchpad": accesses - to_driver,
        "driver": to_driver,
        "all": len(texts),
    }


@cache
def handler() -> Handler:
    """What it asks for when its code is there.  The driver answers as the scratchpad does, in the
    next cycle (hpu_driver.sv), and has no banks.
    """
    warm, line = alone(cold=False), PSPIN.timing.line
    steps: list[Fetch | Access] = []
    for (cycle, pc), text in zip(warm.begins, (*CALL, *PING_PONG), strict=True):
        size = 2 if text.startswith("c.") else 4
        for number in range(pc // line, (pc + size - 1) // line + 1):
            if number not in {step.line for step in steps if isinstance(step, Fetch)}:
                steps.append(Fetch(cycle, number))
    for row in warm.accesses:
        address = int(row["address"]) - SCRATCHPAD
        if address < 2 * PAGE:
            steps.append(Access(int(row["cycle"]), address, int(row["bytes"]), address < PAGE))
    steps.sort(key=lambda step: step.cycle)
    terms = {name: cycles for name, cycles in warm.cycles.terms.items() if cycles}
    return Handler(terms, tuple(steps))


# ---- packets through the device ------------------------------------------------------------------


def run(packets: int = PACKETS, size: int = BYTES, apart: int = APART) -> list[Service]:
    """Packets of one message."""
    arrivals = [Packet(i * apart, 0, size) for i in range(packets)]
    return serve(arrivals, handler(), PSPIN, SCHEDULINGS["pspin"])


def throughput(services: list[Service]) -> float:
    """Gb/s, between the first packet that is done and the last."""
    done = [service.done for service in services]
    bits = 8 * services[0].packet.bytes * (len(done) - 1)
    return bits * PSPIN.frequency / (max(done) - min(done)) / 1e9


# ---- beside what is published --------------------------------------------------------------------


INPUT, PREDICTION = "an input", "a prediction"
WAY_IN = ("parse", "DMA", "dispatch")
HANDLED = ("issue", "hazards", "branches", "fetch", "conflicts")
#: ns from the first handler of core 0 to those after it, in the documentation
STARTS = [0, 100, 160, 220]


@dataclass(frozen=True)
class Figure:
    """A published figure.

    Attributes:
        name: what it is, and its unit.
        published, ours: its value there and here.
        terms: what ours is the sum of.
        kind: INPUT: numbers of the machine were chosen by it; PREDICTION: they were not.
    """

    name: str
    published: float
    ours: float
    terms: dict[str, float]
    kind: str

    @property
    def error(self) -> float:
        """Of ours."""
        return self.ours / self.published - 1

    def row(self) -> str:
        """A line of the table."""
        terms = ", ".join(f"{name} {round(n, 1):g}" for name, n in self.terms.items() if n)
        return (
            f"| {self.name} | {self.published:g} | {self.ours:.5g} | {self.error:+.1%} "
            f"| {self.kind} | {terms} |"
        )


def figures() -> list[Figure]:
    """All, in the order of the table."""
    services = run()
    (small,) = run(packets=1, size=SMALLEST)
    cold = services[0]
    warm = [each for each in services if not each.terms["fetch"]]
    least, most = (choose(services, key=lambda s: s.latency) for choose in (min, max))
    done = [each.done for each in services]
    between = (max(done) - min(done)) / (PACKETS - 1)
    late = {"apart": APART, "first late": (services[-1].latency - cold.latency) / (PACKETS - 1)}
    rate, offered = throughput(services), 8 * BYTES * PSPIN.frequency / APART / 1e9
    sum_of_rates = {"offered": offered, "first late": rate - offered}
    return [
        Figure("64 bytes to the handler, ns", 26, *of([small], *WAY_IN), INPUT),
        Figure("handler, first (cold), ns", 87, *of([cold], *HANDLED), INPUT),
        Figure("handler, later (warm), ns", 38, *of(warm, *HANDLED), PREDICTION),
        Figure("latency, least, ns", 108, *of([least]), INPUT),
        Figure("latency, mean, ns", 119.75, *of(services), PREDICTION),
        Figure("latency, most, ns", 155, *of([most]), PREDICTION),
        Figure("from packet to packet, ns", 18.484, between, late, PREDICTION),
        Figure("throughput, Gb/s", 443.197, rate, sum_of_rates, PREDICTION),
    ]


def of(services: list[Service], *names: str) -> tuple[float, dict[str, float]]:
    """The mean of what their time was spent on, or of some of it: in all, and by term."""
    terms = {
        name: sum(each.terms[name] for each in services) / len(services)
        for name in services[0].terms
        if not names or name in names
    }
    return sum(terms.values()), terms


def starts(core: int = 0) -> list[int]:
    """When that core begins handlers, from the first on; the documentation has STARTS of core 0."""
    begins = [each.begin for each in run() if each.core == core]
    return [begin - begins[0] for begin in begins]


def table() -> list[str]:
    """The lines of the table of guide/time.md."""
    return [
        "| figure | PsPIN | here | difference | it is | terms |",
        "|---|---|---|---|---|---|",
        *(figure.row() for figure in figures()),
    ]


if __name__ == "__main__":
    print("\n".join(table()))
    print(f"core 0 begins at {starts()[: len(STARTS)]}, PsPIN's at {STARTS}")
