"""The folders of one module below the output folder, and putting a finished one in the place of the last.

out/NAME/                    the module that programs import
out/.fagen/locks/NAME.lock   held by the one builder of NAME
out/.fagen/staging/NAME-*/   the private folder of a build; left over only if its builder was killed
out/.fagen/old/NAME          the last good module, for the moment of a swap that cannot be done in one step
out/.fagen/failed/NAME/      the source a compiler refused, to open and to compile again
out/.fagen/reports/NAME.json what the last build did: seconds and peak memory per unit
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..errors import LockError, Problem

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@dataclass(frozen=True)
class Places:
    """Where everything of one module is. All methods but the properties need the module's lock."""

    out: Path
    name: str

    @property
    def module(self) -> Path:
        """The published folder."""
        return self.out / self.name

    @property
    def lock(self) -> Path:
        """The lock file."""
        return self.out / ".fagen" / "locks" / f"{self.name}.lock"

    @property
    def failed(self) -> Path:
        """Where a source that did not compile is kept."""
        return self.out / ".fagen" / "failed" / self.name

    @property
    def report(self) -> Path:
        """The last build's report."""
        return self.out / ".fagen" / "reports" / f"{self.name}.json"

    @property
    def _old(self) -> Path:
        return self.out / ".fagen" / "old" / self.name

    @property
    def _staging(self) -> Path:
        return self.out / ".fagen" / "staging"

    def recover(self) -> None:
        """Mend what a killed builder left: put the last good module back, delete private folders."""
        if self._old.exists():
            if not self.module.exists():
                os.rename(self._old, self.module)
            else:
                shutil.rmtree(self._old, ignore_errors=True)
        for folder in self._staging.glob(f"{self.name}-*"):
            # A name may begin with another's: `a-b` cannot be (names are identifiers), so the last dash splits.
            if folder.name.rpartition("-")[0] == self.name:
                shutil.rmtree(folder, ignore_errors=True)

    def new_staging(self) -> Path:
        """A fresh private folder, on the file system of the published one."""
        try:
            self._staging.mkdir(parents=True, exist_ok=True)
            # The random part has no dash, so that the name can be split at the last one.
            folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=self._staging))
        except OSError as error:
            raise LockError(
                Problem(f"the output folder {self.out} cannot be written: {error.strerror}", hint="see --out")
            ) from None
        return folder

    def publish(self, folder: Path) -> None:
        """Make ``folder`` the published module. At no moment is there none, if there was one before."""
        if not self.module.exists() and not self.module.is_symlink():
            os.rename(folder, self.module)
        elif _exchange(folder, self.module):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            self._publish_in_two_steps(folder)

    def _publish_in_two_steps(self, folder: Path) -> None:
        # Between the two renames there is no module; if this process dies there, recover() undoes the first.
        self._old.parent.mkdir(parents=True, exist_ok=True)
        os.rename(self.module, self._old)
        try:
            os.rename(folder, self.module)
        except BaseException:
            os.rename(self._old, self.module)
            raise
        shutil.rmtree(self._old, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two paths in one step. False if the C library or the file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), ctypes.c_uint(_RENAME_EXCHANGE)) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM):
        return False
    raise OSError(code, os.strerror(code), str(second))
