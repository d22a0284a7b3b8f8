"""nicemu: a SmartNIC whose eight RISC-V cores reduce gradients, emulated to the bit."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nicemu.builtin import kernel, premul_sum
    from nicemu.collective import Result
    from nicemu.communicator import Communicator, Handle
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
    from nicemu.fabric import Fabric
    from nicemu.image import Context, KernelImage
    from nicemu.machine import MACHINES, Machine, Network
    from nicemu.nic import Nic, ReduceResult, Stream
    from nicemu.op import ReduceOp, reduce_op
    from nicemu.partials import Partial

__version__ = "0.1.0"

# public name -> module that has it; loaded when first used, so that importing nicemu is light
_WHERE = {
    "kernel": "builtin",
    "premul_sum": "builtin",
    "Communicator": "communicator",
    "Handle": "communicator",
    "Result": "collective",
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
    "Fabric": "fabric",
    "Context": "image",
    "KernelImage": "image",
    "MACHINES": "machine",
    "Machine": "machine",
    "Network": "machine",
    "Nic": "nic",
    "ReduceResult": "nic",
    "Stream": "nic",
    "ReduceOp": "op",
    "reduce_op": "op",
    "Partial": "partials",
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
