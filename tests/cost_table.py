"""``python -m tests.cost_table``: instructions of built-in ops, the table of guide/numerics.md.

The test runs it op by op and holds the page against it.
"""

from __future__ import annotations

from nicemu.errors import ArgumentError, OpError
from nicemu.ops.builtin import BUILTINS, builtin

OPS = (*BUILTINS, "premul_sum:0.5")
#: heading -> element and preset
COLUMNS = {
    "bfloat16 `wide`": ("bfloat16", "wide"),
    "float16 `wide`": ("float16", "wide"),
    "bfloat16 `per-add`": ("bfloat16", "per-add"),
    "float16 `per-add`": ("float16", "per-add"),
    "int32": ("int32", "wide"),
}


def _cell(op: str, element: str, preset: str) -> str:
    try:
        cost = builtin(op, element).cost(element=element, preset=preset)
    except (ArgumentError, OpError):  # the op is not for that format
        return ""
    return f"{cost.instructions_per_packet} ({cost.instructions_per_element:.3f})"


def row(op: str) -> str:
    """The line of an op."""
    cells = [_cell(op, *column) for column in COLUMNS.values()]
    return f"| `{op}` | {' | '.join(cells)} |"


def head() -> list[str]:
    """The lines above."""
    return [f"| op | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]


if __name__ == "__main__":
    print("\n".join([*head(), *map(row, OPS)]))
