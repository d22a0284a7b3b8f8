"""The command `nicemu`, end to end: what it prints, what it writes, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import load_file, save_file

import nicemu
from nicemu import Communicator
from nicemu.cli import main
from nicemu.collectives import collective
from nicemu.device.image import PRESETS
from nicemu.dtypes import GRADIENTS, Format
from nicemu.network.pcap import read as read_pcap
from nicemu.reference.arithmetic import OPS
from nicemu.reference.tree import reduce_streams, reduce_tree
from tests.elfs import CHARACTER, Image, build, endless, printing, store_tohost
from tests.encode import encode
from tests.encode import image as code_bytes

YES = "bits equal to reference: yes"
NO = "bits equal to reference: no"
MAIN = [sys.executable, "-c", "from nicemu.cli import main; main()"]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NICEMU_CACHE_DIR", str(cache))


def nic(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def last_line(result: Result) -> str:
    return result.stdout.splitlines()[-1]


def refused(result: Result, *parts: object) -> None:
    """One line on stderr that names the parts, nothing on stdout, exit code 2."""
    assert result.exit_code == 2 and result.stdout == ""
    assert re.fullmatch(r"nicemu: [^\n]+\n", result.stderr)
    for part in parts:
        assert str(part) in result.stderr


def workers(folder: Path, fmt: Format, count: int = 3, n: int = 1500) -> list[Path]:
    """One file per worker with values near 1, and an odd size."""
    rng = np.random.default_rng([count, n, fmt.exponent_bits])
    paths = []
    for i in range(count):
        path = folder / f"worker{i}.safetensors"
        weights = rng.normal(1, 0.5, (n // 3, 3)).astype(fmt.dtype)
        bias = rng.normal(1, 0.5, 7).astype(fmt.dtype)
        save_file({"weight": weights, "bias": bias}, path)
        paths.append(path)
    return paths


BF16 = next(f for f in GRADIENTS if f.name == "bfloat16")
F16 = next(f for f in GRADIENTS if f.name == "float16")


# ---- allreduce: what it computes ---------------------------------------------------------------


def test_the_shipped_gradients() -> None:
    result = nic("allreduce")
    assert result.exit_code == 0 and last_line(result) == YES
    lines = result.stdout.splitlines()
    assert lines.count(YES) == 1
    heads = [line for line in lines if line.startswith("sum of 8 workers")]
    assert [h.split(", ")[1] for h in heads] == ["bfloat16", "float16"]
    # 52 chunks of 256 float32 partial sums; up and down 8 + 2 + 1 links
    rows = [re.findall(r"[\d,]+", line) for line in lines if line.startswith("│ ")]
    assert rows[::10] == [["1,144", "0", "0", "0"]] * 2  # then eight cores and their sum
    assert [row[0] for row in rows[1:9]] == [str(core) for core in range(8)]
    assert rows[9][0] == rows[19][0] == "572"  # 52 x (8 + 2 + 1)
    assert lines.count("packets: 572") == lines.count("bytes: 210,848") == 2
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("fmt", GRADIENTS, ids=lambda f: f.name)
@pytest.mark.parametrize("preset", PRESETS)
def test_results_are_written(tmp_path: Path, fmt: Format, preset: str) -> None:
    paths = workers(tmp_path, fmt)
    out = tmp_path / "out.safetensors"
    result = nic("allreduce", *paths, "--preset", preset, "-o", out)
    assert result.exit_code == 0 and last_line(result) == YES
    inputs = [load_file(p) for p in paths]
    written = load_file(out)
    assert written.keys() == inputs[0].keys()
    for key, array in written.items():
        assert array.shape == inputs[0][key].shape
        want = reduce_streams("sum", fmt, [i[key].reshape(-1) for i in inputs], preset)
        assert np.array_equal(array.reshape(-1).view(fmt.bits_dtype), want)


@pytest.mark.parametrize("op", OPS)
def test_ops(tmp_path: Path, op: str) -> None:
    result = nic("allreduce", *workers(tmp_path, BF16), "--op", op)
    assert result.exit_code == 0 and last_line(result) == YES
    assert result.stdout.startswith(f"{op} of 3 workers, bfloat16, wide: 1,507 elements")
    error = float(re.search(r"largest error .*: (\S+) ulp", result.stdout).group(1))  # type: ignore[union-attr]
    assert error == 0 if op in ("max", "min") else 0.25 < error < 0.51


def test_json_and_the_counters(tmp_path: Path) -> None:
    paths = workers(tmp_path, F16)
    result = nic("allreduce", *paths, "--json", "--mtu", 256, "--topology", "star")
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    assert record["bits_equal"] is True
    [run] = record["runs"]
    chunks = -(-1507 // 128)
    assert (run["op"], run["preset"], run["dtype"]) == ("sum", "wide", "float16")
    assert (run["topology"], run["order"]) == ("star", [0, 1, 2])
    assert run["frames"] == {"sent": 6 * chunks, "lost": 0, "resent": 0, "duplicate": 0}
    assert (run["bytes"], run["elements"]) == (3 * 1507 * 2, 1507)
    assert run["files"] == [str(p) for p in paths] and run["arrays"] == 2
    [device] = run["devices"]
    assert device["device"] == "nic0" and device["workers"] == 3
    assert device["elements"] >= 3 * 1507 and device["instructions"] > 0
    assert run["packets"] == 3 * chunks and [c["core"] for c in run["cores"]] == list(range(8))
    assert [c["packets"] for c in run["cores"]] == [3 * len(range(i, chunks, 8)) for i in range(8)]
    for key in ("instructions", "elements"):
        assert sum(c[key] for c in run["cores"]) == device[key]
    assert run["partials"] == [] and run["virtual_seconds"] > 0


@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling"])
def test_by_hosts(tmp_path: Path, algorithm: str) -> None:
    """Bits are checked, and times told, without counters of devices."""
    paths = workers(tmp_path, BF16)
    result = nic("allreduce", *paths, "--algorithm", algorithm, "--time", "--partials")
    assert result.exit_code == 0 and last_line(result) == YES
    time, least = re.search(r"time: (\S+) us \(least: (\S+) us\), of", result.stdout).groups()  # type: ignore[union-attr]
    assert 0 < float(least) < float(time)
    assert "frames sent" not in result.stdout and "cores of" not in result.stdout
    shown = nic("allreduce", *paths, "--algorithm", algorithm, "--time", "--json")
    [run] = json.loads(shown.stdout)["runs"]
    assert (run["algorithm"], run["bits_equal"]) == (algorithm, True)
    assert f"{1e6 * run['virtual_seconds']:.2f}" == time
    assert sum(run["spent_seconds"].values()) == pytest.approx(run["virtual_seconds"])
    assert (run["frames"], run["devices"], run["cores"], run["packets"]) == (None, [], [], None)
    assert run["order"] == (None if algorithm == "ring" else [[0, 1], 2])
    refused = nic("allreduce", *paths, "--algorithm", algorithm, "--pcap", tmp_path / "x.pcap")
    assert refused.exit_code == 2 and not (tmp_path / "x.pcap").exists()


def test_loss_changes_no_bit_and_is_told(tmp_path: Path) -> None:
    paths = workers(tmp_path, BF16, count=6)
    clean = nic("allreduce", *paths, "-o", tmp_path / "clean.npz")
    assert clean.exit_code == 0
    seen = []
    for seed in (1, 2, 2):
        result = nic(
            "allreduce", *paths, "--loss", 0.2, "--seed", seed, "--json", "-o", tmp_path / "x.npz"
        )
        assert result.exit_code == 0
        [run] = json.loads(result.stdout)["runs"]
        frames = run["frames"]
        assert frames["lost"] > 0 and frames["resent"] > 0 and frames["duplicate"] > 0
        seen.append(frames)
        for key, array in np.load(tmp_path / "clean.npz").items():
            assert np.load(tmp_path / "x.npz")[key].tobytes() == array.tobytes()
    assert seen[0] != seen[1] == seen[2]


@pytest.mark.parametrize("preset", PRESETS)
def test_partial_sums_are_shown(preset: str) -> None:
    """A row per device; where precision went."""
    result = nic("allreduce", "--partials", "--preset", preset)
    assert result.exit_code == 0 and last_line(result) == YES
    rows = re.findall(r"^│ +(\w+\d) │ +(\S+) │ +13,178 │ +(\w+) │", result.stdout, re.M)
    devices = [("nic0", "0..3"), ("nic1", "4..7"), ("leaf0", "0..7"), ("spine0", "0..7")]
    formats = ["float32"] * 2 if preset == "wide" else ["bfloat16", "float16"]
    assert rows == [(*device, fmt) for fmt in formats for device in devices]
    shares = re.findall(r"^│ +(\w+) │ +\S+ │ +(\d+)% │", result.stdout, re.M)
    assert [name for name, _ in shares] == ["nic", "leaf", "result"] * 2
    assert (shares[2] == ("result", "100")) == (preset == "wide")
    assert max(map(len, result.stdout.splitlines())) <= 80
    record = json.loads(nic("allreduce", "--partials", "--json").stdout)["runs"][0]
    assert [p["device"] for p in record["partials"]] == ["nic0", "nic1", "leaf0", "spine0"]
    assert record["partials"][1]["workers"] == [4, 5, 6, 7]


def test_a_capture_of_both_runs(tmp_path: Path) -> None:
    path = tmp_path / "frames.pcap"
    record = json.loads(nic("allreduce", "--json", "--pcap", path).stdout)
    frames = list(read_pcap(path))
    assert len(frames) == sum(run["frames"]["sent"] for run in record["runs"])


def test_no_capture_of_a_run_that_failed(tmp_path: Path) -> None:
    path = tmp_path / "frames.pcap"
    refused(nic("allreduce", "--pcap", path, "--loss", 1), "nothing comes from rank0")
    refused(nic("allreduce", "--pcap", path, "none.npz"), "none.npz")
    assert not list(tmp_path.iterdir())


def test_a_timeline_of_both_runs(tmp_path: Path) -> None:
    """It implies --time; seq tells the runs apart, and the last of the lanes ends with the run."""
    path = tmp_path / "out.json"
    runs = json.loads(nic("allreduce", "--json", "--trace", path).stdout)["runs"]
    timed = json.loads(nic("allreduce", "--json", "--time").stdout)["runs"]
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    start = 0.0
    for seq, run in enumerate(runs):
        assert run["spent_seconds"] == timed[seq]["spent_seconds"] is not None
        lanes = [
            e
            for e in events
            if e["ph"] == "X" and names[e["tid"]].startswith("lane") and e["args"]["seq"] == seq
        ]
        end = max(e["ts"] + e["dur"] for e in lanes)
        assert min(e["ts"] for e in lanes) == pytest.approx(start, abs=0.01)
        assert end == pytest.approx(start + 1e6 * run["virtual_seconds"], abs=0.01)
        start = end


def test_no_timeline_of_a_run_that_failed(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    refused(nic("allreduce", "--trace", path, "--loss", 1), "nothing comes from rank0")
    refused(nic("allreduce", "--trace", path, "none.npz"), "none.npz")
    refused(nic("allreduce", "--trace", path, "--pcap", path), "name two files")
    for option in ("--trace", "--pcap"):
        refused(nic("allreduce", option, "-"), f"{option} '-'", "name one")
    assert not list(tmp_path.iterdir())


def test_a_narrow_terminal_cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit in a column goes on in its next line."""
    monkeypatch.setenv("COLUMNS", "40")
    result = nic("allreduce", "--partials")
    assert result.exit_code == 0 and "…" not in result.stdout
    tables = [line for line in result.stdout.splitlines() if line[0] in "┏┃┡│└├"]
    assert len(tables) > 60 and {len(line) for line in tables} <= set(range(30, 41))


@pytest.mark.parametrize("topology", ["star", "tree(2)", "tree(3)"])
def test_topologies(tmp_path: Path, topology: str) -> None:
    paths = workers(tmp_path, BF16, count=7)
    out = tmp_path / "out.npz"
    options = ["--topology", topology, "--preset", "per-add", "--op", "avg"]
    result = nic("allreduce", *paths, *options, "--json", "-o", out)
    assert result.exit_code == 0
    [run] = json.loads(result.stdout)["runs"]

    def order(node: Any) -> Any:
        return tuple(order(child) for child in node) if isinstance(node, list) else node

    streams = [load_file(p)["bias"] for p in paths]
    tree = reduce_tree("avg", BF16, order(run["order"]), streams, "per-add")
    assert np.array_equal(np.load(out)["bias"].view(np.uint16), tree.result)
    assert len(run["devices"]) == len(tree.partials)


def test_a_directory_and_every_kind_of_file(tmp_path: Path) -> None:
    values = np.arange(10, dtype=np.float16)
    (tmp_path / "npy").mkdir()
    np.save(tmp_path / "npy" / "a.npy", values)
    np.save(tmp_path / "npy" / "b.npy", values[::-1])
    (tmp_path / "mixed").mkdir()
    np.savez(tmp_path / "mixed" / "a.npz", x=values)
    save_file({"x": values}, tmp_path / "mixed" / "b.safetensors")
    for folder, out, key in (("npy", "out.npy", ""), ("mixed", "out.npz", "x")):
        result = nic("allreduce", tmp_path / folder, "-o", tmp_path / out)
        assert result.exit_code == 0 and last_line(result) == YES
        assert f"written: {tmp_path / out}" in result.stdout
        loaded = np.load(tmp_path / out)
        assert (loaded[key] if key else loaded).shape == (10,)
    assert np.load(tmp_path / "out.npy").tolist() == [9] * 10
    assert np.load(tmp_path / "out.npz")["x"].tolist() == [2 * i for i in range(10)]


def test_one_worker_and_one_element(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.float16(-0.0))
    result = nic("allreduce", tmp_path / "a.npy", "-o", tmp_path / "out.npy")
    assert result.exit_code == 0 and last_line(result) == YES
    assert result.stdout.startswith("sum of 1 worker, float16, wide: 1 element in 1 array\n")
    out = np.load(tmp_path / "out.npy")
    assert out.shape == () and np.signbit(out)


@pytest.mark.parametrize("op", OPS)
def test_nan_and_infinity_are_data(tmp_path: Path, op: str) -> None:
    special = [0x0000, 0x8000, 0x7C00, 0xFC00, 0x7C01, 0xFE55, 0x0001, 0x3C00]
    bits = np.array(special * 8, np.uint16)
    for i, values in enumerate((bits, np.repeat(special, 8).astype(np.uint16))):
        np.save(tmp_path / f"{i}.npy", values.view(np.float16))
    result = nic("allreduce", tmp_path / "0.npy", tmp_path / "1.npy", "--op", op)
    assert result.exit_code == 0 and last_line(result) == YES


def test_bfloat16_of_numpy(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(3, ml_dtypes.bfloat16))
    refused(nic("allreduce", tmp_path / "a.npz"), tmp_path / "a.npz", "|V2", "--dtype bfloat16")
    result = nic("allreduce", tmp_path / "a.npz", tmp_path / "a.npz", "--dtype", "bfloat16")
    assert result.exit_code == 0 and ", bfloat16, " in result.stdout


# ---- allreduce: when the bits differ -----------------------------------------------------------


@pytest.fixture
def one_wrong_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last rank gets bit 3 of element 8 wrong."""
    right = Communicator.allreduce

    def wrong(self: Communicator, *arguments: Any, **options: Any) -> collective.Result:
        result = right(self, *arguments, **options)
        last = result.values[-1]
        assert last is not None
        last.view(np.uint16)[8] ^= 1 << 3
        return result

    monkeypatch.setattr(Communicator, "allreduce", wrong)


@pytest.mark.usefixtures("one_wrong_bit")
def test_one_wrong_bit_is_seen(tmp_path: Path) -> None:
    paths = workers(tmp_path, BF16)
    out = tmp_path / "out.npz"
    before = sorted(tmp_path.iterdir())
    result = nic("allreduce", *paths, "-o", out)
    assert result.exit_code == 1 and last_line(result) == NO
    bias = [load_file(p) for p in paths]
    want = reduce_streams("sum", BF16, [b["weight"].reshape(-1) for b in bias])[1]
    assert (  # seven elements of `bias` come first, then rows of three
        f"first difference at weight[0, 1]: device {want ^ 8:#06x}, reference {want:#06x}; "
        "1 of 1,507 elements differ" in result.stdout
    )
    assert sorted(tmp_path.iterdir()) == before
    assert float(re.search(r": (\S+) ulp", result.stdout).group(1)) > 7  # type: ignore[union-attr]


@pytest.mark.usefixtures("one_wrong_bit")
def test_one_wrong_bit_in_json_and_without_files() -> None:
    result = nic("allreduce", "--json")
    assert result.exit_code == 1
    record = json.loads(result.stdout)
    assert record["bits_equal"] is False
    assert [r["difference"]["elements"] for r in record["runs"]] == [1, 1]
    assert last_line(nic("allreduce")) == NO


# ---- allreduce: what it refuses ----------------------------------------------------------------


def test_files_that_are_refused(tmp_path: Path) -> None:
    good = workers(tmp_path, F16)
    truncated = tmp_path / "truncated.safetensors"
    truncated.write_bytes(good[0].read_bytes()[:-10])
    save_file({"weight": np.ones(3, np.float16)}, tmp_path / "shape.safetensors")
    save_file({"weight": np.ones(3, np.float64)}, tmp_path / "f64.safetensors")
    save_file({"weight": np.ones(0, np.float16)}, tmp_path / "empty.safetensors")
    cases: list[tuple[str, list[str]]] = [
        ("none.safetensors", ["does not exist"]),
        ("truncated.safetensors", ["no valid .safetensors file"]),
        ("shape.safetensors", ["array 'bias' is missing", str(good[0])]),
        ("f64.safetensors", ["F64", "float16, bfloat16"]),
        ("empty.safetensors", ["empty", "(0,)"]),
        ("notes.txt", ["'.txt'", ".safetensors, .npz, .npy"]),
    ]
    for name, parts in cases:
        refused(nic("allreduce", good[0], tmp_path / name), tmp_path / name, *parts)


def test_outputs_that_are_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the work has begun")

    monkeypatch.setattr(Communicator, "allreduce", never)
    paths = workers(tmp_path, F16)
    before = sorted(tmp_path.iterdir())
    for out in ("none/out.npz", "out.npy", "out", paths[0].name):
        refused(nic("allreduce", *paths, "-o", tmp_path / out), tmp_path / out)
    refused(nic("allreduce", "-o", tmp_path / "out.npz"), "needs FILES")
    refused(nic("allreduce", *paths, "--pcap", paths[1]), paths[1], "is also an input")
    refused(nic("allreduce", *paths, "--trace", paths[1]), paths[1], "is also an input")
    (tmp_path / "link").symlink_to(paths[1])
    refused(nic("allreduce", *paths, "--pcap", tmp_path / "link"), "is also an input")
    (tmp_path / "link").unlink()
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--mtu", 1], ["mtu 1 is out of range: use 256..4096"]),
        (["--mtu", 1 << 20], ["mtu 1048576"]),
        (["--loss", 1.5], ["loss 1.5"]),
        (["--loss", 1], ["nothing comes from rank0, rank1, rank2"]),
        (["--topology", "ring"], ["topology 'ring'", "star, cards or tree(N)"]),
        (["--pcap", "none/x.pcap"], ["none/x.pcap"]),
        (["--trace", "none/x.json"], ["none/x.json"]),
        (["--dtype", "float8"], ["float8", "float16 (f16)"]),
        (["--op", "mean"], ["op 'mean' is unknown", "FILE.py:NAME", "sum"]),
    ],
)
def test_options_that_are_refused(tmp_path: Path, options: list[object], parts: list[str]) -> None:
    refused(nic("allreduce", *workers(tmp_path, F16), *options), *parts)


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """A group and all that is in it, by the words that call it."""
    yield path, group
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield (*path, name), command


@pytest.mark.parametrize(
    ("path", "command"),
    list(commands(main)),
    ids=lambda x: " ".join(("nicemu", *x)) if isinstance(x, tuple) else "",
)
def test_usage_errors(path: tuple[str, ...], command: click.Command) -> None:
    """Of each option of each command: one line, and where to read on."""
    see = f": see {' '.join(('nicemu', *path))} --help"
    refused(nic(*path, "--fly"), "no such option '--fly'", see)
    if isinstance(command, click.Group):
        return refused(nic(*path, "fly"), "no such command 'fly'", see)
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    needed = ["x" for one in arguments if one.required]
    if needed:
        refused(nic(*path), "missing argument", see)
    if all(one.nargs == 1 for one in arguments):
        refused(nic(*path, *["x" for _ in arguments], "yz"), "argument (yz)", see)
    for option in command.params:
        if not isinstance(option, click.Option):
            continue
        for name in option.opts:
            if option.is_flag:
                refused(nic(*path, *needed, f"{name}=3"), f"option '{name}' does not take a value")
                continue
            refused(nic(*path, *needed, name), f"option '{name}' requires an argument")
            if isinstance(option.type, click.Choice):
                value = f"'yz' is not one of '{option.type.choices[0]}', "
            elif option.type in (click.INT, click.FLOAT):
                value = "'yz' is not a valid "
            else:
                continue  # of texts and paths, commands speak
            refused(nic(*path, *needed, name, "yz"), "invalid value for", f"'{name}'", value, see)
    return None


def test_interrupts_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Communicator, "allreduce", interrupted)
    paths = workers(tmp_path, F16)
    before = sorted(tmp_path.iterdir())
    result = nic("allreduce", *paths, "-o", tmp_path / "out.npz")
    assert (result.exit_code, result.stderr) == (130, "nicemu: interrupted\n")
    assert sorted(tmp_path.iterdir()) == before


# ---- run -----------------------------------------------------------------------------------------


def elf(tmp_path: Path, code: bytes, **fields: Any) -> Path:
    path = tmp_path / "kernel.elf"
    path.write_bytes(build(Image(code, **fields)))
    return path


@pytest.mark.parametrize(("code", "status"), [(0, 0), (7, 7), (125, 125), (126, 125), (4096, 125)])
def test_run_exits_as_the_program_does(tmp_path: Path, code: int, status: int) -> None:
    result = nic("run", elf(tmp_path, printing(b"hi", code)))
    assert result.exit_code == status
    lines = result.stdout.splitlines()
    assert lines[0] == "hi" and lines[-1] == f"exit status: {code}"
    assert max(map(len, lines)) <= 80


def test_logs_that_cannot_be_written(tmp_path: Path) -> None:
    """One line that names the log; nothing that was there before is lost."""
    program = elf(tmp_path, printing(b"hi\n", 0))
    code = program.read_bytes()
    (tmp_path / "link").symlink_to(program)
    old = tmp_path / "old.log"
    old.write_text("precious")
    for log, options, what in (
        (program, [], "is the program itself"),
        (tmp_path / "link", [], "is the program itself"),
        (tmp_path, [], "cannot be written: Is a directory"),
        (tmp_path / "no" / "log", [], "cannot be written: No such file"),
        ("/dev/full", [], "cannot be written: No space left"),
        (old, ["--isa", "bogus"], "isa 'bogus'"),
        (old, ["--cores", 99], "99"),
    ):
        result = nic("run", program, "--log", log, *options)
        assert result.exit_code == 2 and what in result.stderr, (log, result.stderr)
        assert str(log) in result.stderr or options
        assert result.stderr.count("\n") == 1
    assert (program.read_bytes(), old.read_text()) == (code, "precious")
    assert nic("run", program, "--log", old).exit_code == 0
    assert old.read_text().startswith("core   0: 3 0x")


def test_run_in_json(tmp_path: Path) -> None:
    path = elf(tmp_path, printing(b"hi\n", 3))
    result = nic("run", path, "--json", "--vlen", 128, "--memory", "1M")
    assert result.exit_code == 3
    record = json.loads(result.stdout)
    assert (record["exit_code"], record["output"]) == (3, "hi\n")
    assert [c["stores"] for c in record["cores"]] == [4]
    many = json.loads(nic("run", path, "--json", "--cores", 5).stdout)
    assert len(many["cores"]) == 5


def test_run_counts_cycles(tmp_path: Path) -> None:
    """The run is the same, and its extensions are the machine's unless others are given."""
    path = elf(tmp_path, printing(b"hi\n", 3))
    plain = json.loads(nic("run", path, "--json").stdout)
    result = nic("run", path, "--json", "--machine", "cv32e40p", "--cores", 2)
    record = json.loads(result.stdout)
    assert record["output"] == plain["output"] and record["exit_code"] == 3
    assert record["cores"][0] == plain["cores"][0]
    for cycles, core in zip(record["cycles"], record["cores"], strict=True):
        assert cycles["total"] == sum(cycles["terms"].values()) >= core["instructions"]
    perf = record["perf"]
    total = sum(cycles["total"] for cycles in record["cycles"])
    assert perf["cycles"] == total == sum(perf["terms"].values())
    assert perf["seconds"] == max(c["total"] for c in record["cycles"]) / perf["frequency"]
    instructions = sum(core["instructions"] for core in record["cores"])
    assert perf["per_cycle"]["instructions"] == instructions / total
    assert sum(perf["share"].values()) == pytest.approx(1)
    table = nic("run", path, "--machine", "card")
    lines = {line.split("  ")[0].strip() for line in table.stdout.splitlines()}
    assert {"cycles", "instructions", "bytes loaded", "vector elements"} <= lines
    assert re.search(r"^  hazards +[\d,]+ +\d+\.\d%$", table.stdout, re.M)
    assert re.search(r"^[\d,.]+ us on a core of card at 1 GHz$", table.stdout, re.M)
    assert "cycles" not in plain and "cycles" not in nic("run", path).stdout
    vector = elf(tmp_path, code_bytes([encode("vsetivli", rd=1, uimm=4, vtype=0)]))
    assert "illegal" in nic("run", vector, "--machine", "cv32e40p").stderr
    refused(nic("run", path, "--machine", "cv32e40p", "--isa", "rv64gcv"), "costs of the machine")


def test_run_refuses(tmp_path: Path) -> None:
    path = elf(tmp_path, endless())
    refused(nic("run", tmp_path / "none.elf"), tmp_path / "none.elf", "does not exist")
    refused(nic("run", path, "--budget", 1000), path, "--budget", "after 1000 instructions")
    refused(nic("run", path, "--memory", "1T"), "'1T'", "256M")
    for cores in (0, 65, -1, 1 << 40):
        refused(nic("run", path, "--cores", cores), f"cores {cores} is out of range: use 1..64")
    for vlen in (0, 64, -512, 1 << 40):
        refused(
            nic("run", path, "--vlen", vlen),
            f"vlen {vlen} is not supported: use 128, 256, 512 or 1024",
        )
    refused(nic("run", elf(tmp_path, endless(), machine=62)), path, "x86-64", "riscv64")
    refused(nic("run", elf(tmp_path, bytes(4))), path, "illegal instruction", "0x80000000")


def test_run_with_extensions_off(tmp_path: Path) -> None:
    path = elf(tmp_path, printing(b"hi\n", 0))
    for isa in ("rv64i", "RV64GC", "rv64gcv_zvl512b"):
        assert nic("run", path, "--isa", isa).exit_code == 0
    refused(nic("run", path, "--isa", "rv64gcx"), "'rv64gcx'", "'x' is unknown", "zvfbfwma")
    refused(nic("run", path, "--isa", "rv64gcv_zvl512b", "--vlen", 256), "zvl512b", "256")
    multiply = code_bytes([encode("mul", rd=5, rs1=6, rs2=7)])
    path = elf(tmp_path, multiply)
    refused(nic("run", path, "--isa", "rv64iac"), path, "illegal instruction", "0x80000000")


def test_what_a_program_printed_before_its_fault_is_shown(tmp_path: Path) -> None:
    code = code_bytes(store_tohost(CHARACTER | ord("a"))) + bytes(4)
    result = nic("run", elf(tmp_path, code))
    assert (result.exit_code, result.stdout) == (2, "a")
    assert "illegal instruction" in result.stderr


# ---- disasm --------------------------------------------------------------------------------------


def test_disasm_of_an_elf(tmp_path: Path) -> None:
    code = code_bytes([encode("addi", rd=10, rs1=0, imm=7), encode("jal", rd=0, target=-4)])
    path = elf(tmp_path, code + b"\1", symbols={"_start": 0x8000_0000, ".L0": 0x8000_0004})
    result = nic("disasm", path)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "_start:"
    assert re.fullmatch(r" +80000000:  00700513  addi a0, zero, 7", lines[1])
    assert re.fullmatch(r" +80000004:  ffdff06f  jal zero, 0x80000000", lines[2])
    assert re.fullmatch(r" +80000008:  01        .byte 0x01", lines[3])
    assert len(lines) == 4


def test_disasm_of_an_image(tmp_path: Path) -> None:
    image = nicemu.kernel("sum", "bfloat16")
    path = tmp_path / "sum.image"
    path.write_bytes(image.to_bytes())
    lines = nic("disasm", path).stdout.splitlines()
    labels = {line[:-1] for line in lines if line.endswith(":")}
    assert labels == set(image.entries)
    code = [line.split()[1] for line in lines if not line.endswith(":")]
    assert b"".join(int(w, 16).to_bytes(len(w) // 2, "little") for w in code) == image.code
    assert any("vle16.v" in line for line in lines)


def test_disasm_refuses(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for data in (b"", b"hello", bytes(1000), nicemu.kernel("sum", "bf16").to_bytes()[:-1]):
        path.write_bytes(data)
        refused(nic("disasm", path), path, "is no ELF file, and no kernel image either")
    refused(nic("disasm", tmp_path / "none"), tmp_path / "none", "does not exist")


# ---- guide and the rest --------------------------------------------------------------------------


def test_guide() -> None:
    index = nic("guide")
    assert index.exit_code == 0
    folder = Path(nicemu.__file__).parent / "guide"
    for page in folder.glob("*.md"):
        shown = nic("guide", page.stem)
        assert shown.exit_code == 0 and shown.stdout == page.read_text().rstrip("\n") + "\n"
        assert page.stem == "index" or f"`{page.stem}`" in index.stdout
    refused(nic("guide", "none"), "'none'", "index")


def test_help_and_version() -> None:
    assert nic("--version").stdout == f"nicemu {nicemu.__version__}\n"
    shown = nic("--help").stdout
    for command in ("allreduce", "run", "disasm", "guide"):
        assert command in shown
        assert nic(command, "--help").exit_code == 0


# ---- as a process --------------------------------------------------------------------------------


def process(*arguments: object, code: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    command = [MAIN[0], MAIN[1], code + MAIN[2], *(str(a) for a in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def test_a_second_allreduce_compiles_nothing() -> None:
    first = process("allreduce")
    assert first.returncode == 0, first.stderr
    second = process("allreduce", code="import sys; sys.modules['llvmlite'] = None\n")
    assert second.returncode == 0, second.stderr
    assert second.stdout.splitlines()[-1] == YES
    assert second.stderr == ""


def test_imports_are_light() -> None:
    heavy = "{'llvmlite', 'numba', 'torch', 'safetensors', 'elftools'}"
    for module, more in (("nicemu.cli", "set()"), ("nicemu.device.nic", "{'click', 'rich'}")):
        code = f"import sys, {module}; print(*({heavy} | {more}) & set(sys.modules))"
        done = subprocess.run([MAIN[0], "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "\n"


def test_ctrl_c_stops_a_running_program(tmp_path: Path) -> None:
    program = [*store_tohost(CHARACTER | ord("\n")), encode("jal", rd=0, target=0)]
    path = elf(tmp_path, code_bytes(program))
    with subprocess.Popen(
        [*MAIN, "run", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None and running.stderr is not None
        assert running.stdout.read(1) == b"\n"
        os.kill(running.pid, signal.SIGINT)
        assert running.wait(timeout=60) == 130
        assert running.stderr.read() == b"nicemu: interrupted\n"
