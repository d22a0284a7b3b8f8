"""Wireshark's programs as readers of what is written here; tests that need one skip without it."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def wireshark(program: str, *arguments: object) -> str:
    """Standard output of ``tshark`` or ``editcap``."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} (Wireshark) is not installed")
    # sanitizers that are loaded into this process are not for that one
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    command = [path, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=120, env=environment
    )
    return done.stdout
