"""Parses the URL of a cluster's store."""

from __future__ import annotations

from smb3server.net.host_lists import is_loopback

_SCHEMES = {"etcd": "http", "http": "http", "etcds": "https", "https": "https"}


def parse_url(text: str) -> list[str]:
    """Return the base addresses of ``etcd://HOST:PORT,HOST:PORT,...``, or ``etcds://...`` for TLS. Raises
    ``ValueError``."""
    scheme, separator, rest = text.partition("://")
    hosts = [host.strip() for host in rest.split(",")]
    if scheme not in _SCHEMES or not separator or not all(hosts):
        raise ValueError(f"{text}: write etcds://HOST:PORT,HOST:PORT,... (etcd:// without TLS)")
    for host in hosts:
        name, colon, port = host.rpartition(":")
        if not colon or not name or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{host}: write HOST:PORT")
    return [f"{_SCHEMES[scheme]}://{host}" for host in hosts]


def has_tls(endpoints: list[str]) -> bool:
    """Return whether the base addresses use TLS."""
    return endpoints[0].startswith("https:")


def is_exposed(endpoints: list[str]) -> bool:
    """Return whether requests to the base addresses go over a network without TLS."""
    return not has_tls(endpoints) and not all(map(_is_loopback, endpoints))


def _is_loopback(endpoint: str) -> bool:
    return is_loopback(endpoint.partition("://")[2].rpartition(":")[0].strip("[]"))
