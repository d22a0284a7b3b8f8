"""The slot protocol's model (slot.pml) under spin: nothing is wrong in any state, and each seeded
mistake is found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

MODEL = Path(__file__).with_name("slot.pml")
COMPILER = os.environ.get("CC", "cc").split()
#: The sanitizers of a suite that runs under them are not for spin.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}

if not shutil.which("spin") or not shutil.which(COMPILER[0]):
    pytest.skip("needs spin and a C compiler", allow_module_level=True)


class Search(NamedTuple):
    violated: str  # text of the assertion, or ""
    errors: int
    states: int
    report: str


def search(where: Path, mistake: str = "") -> Search:
    """Search the model with that mistake in it until something is violated, or to the end."""

    def run(*command: str) -> str:
        done = subprocess.run(
            command,
            cwd=where,
            check=True,
            capture_output=True,
            text=True,
            timeout=300,
            env=ENVIRONMENT,
        )
        return done.stdout

    run("spin", *([f"-D{mistake}"] if mistake else []), "-a", str(MODEL))
    run(*COMPILER, "-O1", "-w", "-DSAFETY", "-o", "pan", "pan.c")
    report = run("./pan", "-w18")
    assert "max search depth too small" not in report
    violated = re.search(r"^pan:\d+: (.*) \(at depth", report, re.M)
    errors = re.search(r"errors: (\d+)", report)
    states = re.search(r"^ *(\d+) states, stored", report, re.M)
    assert errors and states, report
    return Search(violated[1] if violated else "", int(errors[1]), int(states[1]), report)


def test_nothing_is_wrong_in_any_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = search(tmp_path)
    with capsys.disabled():
        print(f"\nslot.pml: {found.states} states, all there are; {found.errors} errors")
    assert not found.violated and found.errors == 0
    assert found.states > 100_000
    # every statement of the model was executed, all but the ends of processes that never end
    unreached = re.findall(r"^\tslot\.pml:\d+, state \d+, (.*)$", found.report, re.M)
    assert set(unreached) <= {'"-end-"'}


#: mistake -> part of the assertion that tells: a wrong partial sum or result, a version reused too
#: early, a result of another round, a host that has no end
MISTAKES = {
    "NO_BITMAP": ".result==",
    "ONE_BIT": "turn[i]>",
    "CROSS_CLEAR": ".result==",
    "NO_DOWN_ROUND": "==turn[node]",
    "STALE_ADDED": ".result==",
    "STALE_RESULT": ".result==",
    "EARLY": ".sum==",
    "HASTY": "turn[i]>",
    "FORGETFUL": "turn[k]>=",
    "DEAF_LEAF": "turn[k]>=",
    "DEAF": "turn[k]>=",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found(
    mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = search(tmp_path, mistake)
    with capsys.disabled():
        print(f"\nslot.pml with {mistake}: found after {found.states} states")
    assert found.errors == 1
    assert MISTAKES[mistake] in found.violated


def test_mistakes_are_those_of_the_model() -> None:
    listed = re.findall(r"^ \*   ([A-Z_]+) {2,}", MODEL.read_text(), re.M)
    assert listed == list(MISTAKES)
