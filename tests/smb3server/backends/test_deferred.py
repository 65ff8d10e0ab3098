"""A handle that is not open yet: what opens the file behind it, and what does not."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest

from smb3server.backends.base import Handle, OpenRequest, Remembered
from smb3server.backends.deferred import DeferredHandle
from smb3server.backends.local.backend import LocalBackend

OPENING = sorted(
    name for name, member in vars(Handle).items() if inspect.isfunction(member) and name not in ("__init__", "close")
)


def deferred(backend: LocalBackend) -> DeferredHandle:
    remembered = backend.remember(OpenRequest(("f",)))
    if remembered is None:
        pytest.skip("this file system knows no file by its number")
    return DeferredHandle(remembered, lambda found: found.open(OpenRequest(("f",), read=True)))


def test_identity_opens_nothing(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"text")
    backend = LocalBackend(tmp_path)
    opens = backend.opens
    handle = deferred(backend)
    assert (handle.path, handle.stream, handle.created, handle.gone) == (("f",), "", False, False)
    handle.close()
    assert backend.opens == opens
    assert handle.info().end_of_file == 4
    assert (backend.opens, handle.key) == (opens + 1, handle.info().key)
    handle.close()
    backend.close()


@pytest.mark.parametrize("name", OPENING)
def test_every_method_is_that_of_the_open_file(name: str) -> None:
    there = create_autospec(Handle, instance=True)
    opened: list[Remembered] = []

    def open_now(remembered: Remembered) -> Handle:
        opened.append(remembered)
        return there  # type: ignore[no-any-return]

    handle = DeferredHandle(Mock(Remembered, key=(1, 2), kind=0), open_now)
    method = getattr(handle, name)
    given: dict[str, Any] = {parameter: object() for parameter in inspect.signature(method).parameters}
    answer = method(**given)
    assert len(opened) == 1
    called = getattr(there, name)
    called.assert_called_once()
    assert inspect.signature(method).bind(*called.call_args.args, **called.call_args.kwargs).arguments == given
    assert answer is called.return_value or answer is None
    assert (
        list(inspect.signature(method).parameters.items())
        == list(inspect.signature(getattr(Handle, name)).parameters.items())[1:]
    )


def test_ten_thousand_of_them_have_no_dictionaries() -> None:
    assert not hasattr(DeferredHandle(Mock(Remembered, key=(1, 2), kind=0), Mock()), "__dict__")
