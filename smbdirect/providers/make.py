"""Make the provider of a fabric by its name."""

from __future__ import annotations

import importlib

from smbdirect.errors import ProviderError
from smbdirect.providers.base import Provider


def make_provider(name: str, iwarp_crc: bool = False) -> Provider:
    """Import and make the provider of a fabric: ``verbs``, ``iwarp`` or ``roce``.

    With ``iwarp_crc``, iWARP requests CRCs of its peers. Raises ``ProviderError`` with a remedy if the fabric cannot be
    used here.
    """
    try:
        module = importlib.import_module(f"smbdirect.providers.{name}.provider")
        options = {"crc": True} if iwarp_crc and name == "iwarp" else {}
        provider: Provider = getattr(module, f"{name.capitalize()}Provider")(**options)
        reason = provider.available()
    except (ImportError, OSError) as error:
        raise ProviderError(str(error)) from error
    if reason is not None:
        raise ProviderError(reason)
    return provider
