"""Files that appear whole, under their own name, or not at all.

Owns: the temporary file beside the target, and how a file is refused in one line.  What is written
belongs to the modules of each kind of file (gradients, pcap).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, Self

from nicemu.errors import FileFormatError

__all__ = ["WholeFile", "refuse", "spare"]


def refuse(path: Path, what: str, remedy: str) -> NoReturn:
    """Raise the FileFormatError that says what is wrong with a file, and what to do."""
    raise FileFormatError(f"{path}: {what}: {remedy}")


def spare(inputs: Iterable[Path], path: Path) -> None:
    """See to it that what is to be written is none of the inputs.

    Raises:
        FileFormatError: it is one, under this or another name.
    """
    for one in inputs:
        try:
            same = path.samefile(one)
        except (OSError, ValueError):  # one of them is no file
            same = False
        if same:
            refuse(path, "is also an input", "name another output")


class WholeFile:
    """A file to be written: opening it proves that its place can be written, before any long work.

    As a context manager it leaves nothing behind but what :meth:`put` has put in place.

    Attributes:
        path: its name, as given.
    """

    def __init__(self, path: str | Path) -> None:
        """Reserve a temporary file beside ``path``.

        Raises:
            FileFormatError: the path is a directory or a device, or it cannot be written.
        """
        self.path = Path(path)
        try:
            self._target = self.path.resolve()  # of a link, the file behind it
            if self._target.exists() and not (  # no directory, and no device or pipe either
                self._target.is_file() and os.access(self._target, os.W_OK)
            ):
                refuse(self.path, "exists and cannot be replaced", "name another output")
            self._part = self._target.with_name(f".{self._target.name}.{os.getpid()}.part")
            self._part.touch(exist_ok=False)
            self._mode = self._part.stat().st_mode & 0o777  # as the umask has it
        except (OSError, ValueError, RuntimeError) as e:  # the last: a link to itself
            if isinstance(e, FileFormatError):
                raise
            self._unwritable(e)

    def _unwritable(self, error: Exception) -> NoReturn:
        why = getattr(error, "strerror", None) or error
        refuse(self.path, f"cannot be written: {why}", "name a writable place")

    def __enter__(self) -> Self:
        """The file itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove what was reserved and not put in place."""
        self._part.unlink(missing_ok=True)

    @contextmanager
    def put(self) -> Iterator[Path]:
        """The temporary file, to be written in the block; then it gets its name.

        Raises:
            FileFormatError: an OSError in the block, or the file cannot be put in place.
        """
        try:
            yield self._part
            self._part.chmod(self._mode)  # some writers let only the owner read
            self._part.replace(self._target)
        except OSError as e:
            self._unwritable(e)
