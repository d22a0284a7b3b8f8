"""`nicemu op`, `nicemu allreduce --op FILE.py:NAME` and `nicemu cache`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import load_file

from nicemu import ArgumentError, Communicator, bfloat16
from nicemu.cli import main
from nicemu.ops.builtin import builtin
from tests.test_cli import BF16, F16, refused, workers

OPS = """
import math
import nicemu
from beside import square

@nicemu.reduce_op(accumulator="float32")
def l2norm(a, b):
    return a + b

l2norm.lift(square)

@l2norm.finish
def _(a):
    return math.sqrt(a)

@nicemu.reduce_op(element="float16", accumulator=("float32", "float32"))
def ends(a, b):
    return min(a[0], b[0]), max(a[1], b[1])

@ends.lift
def _(x):
    return x, x

plain = 3
"""


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NICEMU_CACHE_DIR", str(cache))


@pytest.fixture
def ops(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("def square(x):\n    return x * x\n")
    path = tmp_path / "ops.py"
    path.write_text(OPS)
    return path


def nicemu(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


# ---- op ------------------------------------------------------------------------------------------


def test_cost(ops: Path) -> None:
    shown = nicemu("op", "cost", f"{ops}:l2norm", "--element", "bf16")
    assert shown.exit_code == 0 and "57 instructions per packet of 1,024 bytes" in shown.stdout
    more = ("--vlen", 128, "--payload", 512, "--json", "--preset", "per-hop")
    told = json.loads(nicemu("op", "cost", f"{ops}:l2norm", "--element", "f16", *more).stdout)
    assert told["machine"]["vlen"] == 128 and told["entries"]["acc"]["count"] == 256
    assert told["preset"] == "per-hop" and told["element"] == "float16"


def test_check(ops: Path) -> None:
    shown = nicemu("op", "check", f"{ops}:l2norm", "--element", "f16")
    assert shown.exit_code == 0 and "65,536 patterns" in shown.stdout
    told = json.loads(nicemu("op", "check", f"{ops}:ends", "--json").stdout)
    assert told["ok"] and told["laws"][0]["verdict"] == "yes"


def test_check_of_what_must_not_be_used(tmp_path: Path) -> None:
    """The exit status tells."""
    path = tmp_path / "forever.py"
    path.write_text(
        "import nicemu\n\n@nicemu.reduce_op(element='f32')\ndef forever(a, b):\n"
        "    while a > -b - 1:\n        a = a * a + 1\n    return a\n"
    )
    shown = nicemu("op", "check", f"{path}:forever")
    assert shown.exit_code == 1 and "not to be used" in shown.stdout


def test_disasm(ops: Path) -> None:
    shown = nicemu("op", "disasm", f"{ops}:l2norm", "--element", "bf16").stdout
    labels = re.findall(r"^(\w+):$", shown, re.M)
    assert {"first", "acc", "finish"} <= set(labels)
    assert re.search(r"vfsqrt\.v .* ; ops\.py:14: return math\.sqrt\(a\)$", shown, re.M)
    assert re.search(r"vfmul\.vv .* ; beside\.py:2: return x \* x$", shown, re.M)  # a helper's
    assert not re.search(r"vle16\.v .*;", shown)
    scalar = nicemu("op", "disasm", "max", "--element", "i32", "--machine", "cv32e40p").stdout
    assert "vsetvli" in nicemu("op", "disasm", "max", "--element", "i32").stdout
    assert "vsetvli" not in scalar and "c.jr ra" in scalar
    rows = json.loads(nicemu("op", "disasm", "sum", "--element", "f16", "--json").stdout)
    assert rows[0]["address"] == 0 and rows[0]["labels"]


def test_open_elements_are_asked_for(ops: Path) -> None:
    for command in ("cost", "check", "disasm"):
        refused(nicemu("op", command, f"{ops}:l2norm"), "l2norm", "element is open")
        refused(nicemu("op", command, f"{ops}:l2norm", "--element", "f17"), "f17")
    refused(nicemu("op", "cost", "sum", "--element", "f16", "--vlen", 100), "vlen 100")


# ---- files with ops ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_of_that_name\n", ":1: ModuleNotFoundError"),
        ("\n\nx = (\n", ":3: SyntaxError"),
        ("\nraise SystemExit(0)\n", ":2: SystemExit: 0"),
        ("\n1 / 0\n", ":2: ZeroDivisionError"),
        ("import nicemu\n\nnicemu.reduce_op(lambda a: a)\n", ":3: merge"),
        ("def f():\n    return f()\nf()\n", ":2: RecursionError"),
        ("open('/nowhere/at/all')\n", ":1:"),
        ("mine = 3\n", "is int and no reduce op: define one"),
        ("\0", "null bytes"),
        ("", "is no reduce op: define one"),
    ],
)
def test_files_that_give_no_op(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    refused(nicemu("op", "cost", f"{path}:mine"), "mine.py", said)


def test_names_that_are_none(ops: Path) -> None:
    for name in (f"{ops}:plain", f"{ops}:other", ops, f"{ops}:"):
        refused(nicemu("op", "cost", name), f"{ops}:l2norm, {ops}:ends")
    refused(nicemu("op", "cost", ops.parent / "no.py"), "there is no such file")
    refused(nicemu("op", "cost", f"{ops.parent}:l2norm"), "FILE.py:NAME")
    refused(nicemu("op", "cost", "mean"), "mean", "sum")


# ---- allreduce -----------------------------------------------------------------------------------


def test_allreduce_with_an_op_of_ones_own(tmp_path: Path, ops: Path) -> None:
    paths = workers(tmp_path, F16)
    output = tmp_path / "out.safetensors"
    shown = nicemu("allreduce", *paths, "--op", f"{ops}:l2norm", "-o", output)
    assert shown.stdout.splitlines()[-1] == "bits equal to those of l2norm run on the host: yes"
    assert "largest error" not in shown.stdout
    inputs = [load_file(path)["bias"].astype("f8") for path in paths]
    expected = sum(x * x for x in inputs) ** 0.5
    assert abs(load_file(output)["bias"].astype("f8") - expected).max() < 2**-9


def test_allreduce_with_a_factor(tmp_path: Path) -> None:
    paths = workers(tmp_path, F16)
    output = tmp_path / "out.safetensors"
    shown = nicemu("allreduce", *paths, "--op", "premul_sum:0.5", "-o", output)
    assert shown.stdout.splitlines()[-1] == "bits equal to those of premul_sum run on the host: yes"
    inputs = [load_file(path)["bias"].astype("f8") for path in paths]
    assert abs(load_file(output)["bias"].astype("f8") - sum(inputs) / 2).max() < 2**-9
    for name in ("premul_sum", "premul_sum:half"):
        refused(nicemu("allreduce", *paths, "--op", name), "premul_sum", "factor")
        refused(nicemu("op", "cost", name, "--element", "f16"), "premul_sum", "factor")


@pytest.mark.parametrize("topology", ["star", "cards", "tree(3)"])
def test_allreduce_with_chance(topology: str) -> None:
    """Of the gradients that come with the package: many chunks, and two collectives."""
    shown = nicemu("allreduce", "--op", "stochastic_sum", "--topology", topology)
    assert shown.stdout.splitlines()[-1] == (
        "bits equal to those of stochastic_sum run on the host: yes"
    )


def test_chance_depends_on_chunk_and_device() -> None:
    """What the command passes to the reference is needed for equal bits."""
    op = builtin("stochastic_sum", "bfloat16")
    x = np.random.default_rng(3).standard_normal((4, 2000)).astype(bfloat16)
    right = op.reference(x, order=((0, 1), (2, 3)), chunk=512, devices={(): 2, (1,): 1})
    for chunk, devices in ((500, {(): 2, (1,): 1}), (512, {(): 2, (1,): 3}), (512, {(1,): 1})):
        other = op.reference(x, order=((0, 1), (2, 3)), chunk=chunk, devices=devices)
        assert (right.view("u2") != other.view("u2")).any()
    with pytest.raises(ArgumentError, match="reads chunk, device, seq, of which a tree"):
        op.reference(x, order=((0, 1), (2, 3)))


def test_allreduce_with_assembly(tmp_path: Path) -> None:
    pytest.importorskip("ziglang", reason="pip install 'nicemu[c]'")
    code = """
    first:
    load:
        ld a1, 0(a1)
        j 3f
    acc:
    merge:
        ld a1, 0(a1)
    2:  vsetvli t0, a2, e16, m8, ta, ma
        vle16.v v8, (a1)
        vle16.v v16, (a0)
        vfadd.vv v8, v16, v8
        vse16.v v8, (a0)
        sub a2, a2, t0
        sh1add a0, t0, a0
        sh1add a1, t0, a1
        bnez a2, 2b
        li a0, 0
        ret
    emit:
    finish:
        mv t1, a0
        ld a0, 0(a1)
        mv a1, t1
    3:  vsetvli t0, a2, e16, m8, ta, ma
        vle16.v v8, (a1)
        vse16.v v8, (a0)
        sub a2, a2, t0
        sh1add a0, t0, a0
        sh1add a1, t0, a1
        bnez a2, 3b
        li a0, 0
        ret
    """
    (tmp_path / "own.py").write_text(
        f"import nicemu\n\ntotal = nicemu.reduce_op.asm({code!r}, "
        "element='float16', preset='per-add', name='total')\n"
    )
    paths = workers(tmp_path, F16)
    output = tmp_path / "out.safetensors"
    shown = nicemu("allreduce", *paths, "--op", f"{tmp_path / 'own.py'}:total", "-o", output)
    assert shown.stdout.splitlines()[-1] == (
        "bits equal to those of worker 0 (total is assembly: only cores run it): yes"
    )
    other = tmp_path / "sum.safetensors"
    nicemu("allreduce", *paths, "--preset", "per-add", "-o", other)
    assert np.array_equal(load_file(output)["bias"], load_file(other)["bias"])


def test_allreduce_with_records(tmp_path: Path, ops: Path) -> None:
    paths = workers(tmp_path, F16)
    told = nicemu("allreduce", *paths, "--op", f"{ops}:ends", "--json", "--partials")
    run = json.loads(told.stdout)["runs"][0]
    assert run["bits_equal"] and run["reference"] == "host" and run["largest_error_ulp"] is None
    assert run["partials"][0]["elements"] == run["elements"]
    output = tmp_path / "out.npz"
    refused(
        nicemu("allreduce", *paths, "--op", f"{ops}:ends", "-o", output), "out.npz", "f0:float32"
    )
    assert not output.exists()


def test_a_wrong_bit_of_an_op_of_ones_own_is_found(
    tmp_path: Path, ops: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Communicator.allreduce

    def wrong(*args, **kwargs):  # type: ignore[no-untyped-def]
        result = right(*args, **kwargs)
        result.values[0].view("u2")[3] ^= 1
        return result

    monkeypatch.setattr(Communicator, "allreduce", wrong)
    shown = nicemu("allreduce", *workers(tmp_path, F16), "--op", f"{ops}:l2norm")
    assert shown.exit_code == 1 and "first difference at bias[3]" in shown.stdout
    assert shown.stdout.splitlines()[-1].endswith("run on the host: no")


def test_allreduce_refuses_elements_of_another_format(tmp_path: Path, ops: Path) -> None:
    paths = workers(tmp_path, BF16)
    refused(nicemu("allreduce", *paths, "--op", f"{ops}:ends"), "ends", "is for float16")


# ---- cache ---------------------------------------------------------------------------------------


def test_cache(tmp_path: Path, ops: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NICEMU_CACHE_DIR", str(tmp_path / "images"))
    told = json.loads(nicemu("cache", "info", "--json").stdout)
    assert told == {"directory": str(tmp_path / "images"), "images": 0, "bytes": 0}
    assert nicemu("cache", "clear").stdout == "0 images removed\n"
    nicemu("op", "disasm", f"{ops}:l2norm", "--element", "f16")
    other = tmp_path / "images" / "notes.txt"
    other.write_text("mine")
    (tmp_path / "images" / "folder.image").mkdir()
    told = json.loads(nicemu("cache", "info", "--json").stdout)
    assert told["images"] == 1 and told["bytes"] > 0
    assert "1 image, " in nicemu("cache", "info").stdout
    assert nicemu("cache", "clear").stdout == "1 image removed\n"
    assert {path.name for path in other.parent.iterdir()} == {"notes.txt", "folder.image"}
