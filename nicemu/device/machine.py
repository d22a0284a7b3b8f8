"""Machines as data: what a NIC is made of.

Owns: the record and its presets, each number with its source.  Nothing here runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from nicemu.arguments import known, real, whole
from nicemu.errors import ArgumentError

__all__ = ["MACHINES", "SECOND", "Machine", "Network", "Timing", "machine"]

SECOND = 10**12  # picoseconds, in which virtual time counts

KIB = 1024
MEGA = 1_000_000
LINE = 64  # alignment of what lies in a scratchpad
LARGEST = {
    "cores": 64, "max_payload": 1 << 20, "max_fan_in": 8, "budget": (1 << 63) - 1,
    "clusters": 64, "banks": 64, "bank_bytes": 64, "dma_bytes": 4096,
}  # fmt: skip
ALL_SCRATCHPADS = 512 * KIB * KIB  # bytes: what the device's address map (nic) has room for


@dataclass(frozen=True)
class Timing:
    """What instructions cost on a core: cycles beyond the one in which each is issued.

    The defaults are those of CV32E40P, an in-order core of four stages.  Sources: its user manual,
    chapter "Pipeline Details"; its RTL (cv32e40p_controller, _apu_disp, _ex_stage); cycles counted
    on that RTL.  guide/timing.md has the rules.

    Attributes:
        taken_branch: the branch is decided a stage after the decoder: two instructions are lost.
        jump: jal and jalr leave in the decoder: one is lost.
        misaligned_target: of a branch or jump to a 4-byte instruction at 2 mod 4: two fetches.
        load_use: from a load to what reads its register, store data included.
        jump_register: jalr reads its register a stage earlier than others.
        mulh: upper half of a product, in five cycles; the lower half has none.
        div: division and remainder; and a cycle for each leading zero of the low 32 bits of
            |divisor|.
        csr: counters and CSRs that change what follows flush the pipeline.
        fence: waits for what is under way and fetches again; so do mret and wfi.
        port: bytes of a word of the data port, 4 or 8.
        crossing: each further word that an access touches.
        fp_latency: of FP instructions but division and square root.  Up to 1 they are pipelined,
            above it the FPU takes one at a time, and its results take the ALU's way to the
            registers.
        fdiv_latency: of FP division and square root, one at a time.
        line, miss: bytes of a line of the instruction cache, cycles when it is first used; line 0:
            all fetches hit.
        word: bits that the vector unit reads of a register group in a cycle; 0: there is none, and
            the following mean nothing.
        in_flight: vector instructions between their issue and their retirement, 1..4.
        strided: elements a cycle of loads and stores that are not unit-stride.
        memory_latency: cycles in which memory answers.
        load_latency: from asking for a word to a chained use of it, without memory_latency.
        load_load, load_store, store_store, store_load: between two accesses of the one load/store
            unit; a store waits for the answers to loads, memory_latency more.
        vfp_latency, vfmisc_latency: from a word to a chained use of its result; misc: comparisons,
            minimum, maximum, signs, moves.
        vfdiv: cycles a word of FP division and square root.
        vint, vint_latency: cycles a word of the integer lanes, and to a use.
        vdiv: cycles a word of integer division.
        slide, slide_latency: between two permutations, and to a use.
        fp_reduction, fp_merge, int_reduction: a reduction beyond its words; FP sums stand in the
            pipeline, up to vfp_latency of them, and are halved in fp_merge each time.
    """

    taken_branch: int = 2
    jump: int = 1
    misaligned_target: int = 1
    load_use: int = 1
    jump_register: int = 1
    mulh: int = 4
    div: int = 2
    csr: int = 3
    fence: int = 3
    port: int = 4
    crossing: int = 1
    fp_latency: int = 1
    fdiv_latency: int = 18
    line: int = 0
    miss: int = 0
    word: int = 0
    in_flight: int = 0
    strided: int = 0
    memory_latency: int = 0
    load_latency: int = 0
    load_load: int = 0
    load_store: int = 0
    store_store: int = 0
    store_load: int = 0
    vfp_latency: int = 0
    vfmisc_latency: int = 0
    vfdiv: int = 0
    vint: int = 0
    vint_latency: int = 0
    vdiv: int = 0
    slide: int = 0
    slide_latency: int = 0
    fp_reduction: int = 0
    fp_merge: int = 0
    int_reduction: int = 0


CV32E40P = Timing()
# Spatz: four FPUs of 64 bits, one integer lane of 64 bits, four memory ports of 64 bits.  Its RTL
# (spatz_controller, _vfu, _vlsu) has the structure, cycles counted on it the numbers, but for two
# that nobody has counted: vfdiv is that of the scalar divider, vdiv a bit of a quotient a cycle.
# The port is a guess for a core of 64 bits.
SPATZ = replace(
    CV32E40P,
    port=8,
    word=256,
    in_flight=4,
    strided=4,
    memory_latency=1,
    load_latency=4,
    load_load=1,
    load_store=3,
    store_store=4,
    store_load=5,
    vfp_latency=4,
    vfmisc_latency=3,
    vfdiv=19,
    vint=4,
    vint_latency=3,
    vdiv=256,
    slide=2,
    slide_latency=3,
    fp_reduction=22,
    fp_merge=4,
    int_reduction=19,
)


@dataclass(frozen=True)
class Machine:
    """A NIC: cores, their vector width and their memories.

    Attributes:
        name: preset name.
        cores: number of RISC-V cores (harts), 1..64.
        vlen: bits of a vector register: 128, 256, 512 or 1024.
        scratchpad: bytes of scratchpad each core may use for accumulators and payloads.
        stack: bytes of stack per core.
        budget: most instructions + active vector elements of one handler call.
        max_payload: most bytes of one packet's payload.
        max_fan_in: most payloads that one handler call takes, 1..8.
        isa: ISA string of what the cores have; None: everything.
        frequency: of the cores, 1e6..1e11 Hz; virtual time counts in whole picoseconds, and rounds
            a cycle down to them.
        timing: what instructions cost.
        clusters: groups of equally many cores; those of a cluster share a scratchpad.
        banks: of the scratchpad of a cluster, 1..64, word-interleaved.
        bank_bytes: width of a bank.
        atomic_hold: cycles for which an atomic keeps its bank beyond its own.
        parse, dispatch, egress: cycles from a frame's last bit to its DMA, from there to its
            handler, and from the handler's end to the first bit of what leaves.
        dma_bytes: that the DMA engine of a cluster moves in a cycle.
    """

    name: str
    cores: int = 8
    vlen: int = 512
    scratchpad: int = 128 * KIB
    stack: int = 16 * KIB
    budget: int = 1_000_000
    max_payload: int = 4096
    max_fan_in: int = 8
    isa: str | None = None
    frequency: int = 1_000_000_000
    timing: Timing = field(default=SPATZ)
    clusters: int = 1
    banks: int = 64
    bank_bytes: int = 4
    atomic_hold: int = 1
    parse: int = 12
    dispatch: int = 13
    egress: int = 29
    dma_bytes: int = 64

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ArgumentError: a field is outside its range.
        """
        for row in fields(self):
            value = getattr(self, row.name)
            if row.name in ("name", "isa", "timing"):
                continue
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise ArgumentError(f"{row.name} {value!r} is no whole number")
        if not isinstance(self.name, str):
            raise ArgumentError(f"name {self.name!r} of a machine is no text")
        if not isinstance(self.isa, str | None):
            raise ArgumentError(f"isa {self.isa!r} is no text: use such as 'rv64gcv', or None")
        if not isinstance(self.timing, Timing):
            raise ArgumentError(
                f"timing {self.timing!r} is no Timing: use nicemu.device.machine.Timing"
            )
        for name, most in LARGEST.items():
            if not 1 <= getattr(self, name) <= most:
                raise ArgumentError(f"{name} {getattr(self, name)} is out of range: use 1..{most}")
        if self.cores % self.clusters:
            raise ArgumentError(f"{self.cores} cores in {self.clusters} clusters: use a multiple")
        if self.banks & (self.banks - 1) or self.bank_bytes & (self.bank_bytes - 1):
            raise ArgumentError(f"{self.banks} banks of {self.bank_bytes} bytes: use powers of two")
        whole("frequency", self.frequency, MEGA, 100_000 * MEGA, " Hz")
        for name in ("atomic_hold", "parse", "dispatch", "egress"):
            if not 0 <= getattr(self, name) < 4096:
                raise ArgumentError(
                    f"{name} {getattr(self, name)} is out of range: use 0..4095 cycles"
                )
        if self.vlen not in (128, 256, 512, 1024):
            raise ArgumentError(f"vlen {self.vlen} is not supported: use 128, 256, 512 or 1024")
        # the accumulator and the destination may be of twice the payload's width
        need = -(-self.max_payload // LINE) * LINE * (self.max_fan_in + 2 * 2)
        if self.scratchpad < need:
            raise ArgumentError(
                f"scratchpad {self.scratchpad} is too small: {self.max_fan_in} payloads of "
                f"{self.max_payload} bytes and an accumulator need {need}"
            )
        for name in ("scratchpad", "stack"):
            value = getattr(self, name)
            if value < 4096 or value % 4096 or value > 64 * 1024 * KIB:
                raise ArgumentError(f"{name} {value} must be a multiple of 4096 up to 64 MiB")
        if self.cores * self.scratchpad > ALL_SCRATCHPADS:
            raise ArgumentError(
                f"{self.cores} scratchpads of {self.scratchpad} bytes: "
                f"use at most {ALL_SCRATCHPADS >> 20} MiB in all"
            )

    @property
    def cycle(self) -> int:
        """Picoseconds of a cycle, rounded down."""
        return SECOND // self.frequency

    @property
    def dma_byte(self) -> int:
        """Femtoseconds in which the DMA engine of a cluster moves a byte, rounded down."""
        return 1000 * self.cycle // self.dma_bytes


@dataclass(frozen=True)
class Network:
    """Links as virtual time sees them.

    Attributes:
        rate: of a link, in each direction, bit/s.
        overhead: bytes that a frame takes on a link beyond its own: preamble and delimiter 8, check
            sequence 4, gap 12 (IEEE 802.3).
        delay: of a link, seconds: 2 m of cable 10 ns, and 95 ns for each end with its forward error
            correction.
        pcie_rate: of a link between a card and the NIC of its node, bit/s of frames: PCIe 5.0 x16
            has 504 Gbit/s after its 128b/130b code, of which 256 bytes in 282 are data (packets of
            256 bytes, with 26 around them).
        pcie_delay: of such a link, seconds: half of what a small read takes there and back, about
            0.9 us (Neugebauer et al., SIGCOMM 2018, figures 5 and 6).
        software: of a host, seconds from its wanting to send a message to the first frame's leaving
            (in the network: a call, and all its chunks), and from the last frame's coming to the
            return of the call.  0 is hardware alone: it has no default that fits all hosts.
    """

    rate: float = 200e9
    overhead: int = 24
    delay: float = 200e-9
    pcie_rate: float = 504e9 * 256 / 282
    pcie_delay: float = 450e-9
    software: float = 0.0

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ArgumentError: a field is outside its range.
        """
        for name in ("rate", "pcie_rate"):
            real(name, getattr(self, name), 1e6, 1e14, " bit/s")
        for name in ("delay", "pcie_delay", "software"):
            real(name, getattr(self, name), 0, 1, " seconds")
        whole("overhead", self.overhead, 0, 65535, " bytes")


MACHINES: dict[str, Machine] = {
    m.name: m
    for m in (
        # Eight cores of 1 GHz and VLEN 512: the product's own default; the scalar side as CV32E40P,
        # the vector unit as Spatz.  Scratchpad: 1 MiB for eight cores in 64 banks of 32 bits, as a
        # PsPIN cluster has (its public RTL; an atomic takes a bank for two cycles, amo_shim);
        # payloads up to the largest MTU of the wire format.  The way of a frame as in PsPIN, whose
        # paper has 26 ns for 64 bytes to a handler (one beat of its DMA), and whose documentation
        # has 108 ns at least for a packet of 1024 (16 beats, a handler of 38 ns).
        Machine("card"),
        # The scalar core alone, of RV32 there: compare what means the same on RV64.
        Machine("cv32e40p", cores=1, isa="rv64imfc_zicsr_zifencei_zicntr", timing=CV32E40P),
        # The vector unit alone, in its default configuration.
        Machine("spatz", cores=1),
        # 4 clusters of 8 cores without FPU, 1 MiB a cluster (pspin_cfg_pkg, pulp_cluster_cfg_pkg).
        # Its cores are the predecessor of CV32E40P.  Instruction cache: lines of 128 bits, filled
        # in two transfers; its documentation has 87 cycles for a cold and 38 for a warm handler of
        # 29 instructions, 7 lines: 7 cycles each.  Its budget is greater, as floating point in
        # integers takes some hundred instructions.
        Machine(
            "pspin",
            cores=32,
            clusters=4,
            budget=10_000_000,
            isa="rv64imac_zicsr_zifencei_zicntr",
            timing=replace(CV32E40P, line=16, miss=7),
        ),
    )
}


def machine(which: str | Machine) -> Machine:
    """A machine by preset name, or the machine itself.

    Raises:
        ArgumentError: there is no such preset.
    """
    if isinstance(which, Machine):
        return which
    return MACHINES[known("machine", which, MACHINES)]
