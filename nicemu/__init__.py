"""nicemu: a SmartNIC whose eight RISC-V cores reduce gradients, emulated to the bit."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nicemu.collectives.collective import Result
    from nicemu.collectives.communicator import Communicator, Handle
    from nicemu.collectives.partials import Partial
    from nicemu.device.image import Context, KernelImage
    from nicemu.device.machine import MACHINES, Machine, Network
    from nicemu.device.nic import Nic, ReduceResult, Stream
    from nicemu.dtypes import bfloat16, float16, float32
    from nicemu.errors import (
        ArgumentError,
        CapacityError,
        CollectiveError,
        Fault,
        FaultError,
        FileFormatError,
        ImageError,
        NicemuError,
        OpError,
        StatusError,
        TimingError,
        WorkerLostError,
    )
    from nicemu.network.fabric import Fabric
    from nicemu.ops.builtin import kernel, premul_sum
    from nicemu.ops.op import ReduceOp, reduce_op

__version__ = "0.1.0"

# public name -> module that has it; loaded when first used, so that importing nicemu is light
_WHERE = {
    "kernel": "ops.builtin",
    "premul_sum": "ops.builtin",
    "Communicator": "collectives.communicator",
    "Handle": "collectives.communicator",
    "Result": "collectives.collective",
    "bfloat16": "dtypes",
    "float16": "dtypes",
    "float32": "dtypes",
    "ArgumentError": "errors",
    "CapacityError": "errors",
    "CollectiveError": "errors",
    "Fault": "errors",
    "FaultError": "errors",
    "FileFormatError": "errors",
    "ImageError": "errors",
    "NicemuError": "errors",
    "OpError": "errors",
    "StatusError": "errors",
    "TimingError": "errors",
    "WorkerLostError": "errors",
    "Fabric": "network.fabric",
    "Context": "device.image",
    "KernelImage": "device.image",
    "MACHINES": "device.machine",
    "Machine": "device.machine",
    "Network": "device.machine",
    "Nic": "device.nic",
    "ReduceResult": "device.nic",
    "Stream": "device.nic",
    "ReduceOp": "ops.op",
    "reduce_op": "ops.op",
    "Partial": "collectives.partials",
}

__all__ = [
    "MACHINES",
    "ArgumentError",
    "CapacityError",
    "CollectiveError",
    "Communicator",
    "Context",
    "Fabric",
    "Fault",
    "FaultError",
    "FileFormatError",
    "Handle",
    "ImageError",
    "KernelImage",
    "Machine",
    "Network",
    "Nic",
    "NicemuError",
    "OpError",
    "Partial",
    "ReduceOp",
    "ReduceResult",
    "Result",
    "StatusError",
    "Stream",
    "TimingError",
    "WorkerLostError",
    "bfloat16",
    "float16",
    "float32",
    "kernel",
    "premul_sum",
    "reduce_op",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'nicemu' has no attribute {name!r}")
    return getattr(import_module(f"nicemu.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
