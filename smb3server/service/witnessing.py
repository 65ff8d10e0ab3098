"""The Witness service of a server, as configured. The module loads impacket, and is imported only if it is
configured.
"""

from __future__ import annotations

from collections.abc import Sequence

from smb3server.config.error import ConfigError
from smb3server.server.server import Server
from smb3server.settings.witness import WitnessConfig
from smb3server.state.share import ShareType
from witness.cluster import ClusterEvents
from witness.setup import Witness


async def start_witness(
    config: WitnessConfig, hosts: Sequence[str], server: Server, events: ClusterEvents | None
) -> Witness:
    """Start the Witness service of ``server`` on ``hosts``, unless its configuration names other addresses.

    ``events`` None means that only the administrator causes notifications. Raises ``ConfigError``.
    """
    witness = Witness(
        config,
        config.listen or hosts,
        server.settings.server_name,
        server.new_rpc_acceptor,
        server.unauthenticated,
        lambda: [share.name for share in server.share_list.values() if share.type == ShareType.DISK],
        lambda: [entry.address for entry in server.interfaces.interfaces],
        events,
        server.admits,
        server.events,
    )
    try:
        await witness.start()
    except OSError as error:
        await witness.stop()
        raise ConfigError(f"[witness]: cannot listen on {error.filename}: {error.strerror}") from error
    return witness
