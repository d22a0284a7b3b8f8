"""PsPIN's published figures: ours are near them, and the guide has the table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nicemu.device.schedule import SCHEDULINGS, Packet, serve
from tests import page, pspin

NEAR = 0.1  # what may differ without a term that explains it


def test_the_guide() -> None:
    """``python -m tests.pspin`` prints the table."""
    shown = page.path("time").read_text()
    assert "\n\n" + "\n".join(pspin.table()) + "\n\n" in shown


def test_all_figures_are_near() -> None:
    figures = pspin.figures()
    assert {figure.kind for figure in figures} == {pspin.INPUT, pspin.PREDICTION}
    for figure in figures:
        assert abs(figure.error) < NEAR, figure
        assert sum(figure.terms.values()) == pytest.approx(figure.ours)
    mean = next(figure for figure in figures if "mean" in figure.name)
    waited = 32 * (mean.published - 108), 32 * (mean.ours - 108)
    assert [round(ns) for ns in waited] == [376, 118]  # as the guide says


def test_the_handler_is_of_the_same_instructions() -> None:
    assert pspin.counted() == pspin.INSTRUCTIONS
    terms = pspin.alone(cold=False).cycles.terms
    assert {name: n for name, n in terms.items() if n} == {"issue": 28, "hazards": 5, "branches": 2}


def test_cold_alone_as_the_core_counts() -> None:
    """Of a packet without bytes nothing is in the way: the same cycles as on a core alone."""
    (service,) = serve([Packet(0, 0, 0)], pspin.handler(), pspin.PSPIN, SCHEDULINGS["pspin"])
    cold = pspin.alone(cold=True).cycles
    assert service.end - service.begin == cold.total
    assert service.terms["fetch"] == cold.terms["fetch"] == 7 * pspin.PSPIN.timing.miss
    assert service.terms["conflicts"] == 0


def test_the_run() -> None:
    services = pspin.run()
    assert {service.cluster for service in services} == {0}
    assert {service.core for service in services[5:]} == {0, 1, 2}
    assert pspin.starts()[: len(pspin.STARTS)] == pspin.STARTS
    assert [service.terms["fetch"] > 0 for service in services[:4]] == [True, True, True, False]
    warm = {service.end - service.begin for service in services if not service.terms["fetch"]}
    assert (min(warm), max(warm)) == (38, 42)


def test_throughput_is_bounded_by_what_is_offered() -> None:
    """But for what the first packet was late."""
    services = pspin.run(packets=500)
    offered = 8 * pspin.BYTES / pspin.APART
    assert offered < pspin.throughput(services) < 1.005 * offered
    late = services[0].latency - services[-1].latency
    assert pspin.throughput(services) == pytest.approx(
        8 * pspin.BYTES * 499 / (499 * pspin.APART - late)
    )


def test_a_private_cache_would_be_colder() -> None:
    """Each core of another cluster fetches all lines once more."""
    spread = replace(SCHEDULINGS["pspin"], home=False)
    packets = [Packet(i * pspin.APART, 0, pspin.BYTES) for i in range(4)]
    services = serve(packets, pspin.handler(), pspin.PSPIN, spread)
    assert [service.cluster for service in services] == [0, 1, 2, 3]
    assert all(service.terms["fetch"] > 40 for service in services)
