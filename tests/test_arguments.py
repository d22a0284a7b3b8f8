"""Arguments of another kind: each is refused in one line that names it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import nicemu
from nicemu import ArgumentError, Communicator, Fabric, Nic, Stream, arguments, kernel
from nicemu.ops.builtin import builtin, sat_sum, stochastic_sum

#: what is neither a number, a name, nor True or False
ODD: tuple[Any, ...] = (b"b", {}, {3: 4}, object(), 2 + 3j, [1], np.array([1, 2]), "e\n")
NO_WHOLE = (*ODD, "x", 1.5, float("nan"), True, np.float32(2), -1, 10**30)
NO_REAL = (*ODD, "x", float("nan"), True, -1, 10**400)
NO_FLAG = (*ODD, None, "x", 1, 0.0)
NO_NAME = (*ODD, "x", 5, True)
NO_TYPE = (*ODD, "x", 5, 1.5, True)
NO_LIST = (5, 1.5, "x", b"b", True)
X = [np.ones(8, np.float32)] * 4


@pytest.fixture(scope="module")
def nic() -> Nic:
    nic = Nic(threads=1)
    nic.load(kernel("sum", "f32"))
    return nic


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return Fabric(4)


@pytest.fixture(scope="module")
def world(fabric: Fabric) -> Communicator:
    return Communicator(fabric)


def refuses(call: Callable[[Any], object], name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(ArgumentError) as error:
            call(value)
        text = str(error.value)
        assert name in text and "\n" not in text and ": " in text, (value, text)


def keyword(call: Callable[..., object], name: str) -> Callable[[Any], object]:
    return lambda value: call(**{name: value})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("machine", (*NO_NAME, None)),
        ("threads", (*NO_WHOLE, 0)),
        ("simd", (*NO_NAME, None)),
        ("cycles", NO_FLAG),
        ("conflicts", NO_FLAG),
    ],
)
def test_of_devices(name: str, values: tuple[Any, ...]) -> None:
    refuses(keyword(Nic, name), name, values)


def test_of_memory_and_counters(nic: Nic) -> None:
    word = 0x1000_0000
    calls: tuple[Callable[[Any], object], ...] = (
        partial(nic.read, word, 4), partial(nic.write, word, b"1234"), nic.counters
    )  # fmt: skip
    for call in calls:
        refuses(call, "core", (*NO_WHOLE, None, 8))
    refuses(lambda at: nic.read(at, 4), "address", (*NO_WHOLE[:-1], None))
    refuses(lambda at: nic.write(at, b"1234"), "address", (*NO_WHOLE[:-1], None))
    refuses(lambda size: nic.read(word, size), "size", (*NO_WHOLE, None))
    refuses(lambda data: nic.write(word, data), "data", ("x", 5, 1.5, None, {}, [1]))
    for method in (nic.load, nic.place):
        refuses(method, "image", (*NO_TYPE, None))


def test_of_handler_calls(nic: Nic) -> None:
    first = partial(nic.handle, "first", X[:1])
    refuses(nic.handle, "entry", (*NO_NAME, None))
    refuses(partial(nic.handle, "first"), "payloads", (5, 1.5, None, {}, object()))
    refuses(keyword(first, "count"), "count", NO_WHOLE)
    refuses(keyword(first, "core"), "core", (*NO_WHOLE, None, 8))
    refuses(keyword(first, "context"), "context", NO_TYPE)
    refuses(lambda n: nic.handle("finish", accumulator=X[0], count=n), "count", NO_WHOLE)
    assert first().accumulator.tolist() == [1] * 8


def test_of_reductions(nic: Nic) -> None:
    reduce = partial(nic.reduce, X)
    refuses(keyword(reduce, "payload"), "payload", (*NO_WHOLE, None, 3, 4097))
    refuses(keyword(reduce, "context"), "context", NO_TYPE)
    refuses(keyword(reduce, "leave"), "leave", (*NO_NAME, None))
    refuses(keyword(reduce, "progress"), "progress", NO_TYPE)
    refuses(keyword(reduce, "out"), "out", NO_TYPE)
    refuses(nic.reduce, "stream", (*NO_TYPE, None))
    for name in ("rank", "contributors"):
        stream = keyword(partial(Stream, X[0]), name)
        refuses(lambda n, of=stream: nic.reduce([of(n)]), name, (*NO_WHOLE, None))
    refuses(lambda yes: nic.reduce([Stream(X[0], partial=yes)]), "partial", NO_FLAG)
    for name in ("rank", "group", "seed"):
        context = keyword(nicemu.Context, name)
        refuses(lambda n, of=context: reduce(context=of(n)), f"context {name}", (*NO_WHOLE, None))
    assert reduce().values.tolist() == [4] * 8


FABRIC: dict[str, tuple[Any, ...]] = {
    "machine": (*NO_NAME, None),
    "planes": (*NO_WHOLE, None, 0, 3),
    "mtu": (*NO_WHOLE, None, 255, 4097),
    "seed": (*NO_WHOLE, None),
    **dict.fromkeys(("loss", "duplicate", "reorder", "corrupt"), (*NO_REAL, None, 1.001)),
    "jitter": (*NO_REAL, None, 1.001),
    "delay": (*NO_REAL, 1.001),
    "time": NO_NAME,
    "network": (*ODD, "x", 5, True),
    "detection": (*NO_REAL, None),
    "max_resends": (*NO_WHOLE, None, 1),
    "icrc": NO_FLAG,
    "order": (*NO_NAME, None),
    "simd": (*NO_NAME, None),
    "topology": (*NO_NAME, None),
    "capture": (*ODD[:-1], 5, 1.5, True),
}


@pytest.mark.parametrize("name", FABRIC)
def test_of_fabrics(name: str) -> None:
    refuses(keyword(partial(Fabric, 2), name), name, FABRIC[name])


def test_of_groups_links_and_nodes(fabric: Fabric) -> None:
    refuses(Fabric, "ranks", (*NO_WHOLE, None, 0, 65537))
    refuses(keyword(fabric.group, "ranks"), "ranks", (*NO_LIST, [4], [1, True], ["x"], [-1]))
    refuses(keyword(fabric.group, "window"), "window", (*NO_WHOLE, None, 0))
    refuses(keyword(fabric.group, "job"), "job", (*NO_WHOLE, None, 65536))
    link = fabric.links()[0]
    cut = partial(fabric.kill, "rank0")
    for call in (link.down, link.up, fabric.run, cut):
        refuses(call, "time", NO_REAL)
    refuses(link.counters, "up", NO_FLAG)
    refuses(fabric.devices["nic0"].counters, "core", (*NO_WHOLE, None, 8))
    refuses(fabric.kill, "node", (*NO_TYPE, None))
    refuses(lambda name: fabric.receive(name, b""), "node", (*NO_TYPE, None))
    refuses(lambda frame: fabric.receive("nic0", frame), "frame", ("x", 5, [1], None, {}))
    for name in (*ODD[:-1], 5, None):
        refuses(partial(fabric.link, "rank0"), "node", (name,))
        refuses(lambda name: fabric.link(name, "nic0"), "node", (name,))
    with fabric.group() as group:
        refuses(group.chunk, "image", NO_TYPE)
        refuses(group.start, "exchange", (*NO_TYPE, None))
    assert fabric.counters().under_way == 0 and fabric.now == 0


def test_of_communicators(fabric: Fabric, world: Communicator) -> None:
    refuses(Communicator, "fabric", (*NO_WHOLE, None, 0))
    new = partial(Communicator, fabric)
    refuses(keyword(new, "ranks"), "ranks", (*NO_LIST, [4], [1, True], ["x"], [-1]))
    refuses(keyword(new, "algorithm"), "algorithm", (*NO_NAME, None))
    refuses(keyword(new, "window"), "window", (*NO_WHOLE, None, 0))
    refuses(keyword(new, "job"), "job", (*NO_WHOLE, None, 65536))
    refuses(lambda name: world.start(name, X), "collective", (*NO_NAME, None))
    refuses(world.chunk, "image", (*NO_TYPE, None))
    handle = world.start("allreduce", X)
    refuses(handle.wait, "on_partial", NO_TYPE)
    assert handle.wait().whole().tolist() == [4] * 8


@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter"])
def test_of_collectives(world: Communicator, collective: str) -> None:
    call: Callable[..., object] = partial(getattr(world, collective), X)
    refuses(keyword(call, "root"), "root", (*NO_WHOLE, None, 4))
    refuses(keyword(call, "seed"), "seed", (*NO_WHOLE, None))
    refuses(keyword(call, "algorithm"), "algorithm", NO_NAME)
    refuses(keyword(call, "preset"), "preset", NO_NAME)
    refuses(keyword(call, "partials"), "partials", NO_FLAG)
    refuses(keyword(call, "on_partial"), "on_partial", NO_TYPE)
    refuses(keyword(call, "out"), "out", NO_TYPE)
    refuses(call, "op", (*NO_TYPE, None))
    refuses(getattr(world, collective), "", (*NO_TYPE, None))


def test_of_built_in_ops() -> None:
    assert sat_sum("int8") is sat_sum(np.int8) is builtin("sat_sum", "i8")
    assert stochastic_sum("bf16") is builtin("stochastic_sum", "bfloat16")
    for family in (sat_sum, stochastic_sum):
        refuses(family, "dtype", (*ODD[1:], "x", 5, None))
        refuses(family, "float32", ("f32", np.float32))
    refuses(lambda op: builtin(op, "f32"), "op", (*NO_NAME, None))
    refuses(partial(builtin, "sum"), "dtype", (*ODD[1:], "x", 5, None))


def test_messages_are_short() -> None:
    with pytest.raises(ArgumentError) as error:
        arguments.whole("count", "x" * 1000, 0, 7, " bytes")
    assert str(error.value).endswith("... is no whole number: use 0..7 bytes")
    assert len(str(error.value)) < 150
    assert arguments.whole("count", np.uint8(7), 0, 7) == 7
    assert arguments.real("loss", np.float32(0.5), 0, 1) == 0.5
    assert arguments.flag("icrc", np.True_) is True
