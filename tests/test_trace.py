"""op.trace: each instruction of a call, with the author's line and what it wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import nicemu
from nicemu import ArgumentError, FaultError, Nic
from nicemu.cli import main
from nicemu.ops.builtin import builtin
from nicemu.ops.trace import Step, Trace

GUIDE = Path(nicemu.__file__).parent / "guide" / "authoring.md"


@nicemu.reduce_op(element="float32")
def doubled(a: Any, b: Any) -> Any:
    return a + 2 * b


def stored(trace: Trace) -> dict[int, int]:
    """What is in memory in the end: address -> bits."""
    return {
        int(place[1:-1], 16): int(value, 16)
        for step in trace.steps
        for place, value in step.writes.items()
        if place[0] == "["
    }


@pytest.mark.parametrize("machine", ["card", "cv32e40p"])
def test_each_instruction_of_a_call_is_there(machine: str) -> None:
    a, b = np.arange(1, 12, dtype=np.float32), np.full(11, 0.5, np.float32)
    found = doubled.trace("acc", [a, b], machine)
    nic = Nic(machine, threads=1)
    nic.load(doubled)
    nic.handle("first", [a])
    done = nic.handle("acc", [b])
    assert len(found.steps) == done.instructions and found.status == "" and found.count == 11
    bits = done.accumulator.view(np.uint32).tolist()
    assert [value for _, value in sorted(stored(found).items())] == bits
    line = doubled._source.functions_["merge"].__code__.co_firstlineno + 2  # type: ignore[union-attr]
    of_merge = [s for s in found.steps if s.source == f"test_trace.py:{line}: return a + 2 * b"]
    assert of_merge and all("f" in step.text for step in of_merge)
    assert found.steps[-1].text in ("c.jr ra", "ret")
    offsets = {row.address: row.text for row in doubled.disasm(machine).rows}
    assert all(offsets[step.at] == step.text for step in found.steps)


def test_registers_are_told() -> None:
    found = builtin("sum", "int32").trace("acc", [np.array([7], "i4"), np.array([-9], "i4")],
                                          "pspin", element="int32")  # fmt: skip
    (added,) = (step for step in found.steps if step.text.startswith("c.add "))
    assert added.writes == {"x13": f"{(1 << 64) - 2:#x}"}
    vectors = builtin("sum", "int32").trace(element="int32").steps
    assert next(step for step in vectors if "vsetvli" in step.text).writes["vl"] == "0x8"


@pytest.mark.parametrize("entry", ["first", "load", "acc4", "merge2", "emit", "finish"])
def test_every_kind_of_entry(entry: str) -> None:
    found = builtin("sum", "bfloat16").trace(entry, element="bfloat16")
    assert found.entry == entry and len(stored(found)) == 8
    steps = json.loads(json.dumps(found.record()))["steps"]
    assert Step(**steps[0]) == found.steps[0]


def test_a_status_is_told() -> None:
    @nicemu.reduce_op(element="int32")
    def ratio(a: Any, b: Any) -> Any:
        return a // b

    found = ratio.trace("acc", [np.array([3], np.int32), np.array([0], np.int32)])
    assert found.status.startswith("raised ZeroDivisionError") and found.status in str(found)


def test_what_is_refused() -> None:
    x = np.ones(4, np.float32)
    for arguments, words in (
        (("no",), "entry 'no' is unknown"),
        (("acc", [x]), "1 streams: acc takes those of 2 workers"),
        (("acc", [x, x[:2]]), "array of shape"),
        (("first", [x.astype(np.float16)]), "dtype float16"),
        (("first", [np.ones(5000, np.float32)]), r"count 5000 .*1\.\.4096 elements"),
    ):
        with pytest.raises(ArgumentError, match=words):
            doubled.trace(*arguments)
    long = np.ones(4000, np.float32)
    with pytest.raises(ArgumentError, match="a trace of 4000 elements is too long: use fewer"):
        doubled.trace("first", [long], "cv32e40p")

    @nicemu.reduce_op(element="float32")
    def forever(a: Any, b: Any) -> Any:
        while a == a:
            a = a + b
        return a

    with pytest.raises(FaultError, match="out of budget"):
        forever.trace("acc", machine=nicemu.Machine("own", budget=500))


def test_the_guides_example() -> None:
    command, shown = re.search(  # type: ignore[union-attr]
        r"```sh\nnicemu (op trace [^\n]+)\n```\n```text\n(.*?)```", GUIDE.read_text(), re.S
    ).groups()
    done = CliRunner().invoke(main, command.split())

    def plain(text: str) -> str:
        return re.sub(r"builtin\.py:\d+", "builtin.py", text)

    assert done.exit_code == 0 and plain(done.stdout) == plain(shown)
    told = CliRunner().invoke(main, [*command.split(), "--json", "--vlen", "128"])
    assert json.loads(told.stdout)["machine"]["vlen"] == 128
