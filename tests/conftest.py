"""What holds for the whole run of the tests.

SIGINT: a job that a shell puts in the background ignores it, and so does every process it starts.
The tests that interrupt a command need the default again, wherever pytest was started.
"""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
