"""Attacks on the public surface that once went wrong, one row for each, with what is right."""

from __future__ import annotations

import copy
import io
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save, save_file

from nicemu import ArgumentError, ImageError, KernelImage, Machine, Nic, bfloat16, kernel
from nicemu._core import BUDGET, FAULT, RETURN, Cores, R, W, X
from nicemu.device.elf import parse_elf
from nicemu.device.image import Context
from nicemu.device.nic import SCRATCHPAD
from nicemu.errors import FileFormatError
from nicemu.gradients import Output, read, read_group, worker_files
from tests.elfs import BASE, TOHOST, Image, build, printing
from tests.encode import encode
from tests.test_gradients import DESCR, npy_bytes, saved, zip_bytes

HALF = np.arange(10, dtype=np.float16)
HUGE = (-1, -(1 << 63), 1 << 32, 1 << 63, 1 << 64, 1 << 70)


def loaded(**fields: int) -> Nic:
    nic = Nic(Machine("test", **fields))
    nic.load(kernel("sum", "float16"))
    return nic


# ---- numbers that no C type holds ----------------------------------------

# None of HUGE is in range.
NUMBERS: dict[str, Callable[[Cores, int], object]] = {
    "harts": lambda c, n: Cores(n),
    "vlen": lambda c, n: Cores(1, n),
    "map permissions": lambda c, n: c.map(1 << 20, 64, n),
    "map harts": lambda c, n: c.map(1 << 20, 64, R, [n]),
    "read at": lambda c, n: c.read(n, 1),
    "read hart": lambda c, n: c.read(0x1000, 1, n),
    "write at": lambda c, n: c.write(n, b"x"),
    "write hart": lambda c, n: c.write(0x1000, b"x", n),
    "x": lambda c, n: c.x(n),
    "f": lambda c, n: c.f(n),
    "v": lambda c, n: c.v(n),
    "pc hart": lambda c, n: c.pc(n),
    "mode": lambda c, n: c.set_mode(n),
    "mode hart": lambda c, n: c.mode(n),
    "reset hart": lambda c, n: c.reset(0, n),
    "run hart": lambda c, n: c.run(1, n),
    "turns of harts": lambda c, n: c.run_round_robin(1, 1, [n]),
    "call hart": lambda c, n: c.call(0x1000, sp=0, budget=1, hart=n),
    "counters": lambda c, n: c.counters(n),
    "clear counters": lambda c, n: c.clear_counters(n),
}
WORDS: dict[str, Callable[[Cores, int], object]] = {  # of 64 bits
    "map size": lambda c, n: c.map(1 << 20, n, R | W),
    "read size": lambda c, n: c.read(0x1000, n),
    "map at": lambda c, n: c.map(n, 64, R | W),
    "pc": lambda c, n: c.set_pc(n),
    "reset": lambda c, n: c.reset(n),
    "csr": lambda c, n: c.set_csr("mscratch", n),
    "budget": lambda c, n: c.run(n),
    "quantum": lambda c, n: c.run_round_robin(n, 1),
    "turns": lambda c, n: c.run_round_robin(1000, n),
    "call budget": lambda c, n: c.call(0x1000, sp=0, budget=n),
    "sp": lambda c, n: c.call(0x1000, sp=n, budget=1),
    "disasm": lambda c, n: c.disasm(0x13, n),
}


@pytest.fixture
def cores() -> Cores:
    cores = Cores(2)
    cores.map(0x1000, 4096, R | W | X)
    return cores


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("number", HUGE)
def test_absurd_numbers(cores: Cores, name: str, number: int) -> None:
    with pytest.raises(ArgumentError):
        NUMBERS[name](cores, number)


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("number", [n for n in HUGE if not 0 <= n < 1 << 64])
def test_numbers_beyond_64_bits(cores: Cores, name: str, number: int) -> None:
    with pytest.raises(ArgumentError):
        WORDS[name](cores, number)


def test_every_budget_of_64_bits_is_one(cores: Cores) -> None:
    cores.reset(0x1000)
    assert cores.run((1 << 64) - 1).reason == FAULT  # zeros are no instruction
    assert cores.run_round_robin((1 << 64) - 1, (1 << 64) - 1).reason == FAULT


def test_no_hart_and_harts_named_twice(cores: Cores) -> None:
    with pytest.raises(ArgumentError):  # it would go on for ever, doing nothing
        cores.run_round_robin(1, (1 << 64) - 1, [])
    cores.map(0x9000, 64, R, [0, 0])
    assert cores.read(0x9000, 1, 0) == b"\0"
    with pytest.raises(ArgumentError):
        cores.read(0x9000, 1, 1)
    with pytest.raises(ArgumentError):
        cores.call(0x1000, (1, 2, 3, 4, 5), sp=0, budget=1)


# ---- where a call ends ----------------------------------------

RETURN_PC = 0xFFFF_FFFF_FFFF_F000


@pytest.mark.parametrize("budget", [1, 2, 1000])
@pytest.mark.parametrize("word", [encode("addi", rd=0, rs1=0), encode("jal", rd=0, target=4)])
def test_code_that_runs_into_the_return_address(word: int, budget: int) -> None:
    """Falling or jumping there returns like `ret` does, however much budget is left."""
    cores = Cores()
    cores.map(RETURN_PC - 64, 64, R | X)
    cores.write(RETURN_PC - 4, word.to_bytes(4, "little"))
    stop = cores.call(RETURN_PC - 4, sp=0, budget=budget)
    assert (stop.reason, stop.pc, stop.instructions) == (RETURN, RETURN_PC, 1)
    cores.reset(RETURN_PC - 4)  # outside a call it is an address like any other
    stop = cores.run(budget)
    assert stop.pc == RETURN_PC and stop.reason == (BUDGET if budget == 1 else FAULT)


# ---- the device ----------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, bfloat16, np.float32, np.uint64])
def test_write_takes_all_bytes_of_an_array(dtype: type) -> None:
    values = np.arange(16).astype(dtype)[::2]
    nic = Nic()
    nic.write(SCRATCHPAD, values)
    assert nic.read(SCRATCHPAD, values.nbytes) == values.tobytes()
    with pytest.raises(ArgumentError, match="data is of type int: pass bytes"):
        nic.write(SCRATCHPAD, 5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="data is of type str: pass bytes"):
        nic.write(SCRATCHPAD, "abc")  # type: ignore[arg-type]


def test_rows_of_an_array_and_any_iterable_are_streams() -> None:
    nic = loaded()
    both = np.stack([HALF, HALF + 1])
    for streams in (both, iter(both), tuple(both)):
        assert (nic.reduce(streams).values == 2 * HALF + 1).all()  # type: ignore[arg-type]


BAD_USES: dict[str, Callable[[Nic], object]] = {
    "lists": lambda nic: nic.reduce([[1.0, 2.0]]),  # type: ignore[list-item]
    "one array": lambda nic: nic.reduce(HALF),
    "no rows": lambda nic: nic.reduce(np.zeros((0, 5), np.float16)),
    "list as payload": lambda nic: nic.handle("first", [[1.0]]),  # type: ignore[list-item]
    "no image": lambda nic: nic.load("sum"),  # type: ignore[arg-type]
    "load at work": lambda nic: nic.reduce([HALF], progress=lambda _: nic.load(nic.image)),
    "reduce at work": lambda nic: nic.reduce([HALF], progress=lambda _: nic.reduce([HALF])),
    "handle at work": lambda nic: nic.reduce([HALF], progress=lambda _: nic.handle("emit")),
    "write at work": lambda nic: nic.reduce([HALF], progress=lambda _: nic.write(0, b"")),
    "clear at work": lambda nic: nic.reduce([HALF], progress=lambda _: nic.clear_counters()),
    "read below 0": lambda nic: nic.read(SCRATCHPAD, -1),
    "read at -1": lambda nic: nic.read(-1, 1),
    "read 2**70": lambda nic: nic.read(SCRATCHPAD, 1 << 70),
    "count 2**70": lambda nic: nic.handle("emit", count=1 << 70),
    "dtype": lambda nic: kernel("sum", object()),  # type: ignore[arg-type]
    "cores": lambda nic: Machine("x", cores=2.0),  # type: ignore[arg-type]
    "text": lambda nic: Machine("x", vlen="512"),  # type: ignore[arg-type]
    "no fan-in": lambda nic: Machine("x", max_fan_in=0),
    "fan-in 9": lambda nic: Machine("x", max_fan_in=9, scratchpad=1 << 20),
    "payload 0": lambda nic: Machine("x", max_payload=0),
    "payload -1": lambda nic: Machine("x", max_payload=-1),
    "budget 2**64": lambda nic: Machine("x", budget=1 << 64),
    "scratchpads overlap": lambda nic: Machine("x", cores=64, scratchpad=64 << 20),
}


@pytest.mark.parametrize("name", BAD_USES)
def test_misuse_of_the_device(name: str) -> None:
    nic = loaded()
    with pytest.raises(ArgumentError) as error:
        BAD_USES[name](nic)
    assert "\n" not in str(error.value)
    assert (nic.reduce([HALF]).values == HALF).all()  # and it works on


@pytest.mark.parametrize("options", [{"threads": 1.5}, {"threads": float("nan")}])
def test_fractions_of_threads(options: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match=r"threads \S+ is no whole number: use 1\.\."):
        Nic(**options)


@pytest.mark.parametrize("preset", ["wide", "per-hop", "per-add"])
@pytest.mark.parametrize("element", ["float16", "float32"])
@pytest.mark.parametrize(("payload", "fan_in"), [(4, 1), (7, 8), (341, 4), (4096, 8), (341, 2)])
def test_every_machine_that_exists_reduces_its_largest_payload(
    element: str, preset: str, payload: int, fan_in: int
) -> None:
    need = -(-payload // 64) * 64 * (fan_in + 4)
    m = Machine("small", scratchpad=-(-need // 4096) * 4096, max_payload=payload, max_fan_in=fan_in)
    nic = Nic(m)
    nic.load(kernel("sum", element, preset))
    streams = np.arange(9 * 5000).reshape(9, 5000).astype(element) % 7
    assert (nic.reduce(streams, payload=payload).values == streams.sum(0)).all()


@pytest.mark.parametrize("fields", [{"cores": 64, "scratchpad": 8 << 20}, {"cores": 64}])
def test_the_largest_machines(fields: dict[str, int]) -> None:
    values = (np.arange(70_000) % 2048).astype(np.float16)
    nic = loaded(**fields)
    assert (nic.reduce([values]).values == values).all()


def test_threads_share_a_device() -> None:
    nic = loaded()
    rng = np.random.default_rng(1)
    streams = [rng.integers(0, 9, (3, 20_000)).astype(np.float16) for _ in range(8)]

    def work(s: np.ndarray) -> bool:
        for _ in range(4):
            whole = (nic.reduce(s).values == s.sum(0)).all()
            one = (nic.handle("first", [s[0][:9]]).accumulator == s[0][:9]).all()
            nic.load(kernel("sum", "float16"))
            assert nic.counters(0).instructions > 0
            if not (whole and one):
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, streams))


# ---- images ----------------------------------------


def test_images_are_copied_and_pickled() -> None:
    image = kernel("sum", "float16")
    for other in (pickle.loads(pickle.dumps(image)), copy.deepcopy(image), copy.copy(image)):
        assert other == image and other.to_bytes() == image.to_bytes()


@pytest.mark.parametrize(
    "change",
    [{"code": None}, {"code": 64}, {"op": 3}, {"element": 3}]
    + [{"entries": {**dict.fromkeys(KernelImage.from_bytes(kernel("sum", "f16").to_bytes()).entries,
                                    0), "first": offset}} for offset in (2.0, "2", None)],
    ids=str,
)  # fmt: skip
def test_fields_of_the_wrong_type(change: dict[str, object]) -> None:
    with pytest.raises(ImageError):
        replace(kernel("sum", "float16"), **change)


def test_code_cannot_be_changed_behind_an_image() -> None:
    code = bytearray(kernel("sum", "float16").code)
    image = replace(kernel("sum", "float16"), code=code)
    code[:4] = bytes(4)
    assert image == kernel("sum", "float16") and isinstance(image.code, bytes)


def test_context_counts_past_the_end() -> None:
    assert loaded().reduce([HALF], context=Context(element=(1 << 64) - 1)).values.size == 10


# ---- gradient files ----------------------------------------


def test_the_empty_name_is_not_the_working_directory(tmp_path: Path) -> None:
    for arguments in ([""], ["w0.npy", ""]):
        with pytest.raises(FileFormatError, match="name of no file"):
            worker_files(arguments)


@pytest.mark.parametrize(
    ("name", "data"),
    [("w.safetensors", save({"": HALF, "b": HALF})), ("w.npz", zip_bytes(__npy=saved(HALF)))],
)
def test_arrays_without_a_name(tmp_path: Path, name: str, data: bytes) -> None:
    """They would be taken for the array of an .npy file, and an .npz result would lose others."""
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match="name is empty"):
        read(path)


@pytest.mark.parametrize(
    ("key", "suffix"), [("a\0b", ".npz"), ("k" * 70_000, ".npz"), ("__metadata__", ".safetensors")]
)
def test_names_that_the_result_cannot_keep(tmp_path: Path, key: str, suffix: str) -> None:
    source = tmp_path / ("w.npz" if suffix == ".safetensors" else "w.safetensors")
    if suffix == ".safetensors":
        np.savez(source, **{key: HALF})
    else:
        save_file({key: HALF}, source)
    with pytest.raises(FileFormatError, match="cannot keep the name") as error:
        Output(tmp_path / f"out{suffix}", read_group([source]))
    assert len(str(error.value)) < 500 and list(tmp_path.iterdir()) == [source]


def test_headers_that_numpy_warns_of(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = tmp_path / "w.npy"
    path.write_bytes(npy_bytes(DESCR % b"(4L,)", HALF[:4].tobytes()))
    assert (read(path).stream == HALF[:4]).all() and not recwarn.list


def test_an_archive_of_bombs(tmp_path: Path) -> None:
    """Members may overlap, so that each claims no more than deflate allows, but all of them do."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m00.npy", saved(np.zeros(1 << 20, np.float16)))
        for i in range(1, 30):
            archive.filelist.append(copy.copy(archive.filelist[0]))
            archive.filelist[-1].filename = f"m{i:02}.npy"
    path = tmp_path / "w.npz"
    path.write_bytes(out.getvalue())
    with pytest.raises(FileFormatError, match="its members claim"):
        read(path)


# ---- the result ----------------------------------------


@pytest.mark.parametrize("kind", ["pipe", "link to itself", "link to a pipe", "socket"])
def test_outputs_that_are_no_files(tmp_path: Path, kind: str) -> None:
    """They must not be replaced: as root, that would turn /dev/null into a file."""
    np.save(tmp_path / "w.npy", HALF)
    out = tmp_path / "out.npy"
    if kind == "pipe":
        os.mkfifo(out)
    elif kind == "socket":
        import socket

        with socket.socket(socket.AF_UNIX) as s:
            s.bind(os.path.relpath(out))
    elif kind == "link to itself":
        out.symlink_to(out)
    else:
        os.mkfifo(tmp_path / "pipe")
        out.symlink_to(tmp_path / "pipe")
    before = {p.name: os.lstat(p).st_mode for p in tmp_path.iterdir()}
    with pytest.raises(FileFormatError, match=r"out\.npy: .*name a"):
        Output(out, read_group([tmp_path / "w.npy"]))
    assert {p.name: os.lstat(p).st_mode for p in tmp_path.iterdir()} == before


# ---- ELF files ----------------------------------------


def with_sections(rows: list[tuple[int, ...]], filler: bytes) -> bytes:
    data = bytearray(build(Image(printing(b"", 0), sections=False)) + filler)
    table = b"".join(struct.pack("<IIQQQQIIQQ", *row) for row in rows)
    data[40:48] = struct.pack("<Q", len(data))
    data[60:62] = struct.pack("<H", len(rows))
    return bytes(data) + table


def test_sections_that_overlap_are_not_copied_for_ever() -> None:
    code = (0, 1, 6, BASE, 0, 100_000, 0, 0, 2, 0)
    with pytest.raises(FileFormatError, match=r"code sections of 6000000000 bytes.*overlap"):
        parse_elf(with_sections([code] * 60_000, bytes(100_000)))


def test_symbol_tables_that_overlap_are_not_read_for_ever() -> None:
    strings = (0, 3, 0, 0, 0, 64, 0, 0, 1, 0)
    symbols = (0, 2, 0, 0, 0, 24 * 1000, 0, 0, 8, 24)
    with pytest.raises(FileFormatError, match="more than one symbol table"):
        parse_elf(with_sections([strings] + [symbols] * 60_000, bytes(24_000)))


def test_names_of_symbols_command_no_terminal() -> None:
    names = {"tohost": TOHOST, "\x1b[2J": BASE, "a\nb": BASE, "\u202e": BASE, "é": BASE}
    symbols = parse_elf(build(Image(printing(b"", 0), symbols=names))).symbols
    assert set(symbols) == {"tohost", r"\x1b[2J", r"a\nb", r"\u202e", "é"}


# ---- the command line ----------------------------------------


def command(arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Through a shell, for its redirections."""
    return subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -m nicemu {arguments}'],
        capture_output=True, text=True, timeout=60, env={**os.environ, **environment},
    )  # fmt: skip


def test_an_early_interrupt() -> None:
    """Ctrl-C while the command's modules are being imported."""
    late = (
        "import sys, runpy, _signal\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'nicemu.cli': _signal.raise_signal(_signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "runpy.run_module('nicemu', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", late], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "nicemu: interrupted\n")


def test_more_files_than_may_be_open(tmp_path: Path) -> None:
    for i in range(40):
        np.save(tmp_path / f"w{i:02}.npy", HALF)
    script = f'ulimit -n 32; exec "{sys.executable}" -m nicemu allreduce {tmp_path}'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "Too many open files" in done.stderr and "ulimit -n" in done.stderr


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "hi.elf"
    path.write_bytes(build(Image(printing(b"hi\n", 3))))
    return path


@pytest.mark.parametrize("option", ["--cores", "--vlen"])
@pytest.mark.parametrize("value", ["-1", "0", "99999999999", "100000000000000000000000"])
def test_absurd_options(program: Path, option: str, value: str) -> None:
    done = command(f"run {program} {option} {value}")
    assert (done.returncode, done.stdout) == (2, "")
    assert value in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [("run {} >&-", 3), ("run {} --json >&-", 3), ("disasm {} >&-", 0), ("guide >&-", 0)]
    + [(f"{a} >/dev/full", 2) for a in ("run {}", "run {} --json", "disasm {}", "guide", "--help")],
)
def test_output_that_goes_nowhere(program: Path, arguments: str, code: int) -> None:
    if "full" in arguments and not Path("/dev/full").exists():
        pytest.skip("this host has no /dev/full")
    done = command(arguments.format(program), PYTHONUNBUFFERED="")  # unset
    assert done.returncode == code
    assert done.stderr.count("\n") == (code == 2)
