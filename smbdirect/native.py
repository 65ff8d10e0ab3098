"""Optional modules in C, each beside a module in Python that does the same and is used where the other is not built.

``setup.py`` builds every C file of the packages whose name begins with an underscore, where there is a compiler. The
module that chooses does it by ``available``. Set the environment variable ``SMB3SERVER_NATIVE`` to 0 to use none.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
from pathlib import Path

MODULES = (
    "smb3server.backends.local._native",
    "smb3server.compression._xca",
    "smbdirect.core._native",
    "smbdirect.providers.iwarp._native",
    "smbdirect.providers.roce._native",
    "smbdirect.rdma._native",
)
"""All of them, for reports."""
SWITCH = "SMB3SERVER_NATIVE"


def digest(source: bytes) -> str:
    """Return what a module in C says of the text it was built from, as its attribute ``SOURCE``."""
    return hashlib.sha256(source).hexdigest()[:16]


def problem(module: str) -> str | None:
    """Return why a module in C is not used. None means that it is."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH} is 0"
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        return "not built" if isinstance(error, ModuleNotFoundError) and error.name == module else str(error)
    except SystemError as error:
        # A free-threaded Python finds a module of the stable ABI, whose objects have another layout.
        return f"built for another Python: {error}"
    # An editable installation has the source beside it. Who updates the source and does not install again gets Python.
    source = Path(str(found.__file__)).with_name(f"{module.rpartition('.')[2]}.c")
    if source.exists() and digest(source.read_bytes()) != getattr(found, "SOURCE", ""):
        return f"built from another {source.name}"
    return None


def available(module: str) -> bool:
    """Return whether a module in C is there, and is to be used."""
    return problem(module) is None


def problems() -> dict[str, str]:
    """Return the modules in C that are not used, with the reasons."""
    return {module: why for module in MODULES if (why := problem(module)) is not None}


def report() -> str:
    """Return which modules in C are used, and why others are not, in one line."""
    found = problems()
    return "modules in C: " + ", ".join(f"{module} ({found.get(module, 'in use')})" for module in MODULES)


if __name__ == "__main__":
    # For tools/setup.sh: the exit status says whether all of them are built.
    raise SystemExit(bool(problems()))
