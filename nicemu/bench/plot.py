"""Pictures of what benches found: a roofline, rates by packet size, bandwidths by size of arrays.

Owns: what is drawn, and how.  Only this module imports matplotlib (extra ``viz``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from nicemu.bench.collective import CollectiveTimes
from nicemu.bench.nic import NicRates
from nicemu.bench.op import GIGA, LineRate, OpRate, OpRates
from nicemu.device.image import Entry
from nicemu.dtypes import item_of
from nicemu.errors import ArgumentError

__all__ = ["FORMATS", "bandwidths", "picture_format", "rooflines", "throughputs"]

#: of files, by the suffix of their names
FORMATS = ("png", "svg", "pdf")


def picture_format(path: str) -> str:
    """The format of a picture, by the suffix of its file.

    Raises:
        ArgumentError: another suffix, or matplotlib is not installed.
    """
    suffix = Path(path).suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        raise ArgumentError(f"plot {path!r}: end its name with one of .{', .'.join(FORMATS)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ArgumentError(
            f"plot {path!r}: matplotlib cannot be imported ({error}): pip install 'nicemu[viz]'"
        ) from error
    return suffix


def rooflines(rates: OpRates, suffix: str) -> bytes:
    """Of ops, a file's bytes: a roofline, and rates by size of packets and VLEN, where they vary.

    Args:
        rates: what was measured.
        suffix: one of FORMATS.

    Raises:
        ImportError: matplotlib is not installed: see :func:`picture_format`.
    """
    from matplotlib.figure import Figure

    over = [what for what in (PAYLOAD, VLEN) if len({what.of(row) for row in rates.rows}) > 1]
    figure = Figure(figsize=(7 + 5.5 * len(over), 5.8), layout="constrained")
    axes = figure.subplots(1, 1 + len(over), squeeze=False)[0]
    styles = _styles(rates.rows)
    slanted = _roofline(axes[0], _at_most(rates.rows, PAYLOAD, VLEN), rates, styles)
    for where, what in zip(axes[1:], over, strict=True):
        rows = _at_most(rates.rows, *({PAYLOAD, VLEN} - {what}))
        _curves(where, what, rows, rates, styles)
    figure.suptitle(rates.device)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center",
                  ncols=2 * len(axes), fontsize="small", frameon=False)  # fmt: skip
    figure.draw_without_rendering()  # angles are known now
    for text, (start, end) in slanted:
        (x0, y0), (x1, y1) = axes[0].transData.transform([start, end])
        text.set_rotation(math.degrees(math.atan2(y1 - y0, x1 - x0)))
    return _file(figure, suffix)


def bandwidths(times: CollectiveTimes, suffix: str) -> bytes:
    """Of a collective, a file's bytes: bus and algorithm bandwidth by size, out of place.

    Args:
        times: what was measured.
        suffix: one of FORMATS.

    Raises:
        ArgumentError: there is no array in any row.
        ImportError: matplotlib is not installed: see :func:`picture_format`.
    """
    from matplotlib.figure import Figure

    if not any(row.size for row in times.rows):
        raise ArgumentError(f"plot of {times.collective}: arrays are empty: use more maxbytes")
    where = times.where
    kinds = dict.fromkeys((row.element, row.op, row.preset) for row in times.rows)
    figure = Figure(figsize=(8.5, max(5.5, 0.22 * len(kinds))), layout="constrained")
    axes = figure.subplots()
    for i, kind in enumerate(kinds):
        rows = [row for row in times.rows if (row.element, row.op, row.preset) == kind and row.size]
        for what, style in (("busbw", "-"), ("algbw", ":")):
            xs = [row.size for row in rows]
            ys = [getattr(row, what)(row.out_of_place) / GIGA for row in rows]
            named = i == 0 or what == "busbw"  # the dotted line beneath is algbw each time
            label = " ".join(part for part in (*kind, what) if part) if named else None
            axes.plot(xs, ys, style, marker=".", color=f"C{i % 10}", label=label)
    for rate in times.rates:
        axes.axhline(rate / 8 / GIGA, color="tab:red", linestyle="--", linewidth=0.8)
        _note(axes, f"{rate / GIGA:g} Gb/s of a link", (0, rate / 8 / GIGA), (4, -10),
              color="tab:red", xycoords=("axes fraction", "data"))  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set(
        xlabel="size of the whole array, bytes", ylabel="GB/s, emulated", yscale="log",
        title=f"{times.collective}: {where.ranks} ranks, {where.topology}, {where.algorithm}, "
        f"{where.machine}\nframes of {where.mtu} bytes, window {where.window}",
    )  # fmt: skip
    axes.grid(alpha=0.3, linewidth=0.4)
    figure.legend(loc="outside right upper", fontsize="small", frameon=False)
    return _file(figure, suffix)


def throughputs(rates: NicRates, suffix: str) -> bytes:
    """Of a device, a file's bytes: payload that it takes in by packet size, and line rates.

    Args:
        rates: what was measured.
        suffix: one of FORMATS.

    Raises:
        ImportError: matplotlib is not installed: see :func:`picture_format`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 5.5), layout="constrained")
    axes = figure.subplots()
    markers = {"wire": "o", "DMA": "s", "cores": "D"}
    kinds = dict.fromkeys((row.load.line, row.machine.cores) for row in rates.rows)
    for i, (line, cores) in enumerate(kinds):
        rows = [r for r in rates.rows if (r.load.line, r.machine.cores) == (line, cores)]
        rows.sort(key=lambda row: row.payload)
        xs, ys = [row.payload for row in rows], [row.rate / GIGA for row in rows]
        how = {"color": f"C{i % 10}", "zorder": 9 - i % 2}  # curves often coincide
        name = f"{line} Gb/s, {cores} cores"
        axes.plot(xs, ys, "-:"[i % 2], linewidth=1.2 + 1.8 * (i % 2), label=name, **how)
        for row in rows:
            axes.plot(row.payload, row.rate / GIGA, markers[row.bottleneck],
                      markersize=6 + 4 * (i % 2), **how)  # fmt: skip
    for name, marker in markers.items():
        if any(row.bottleneck == name for row in rates.rows):
            axes.plot([], [], marker, color="black", label=f"{name}: busy most")
    _lines(axes, dict.fromkeys(line for line, _ in kinds))
    _ticks(axes, {row.payload for row in rates.rows})
    axes.set(
        xlabel=PAYLOAD.name, ylabel="Gb/s of payload taken in", ylim=(0, None),
        title=f"{rates.what}, {rates.rows[0].load.packets:,} packets a port",
    )  # fmt: skip
    axes.grid(alpha=0.3, linewidth=0.4)
    figure.legend(loc="outside right upper", fontsize="small", frameon=False)
    return _file(figure, suffix)


def _file(figure: Any, suffix: str) -> bytes:
    """The bytes of a figure's file."""
    file = BytesIO()
    figure.savefig(file, format=suffix, dpi=150)
    return file.getvalue()


# ---- what varies ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Axis:
    """Something that rates are drawn over: its name, in titles, and its value of a row."""

    name: str
    title: str
    of: Callable[[OpRate], int]


PAYLOAD = _Axis("payload of a packet, bytes", "packets of {:,} bytes", lambda row: row.payload)
VLEN = _Axis("VLEN, bits", "VLEN {}", lambda row: row.machine.vlen)


def _at_most(rows: Sequence[OpRate], *what: _Axis) -> list[OpRate]:
    """The rows with the largest of something."""
    for one in what:
        most = max(map(one.of, rows))
        rows = [row for row in rows if one.of(row) == most]
    return list(rows)


# ---- which row looks how -------------------------------------------------------------------------
Key = tuple[str, str, str, str]
Point = tuple[float, float]


def _key(row: OpRate) -> Key:
    return row.op, row.element, row.preset, row.entry


def _styles(rows: Sequence[OpRate]) -> dict[Key, dict[str, Any]]:
    """A colour for each image, every second one hollow; a marker for each kind of entry."""
    images = list(dict.fromkeys(_key(row)[:3] for row in rows))
    markers = {"acc": "o", "fan-in": "s", "whole": "D"}
    styles = {}
    for row in rows:
        entry = Entry.of(row.entry)
        kind = "whole" if entry.leaving else "fan-in" if entry.payloads > 1 else "acc"
        number = images.index(_key(row)[:3])
        styles[_key(row)] = {
            "color": f"C{number % 10}",
            "marker": markers[kind],
            "zorder": 5,  # above all text
            "markersize": 9 if number % 2 else 6,
            "markerfacecolor": "none" if number % 2 else None,
            "label": f"{row.op} {row.element} {row.preset}, {row.entry}",
        }
    return styles


# ---- the pictures --------------------------------------------------------------------------------


def _intensity(row: OpRate) -> float:
    """Elements merged for each byte that is loaded or stored."""
    return row.count * row.payloads / (row.scalar_bytes + row.vector_bytes)


def _roofline(
    axes: Any, rows: Sequence[OpRate], rates: OpRates, styles: dict[Key, dict[str, Any]]
) -> list[tuple[Any, tuple[Point, Point]]]:
    """Elements a cycle of one core, by elements a byte, under what the core has.

    Returns:
        Texts that are to be turned along a line, and two points of it.
    """
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    for row in rows:
        axes.plot(_intensity(row), 1 / row.element_cycles, linestyle="", **styles[_key(row)])
    xs = [_intensity(row) for row in rows]
    left, right = min(xs) / 1.8, max(xs) * 2.5
    m, timing = rows[0].machine, rows[0].machine.timing
    ports, sums = {"scalar port": timing.port}, set[int]()
    if timing.word:
        ports["vector memory port"] = timing.word // 8
        sums = {8 * _size(row) for row in rows}
    slanted, top = [], max(1 / row.element_cycles for row in rows)
    for name, width in ports.items():
        start, end = (left, width * left), (right, width * right)
        axes.plot(*zip(start, end, strict=True), color="black", linewidth=1)
        text = _note(axes, f"{name}, {width} bytes a cycle", start, (6, 5),
                     rotation_mode="anchor")  # fmt: skip
        slanted.append((text, (start, end)))
    for bits in sorted(sums):
        a_cycle = timing.word / bits
        top = max(top, a_cycle)
        axes.axhline(a_cycle, color="black", linewidth=1)
        _note(axes, f"vector FP unit, {a_cycle:g} sums of {bits} bits a cycle", (right, a_cycle),
              (-4, 3), ha="right")  # fmt: skip
    for size in sorted({row.payload // row.count for row in rows}):
        for line in rates.lines:
            need = line.total / (8 * size) / (m.cores * m.frequency)
            axes.axhline(need, color="tab:red", linestyle="--", linewidth=0.8)
            _note(axes, f"{line} Gb/s of {8 * size}-bit elements", (right, need), (-4, 3),
                  color="tab:red", ha="right")  # fmt: skip
            top = max(top, need)
    axes.set(
        xscale="log", yscale="log", xlim=(left, right), ylim=(None, top * 2),
        xlabel="elements merged for each byte loaded or stored",
        ylabel="elements merged in a cycle by a core",
        title=", ".join(
            ["roofline", *(what.title.format(what.of(rows[0])) for what in (PAYLOAD, VLEN))]
        ),
    )  # fmt: skip
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FormatStrFormatter("%g"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3, linewidth=0.4)
    return slanted


def _size(row: OpRate) -> int:
    """Bytes of the widest field of an accumulator."""
    return max(fmt.size for fmt in item_of(row.accumulator).formats)


def _note(axes: Any, text: str, at: Point, offset: Point, **how: Any) -> Any:
    return axes.annotate(
        text, at, xytext=offset, textcoords="offset points", fontsize="small",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5}, **how,
    )  # fmt: skip


def _curves(
    axes: Any,
    over: _Axis,
    rows: Sequence[OpRate],
    rates: OpRates,
    styles: dict[Key, dict[str, Any]],
) -> None:
    """Gb/s of all cores over what varies."""
    for key in dict.fromkeys(map(_key, rows)):
        points = sorted((row for row in rows if _key(row) == key), key=over.of)
        xs, ys = map(over.of, points), (row.rate / GIGA for row in points)
        axes.plot(list(xs), list(ys), linewidth=1.2, **styles[key])
    _lines(axes, rates.lines)
    _ticks(axes, set(map(over.of, rows)))
    (other,) = {PAYLOAD, VLEN} - {over}
    axes.set(
        xlabel=over.name, ylabel="Gb/s, all cores", ylim=(0, None),
        title=f"payload taken in, {other.title.format(other.of(rows[0]))}",
    )  # fmt: skip
    axes.grid(alpha=0.3, linewidth=0.4)


def _lines(axes: Any, lines: Iterable[LineRate]) -> None:
    """Line rates, in Gb/s."""
    for line in lines:
        axes.axhline(line.total / GIGA, color="tab:red", linestyle="--", linewidth=0.8)
        _note(axes, f"{line} Gb/s", (1, line.total / GIGA), (-4, 3), ha="right", color="tab:red",
              xycoords=("axes fraction", "data"))  # fmt: skip


def _ticks(axes: Any, values: Iterable[int]) -> None:
    """A logarithmic axis on which these are marked."""
    ticks = sorted(values)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
