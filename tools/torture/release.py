"""The releases of smbtorture that run here, and what is kept about each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
_EXPECTED = ROOT / "tests" / "conformance"


@dataclass(frozen=True, slots=True)
class Release:
    """A release of Samba, with its smbtorture and its smbd."""

    version: str
    command: str
    """Runs its smbtorture."""
    folder: Path
    """Has Samba's own results (baseline.tsv), and why tests do not pass here (reasons.toml): that of the newer release
    only what differs from the older one."""
    expected: Path
    """The results that this server is expected to have."""
    page: Path
    specials: tuple[Path, ...]
    """Files with the shares and options that some tests need, the first that counts first."""
    cites: bool
    """A test that Samba passes and this server does not needs a reason that names a section."""

    @property
    def baseline(self) -> Path:
        return self.folder / "baseline.tsv"

    @property
    def reasons(self) -> Path:
        return self.folder / "reasons.toml"


DISTRIBUTION = Release(
    version="4.17",
    command="make torture",
    folder=HERE,
    expected=_EXPECTED / "smbtorture.tsv",
    page=ROOT / "docs" / "smbtorture.md",
    specials=(HERE / "special.toml",),
    cites=False,
)
"""That of Debian 12, installed on this machine."""
NEWEST = Release(
    version="4.25",
    command="make torture-newest",
    folder=HERE / "newest",
    expected=_EXPECTED / "newest-smbtorture.tsv",
    page=ROOT / "docs" / "smbtorture-newest.md",
    specials=(HERE / "newest" / "special.toml", HERE / "special.toml"),
    cites=True,
)
"""That of Debian's development branch, in a folder of its own (``samba_root``)."""
