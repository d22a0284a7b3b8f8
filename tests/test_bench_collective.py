"""The bench of collectives: columns and sizes as nccl-tests has them, what is wrong, what no run
can beat, and the guide's page."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import nicemu
from nicemu import Fabric, TimingError
from nicemu.bench import collective as bench_collective
from nicemu.bench.collective import (
    ALL_TYPES,
    MOST_SIZES,
    CollectiveTime,
    CollectiveTimes,
    Repeats,
    Timed,
    Where,
    collective_times,
    sizes,
    type_of,
)
from nicemu.cli import main
from nicemu.collectives.collective import COLLECTIVES
from nicemu.collectives.least import Bound
from nicemu.dtypes import FORMATS, format_of
from nicemu.ops.builtin import builtin
from nicemu.tables import Table
from tests import page
from tests.test_cli import refused

by_collective = pytest.mark.parametrize("name", COLLECTIVES)
F16, F32 = format_of("float16"), format_of("float32")


def bench(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["bench", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


WHERE = Where()


def timed(name: str, *bytes_: int, where: Where = WHERE, **options: Any) -> CollectiveTimes:
    op = builtin("sum", F32) if COLLECTIVES[name].reduces else None
    repeats = options.pop("repeats", Repeats(iterations=2))
    return collective_times(name, where, [(F32, op)], bytes_, repeats, **options)


# ---- sizes and names -----------------------------------------------------------------------------


def test_sizes() -> None:
    assert sizes(8, 128) == [8, 16, 32, 64, 128]
    assert sizes(8, 100, factor=3) == [8, 24, 72]
    assert sizes(8, 40, step=10) == [8, 18, 28, 38]
    assert sizes(5, 5) == [5]
    assert len(sizes(1, MOST_SIZES, step=1)) == MOST_SIZES


def test_types_by_either_name() -> None:
    assert [type_of(name).name for name in ("half", "float", "double", "bfloat16", "fp8_e4m3")] == [
        "float16", "float32", "float64", "bfloat16", "float8_e4m3fn",
    ]  # fmt: skip
    assert all(type_of(row.name) is type_of(row.alias) is row for row in FORMATS)
    assert {type_of(name) for name in bench_collective.TYPES} <= set(ALL_TYPES)


@by_collective
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_size_and_count(name: str, ranks: int) -> None:
    """Of the whole array; count is that of a part where it is cut."""
    found = timed(name, 1003, where=Where(ranks=ranks))
    (row,) = found.rows
    record = COLLECTIVES[name]
    want = {"barrier": 0, "reduce_scatter": 250 // ranks, "all_gather": 250 // ranks}
    assert row.count == want.get(name, 250)
    assert row.size == 4 * row.count * (ranks if record.parted else 1)
    assert row.root == (0 if name in ("reduce", "broadcast") else None)
    assert (row.in_place is None) == (name == "barrier")
    for run in row.runs.values():
        assert run.wrong == (None if name == "barrier" else 0)
        assert len(run.times) == len(run.hosts) == 2
        assert row.algbw(run) == (row.size / run.time if row.size else 0)
        assert row.busbw(run) == row.algbw(run) * record.bus(ranks)
    assert found.where.algorithm == "in-network" and found.rates == (
        200e9,
        pytest.approx(457.5e9, rel=1e-3),
    )


@by_collective
def test_times_are_those_of_the_communicator(name: str) -> None:
    record, ranks, root, count = COLLECTIVES[name], 8, 3, 800
    (row,) = timed(name, 4 * count, root=root).rows
    fabric = Fabric(ranks, time="packet")
    inputs = [np.ones(len(record.gives(r, ranks, root, count)), np.float32) for r in range(ranks)]
    given = inputs[root] if name == "broadcast" else inputs
    result = nicemu.Communicator(fabric).start(name, given, root=root).wait()
    assert result.time is not None
    assert set(row.out_of_place.times) == {round(result.time, 12)}
    if row.in_place:
        assert row.in_place.times == row.out_of_place.times


@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling"])
@by_collective
def test_hosts(name: str, algorithm: str) -> None:
    """Right, no faster than the links, and slower by what the software of hosts takes."""
    where = Where(algorithm=algorithm, ranks=5)
    (bare,) = timed(name, 1 << 16, where=where).rows
    found = timed(name, 1 << 16, where=replace(where, software=1e-5))
    assert found.wrong == (None if name == "barrier" else 0)
    assert found.where.algorithm == algorithm
    assert found.rows[0].out_of_place.time >= bare.out_of_place.time + 1e-5


def test_iterations_differ_only_by_the_slot_they_begin_at() -> None:
    repeats = Repeats(iterations=4, warmups=0, checks=0)
    same = timed("allreduce", 10000, where=Where(window=16), repeats=repeats)
    other = timed("allreduce", 10000, where=Where(window=12), repeats=repeats)
    assert same.spread == 0 < other.spread
    assert "# times are means" in str(other) and "# times are means" not in str(same)
    assert same.wrong is None and "Out of bounds values : N/A" in str(same)


def test_the_first_call_of_a_core_fetches_its_code() -> None:
    """On a machine with an instruction cache; 32 cores and a window of 64."""
    int32 = format_of("int32")
    where = Where(machine="pspin", window=64)
    for warmups, spread in ((0, True), (1, False)):
        repeats = Repeats(iterations=2, warmups=warmups, checks=0)
        found = collective_times("allreduce", where, [(int32, builtin("sum", int32))], [1 << 16],
                                 repeats)  # fmt: skip
        assert (found.rows[0].out_of_place.spread > 0) == spread


# ---- what is wrong -------------------------------------------------------------------------------


@by_collective
def test_wrong_elements_are_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit of what rank 1, or the root, gets: in each check, out of place and in place."""
    right = bench_collective._Bench._run

    def flipped(self: Any, arrays: Any, numbers: Any) -> Any:
        result = right(self, arrays, numbers)
        if target := [x for x in arrays.outputs if x.size][-1:]:
            target[0].view(np.uint8)[0] ^= 1
        return result

    monkeypatch.setattr(bench_collective._Bench, "_run", flipped)
    found = timed(name, 4096, repeats=Repeats(iterations=1, checks=3))
    assert found.wrong == (None if name == "barrier" else 6)
    shown = bench(name, *([] if name == "barrier" else ["-b", 64, "-e", 64]), "-n", 1)
    assert shown.exit_code == (0 if name == "barrier" else 1)
    assert name == "barrier" or "# Out of bounds values : 2 FAILED" in shown.stdout


@pytest.mark.parametrize("op", ["stochastic_sum", "l2norm", "premul_sum:0.5", "maximum"])
def test_ops_that_the_exact_reference_does_not_know(op: str) -> None:
    """... are compared with themselves on the host: number of the collective and seed included."""
    cases = [(F16, builtin(op, F16))]
    found = collective_times("allreduce", Where(), cases, [5000], Repeats(checks=2), seed=7)
    assert found.wrong == 0


# ---- what no run can beat ------------------------------------------------------------------------


def row(**changed: Any) -> CollectiveTime:
    fields: dict[str, Any] = {
        "collective": "allreduce", "element": "float32", "op": "sum", "preset": "wide",
        "root": None, "size": 1000, "count": 250, "bus": 1.75,
        "out_of_place": Timed((4e-6, 6e-6), (0.25, 0.75), 3e-6, 0), "in_place": None,
    }  # fmt: skip
    return CollectiveTime(**{**fields, **changed})


def test_bandwidths() -> None:
    one = row()
    run = one.out_of_place
    assert (run.time, run.host, run.spread) == (pytest.approx(5e-6), 0.5, pytest.approx(2e-6))
    assert (one.algbw(run), one.busbw(run)) == (pytest.approx(2e8), pytest.approx(3.5e8))
    both = CollectiveTimes("allreduce", Where(), (), (one, row(bus=0.75)))
    assert both.average == pytest.approx((3.5e8 + 1.5e8) / 2) and both.wrong == 0


@by_collective
def test_a_clock_that_is_too_fast_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time that is a little shorter than it can be is no result."""
    where = Where(window=64, mtu=4096, topology="star", algorithm="in-network")
    (row,) = timed(name, 1 << 20, where=where).rows
    time, least = row.out_of_place.time, row.out_of_place.least
    assert 0 < least < time
    right = Bound.check
    monkeypatch.setattr(
        Bound, "check", lambda self, found, what: right(self, found * 0.99 * least / time, what)
    )
    with pytest.raises(TimingError, match=f"{name} by in-network of 8 ranks in .* us: it takes"):
        timed(name, 1 << 20, where=where)


# ---- the commands --------------------------------------------------------------------------------


@by_collective
def test_there_is_a_command_for_each(name: str) -> None:
    few = [] if name == "barrier" else ["-b", 64, "-e", "1K", "-f", 4]
    shown = bench(name, *few, "-n", 1, "--csv", "-")
    assert shown.exit_code == 0, shown.stderr
    rows = list(csv.DictReader(io.StringIO(shown.stdout)))
    assert [row["size"] for row in rows] == (["0"] if name == "barrier" else ["64", "256", "1024"])
    assert {row["collective"] for row in rows} == {name}
    lines = bench(name, *few, "-n", 1).stdout.splitlines()
    assert lines[0].startswith(f"# {name}: 8 ranks, cards, in-network,")
    assert lines[3].split()[:6] == ["#", "size", "count", "type", "redop", "root"]
    assert lines[3].split()[6:] == ["time", "algbw", "busbw", "#wrong"] * 2 + ["host"]
    assert len(lines) == 5 + len(rows) + 2
    assert lines[-1].startswith("# Avg bus bandwidth    : ")
    told = [line.split() for line in lines if not line.startswith("#")]
    assert [int(cells[0]) for cells in told] == [int(row["size"]) for row in rows]
    assert [int(cells[1]) for cells in told] == [int(row["count"]) for row in rows]
    cells = told[0]
    assert cells[3] == ("sum" if COLLECTIVES[name].reduces else "none")
    assert cells[4] == ("0" if COLLECTIVES[name].rooted else "-1")


def test_the_json(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    asked = ("-b", "1K", "-e", "4K", "-i", "1K", "-d", "half", "-o", "max", "-n", 3, "--ranks", 5)
    shown = bench("reduce", *asked, "-r", 4, "--mtu", 256, "--window", 8, "--json", out)
    assert shown.exit_code == 0, shown.stderr
    told = json.loads(out.read_text())
    assert [row["size"] for row in told["rows"]] == [1024, 2048, 3072, 4096]
    assert {k: told[k] for k in ("collective", "ranks", "mtu", "window", "algorithm", "wrong")} == {
        "collective": "reduce", "ranks": 5, "mtu": 256, "window": 8, "algorithm": "in-network",
        "wrong": 0,
    }  # fmt: skip
    for row in told["rows"]:
        assert (row["element"], row["op"], row["root"]) == ("float16", "max", 4)
        run = row["out_of_place"]
        assert run["algbw_gb_per_s"] == pytest.approx(row["size"] / run["time_us"] / 1e3)
        assert len(run["times_us"]) == 3 and row["in_place"]["times_us"] == run["times_us"]
    assert " half    max     4 " in shown.stdout


def test_all_types_and_ops() -> None:
    """What an op is not for is named, and left out."""
    told = json.loads(
        bench("allreduce", "-d", "all", "-o", "all", "-e", 8, "-n", 1, "--json", "-").stdout
    )
    pairs = {(row["element"], row["op"]) for row in told["rows"]}
    averaged = {element for element, op in pairs if op == "avg"}
    assert averaged == {fmt.name for fmt in ALL_TYPES if fmt.kind == "float"}
    assert len(pairs) == 5 * len(ALL_TYPES) - len(told["skipped"]) and told["wrong"] == 0
    assert [re.match(r"(\w+): op avg: is for ", why)[1] for why in told["skipped"]] == [  # type: ignore[index]
        fmt.name for fmt in ALL_TYPES if fmt.kind != "float"
    ]
    shown = bench("all_gather", "-d", "all", "-e", 8, "-n", 1)
    assert shown.exit_code == 0 and " fp8_e5m2 " in shown.stdout and " uint8 " in shown.stdout


def test_an_op_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "ops.py"
    path.write_text(
        "import nicemu\n\n"
        "@nicemu.reduce_op(element='bfloat16')\ndef f(a, b):\n    return a + 2 * b\n"
    )
    shown = bench("allreduce", "-o", f"{path}:f", "-e", 64, "-n", 1)
    assert shown.exit_code == 0 and " bfloat16      f " in shown.stdout
    records = bench("allreduce", "-o", "argmax", "-e", 64, "-n", 1)
    assert records.stdout.splitlines()[5].split()[-5:-1] == ["-"] * 4


def test_commands_refuse(tmp_path: Path) -> None:
    out = tmp_path / "x"
    for arguments, said in (
        (("-b", "x"), "minbytes 'x'"),
        (("-e", "1Q"), "maxbytes '1Q'"),
        (("-i", "1.5"), "stepbytes '1.5'"),
        (("-i", "0"), "stepbytes 0"),
        (("-e", "1024G", "-i", "1"), "stepbytes 1 makes 1,099,511,627,769 sizes"),
        (("-b", "0"), "minbytes 0"),
        (("-b", "64", "-e", "8"), "maxbytes 8 is less than minbytes 64"),
        (("-f", 1), "stepfactor 1"),
        (("-n", 0), "iters 0"),
        (("-w", -1), "warmup_iters -1"),
        (("-c", -1), "check -1"),
        (("-d", "uint64"), "uint64"),
        (("-d", "int32", "-o", "avg"), "int32"),
        (("-o", "mean"), "'mean'"),
        (("--ranks", 0), "ranks 0"),
        (("--topology", "ring"), "'ring'"),
        (("--algorithm", "tree"), "'tree'"),
        (("--window", 0), "window 0"),
        (("--mtu", 100), "mtu 100"),
        (("--seed", -1), "seed -1"),
        (("--software", -1), "'--software': -1.0 is not in the range 0<=x<=1000000.0"),
        (("--plot", "a.gif"), ".png, .svg, .pdf"),
        (("--json", out, "--csv", out), "name two files"),
    ):
        refused(bench("allreduce", *arguments), said)
    refused(bench("reduce", "-r", 8), "root 8")
    for name, record in COLLECTIVES.items():
        if not record.rooted:
            refused(bench(name, "-r", 0), "no such option '-r'", f"nicemu bench {name} --help")
    chance = ("-o", "stochastic_sum", "-d", "half", "--algorithm", "ring", "-e", 64)
    refused(bench("allreduce", *chance), "stochastic_sum by ring", "do not check")
    assert bench("allreduce", *chance, "-c", 0).exit_code == 0
    assert not out.exists()


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install 'nicemu[viz]'")
    path = tmp_path / "a.svg"
    shown = bench("allreduce", "-o", "all", "-e", 1024, "-n", 1, "--plot", path)
    assert shown.exit_code == 0, shown.stderr
    text = path.read_text()
    for said in (
        "float32 sum wide busbw", "float32 sum wide algbw", "float32 avg wide busbw",
        "200 Gb/s of a link", "size of the whole array, bytes",
    ):  # fmt: skip
        assert said in text
    refused(bench("reduce_scatter", "-e", 8, "-n", 1, "--plot", path), "arrays are empty")


# ---- tables, and the guide -----------------------------------------------------------------------


def test_columns_of_several_lines() -> None:
    table = Table("head", ("\na", "in place\ntime\n(us)"), [(1, "2.5")])
    assert str(table) == "head\n   in place\na      time\n       (us)\n1       2.5"
    assert "<th>in place<br>time<br>(us)</th>" in table._repr_html_()


def without_host_time(text: str) -> str:
    """The last column of rows of collectives, the only one of thousandths."""
    return re.sub(r"(?m) +\d+\.\d{3}$", "", text)


def test_the_tables_of_the_guide() -> None:
    """As its commands print them, but for host time: ``python -m tests.page bench`` makes the
    page."""
    printed = [(f["shown"], lines) for f, lines in page.run(page.path("bench").read_text(), {})]
    assert len(printed) == 4
    for shown, lines in printed:
        assert re.sub(" +", " ", without_host_time(lines)) == re.sub(
            " +", " ", without_host_time(shown)
        )
