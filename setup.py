"""Adds to pyproject.toml what it cannot say: the optional modules in C, and the manual pages.

Every C file of the packages whose name begins with an underscore is one. Where there is no compiler, or no header of
Python, the installation goes on without them, and the modules in Python that do the same are used.

Manual pages and completion scripts are made from the tree of commands while the wheel is built.
"""

import sys
import sysconfig
from hashlib import sha256
from pathlib import Path

from setuptools import Extension, setup  # isort: skip
from distutils.command.install_data import install_data  # isort: skip (setuptools brings it)

# One build serves every CPython from 3.11 on. Without the interpreter's lock each version gets its own.
STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")


def extension(source: Path) -> Extension:
    """Return one module. It knows from which text it was built: see smbdirect/native.py."""
    digest = sha256(source.read_bytes()).hexdigest()[:16]
    return Extension(
        ".".join(source.with_suffix("").parts),
        [str(source)],
        define_macros=[("SOURCE", f'"{digest}"'), *([("Py_LIMITED_API", "0x030b0000")] if STABLE else [])],
        extra_compile_args=[
            "-O2",
            "-g0",
            "-fvisibility=hidden",
            "-Wextra",
            "-Wno-missing-field-initializers",
            "-Wno-cast-function-type",
        ],
        py_limited_api=STABLE,
        optional=True,
    )


class InstallManual(install_data):
    """Makes the manual pages and completion scripts, and installs them below the prefix."""

    def run(self) -> None:
        sys.path.insert(0, str(Path(__file__).parent.resolve()))
        from smb3server.cli.itself.manual import write

        made = Path("build", "manual")
        self.data_files = [(str(file.parent), [str(made / file)]) for file in write(made)]
        super().run()


setup(
    cmdclass={"install_data": InstallManual},
    # Something has to be there, or the step is left out.
    data_files=[("share/doc/smb3server", ["LICENSE"])],
    ext_modules=[
        extension(source)
        for package in ("smbdirect", "smb3server", "witness")
        for source in sorted(Path(package).rglob("_*.c"))
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE else {},
)
