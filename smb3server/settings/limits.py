"""How much clients may use: the section [limits] of the configuration, and the same settings of the server."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from smb3server.settings.declaring import Effect, Fraction, NotNegative, Positive, Seconds, Section, about

SMALLEST_IO = 1 << 16
"""Least value of MaxTransactSize, MaxReadSize and MaxWriteSize, in bytes. [MS-SMB2 3.3.5.4]"""
LARGEST_MESSAGE = (1 << 24) - 1
"""Largest direct TCP message in bytes: its length field has three bytes. [MS-SMB2 2.1]"""
MESSAGE_OVERHEAD = 1 << 16
"""Bytes of a message besides the data of a READ or WRITE: headers, transforms, other requests of its compound."""
LARGEST_IO = LARGEST_MESSAGE - MESSAGE_OVERHEAD

IoSize = Annotated[int, Meta(ge=SMALLEST_IO, le=LARGEST_IO)]


class Limits(Section, kw_only=True):
    """How much clients may use, and how long they may take. Sizes are in bytes, times in seconds.

    Beyond a limit on opens, locks and watched folders the status is INSUFFICIENT_RESOURCES. What a client already has
    beyond a limit that is lowered stays.
    """

    max_io_size: Annotated[IoSize, about("largest READ, WRITE and transaction; 65536 to 16711679", Effect.RESTART)] = (
        8 << 20
    )
    max_credits: Annotated[Positive, about("credits per connection", Effect.NEW_CONNECTIONS)] = 8192
    failed_logon_delay: Annotated[Seconds, about("seconds before the answer to a failed logon", Effect.AT_ONCE)] = 0.25
    failed_logons_per_account: Annotated[
        Positive,
        about(
            "failed logons to an account before its logons are slowed; see [security](security.md#before-a-logon)",
            Effect.AT_ONCE,
            example=5,
        ),
    ] = 10
    failed_logons_per_address: Annotated[
        Positive, about("the same for an IPv4 address or IPv6 /64", Effect.AT_ONCE, example=50)
    ] = 30
    lockout_failures: Annotated[
        NotNegative, about("failed logons in a row that lock an account out; 0: none is", Effect.AT_ONCE, example=100)
    ] = 0
    lockout_time: Annotated[
        Seconds, about("seconds for which an account is locked out", Effect.AT_ONCE, example=1800.0)
    ] = 900.0
    authentication_timeout: Annotated[
        Seconds, about("seconds for a connection to log on, and for one logon", Effect.NEW_CONNECTIONS)
    ] = 45.0
    max_opens: Annotated[Positive, about("opens per session", Effect.AT_ONCE)] = 16384
    max_connections: Annotated[
        Positive, about("connections of all clients that have logged on", Effect.AT_ONCE, example=500)
    ] = 4096
    max_user_share: Annotated[
        Fraction,
        about(
            "share of the connections and opens not used by other users that one user may have; up to 1", Effect.AT_ONCE
        ),
    ] = 0.5
    max_sessions_per_user: Annotated[Positive, about("sessions over all connections", Effect.AT_ONCE)] = 2048
    max_reserved_per_user: Annotated[
        Positive, about("bytes reserved beyond the ends of open files; see `strict_allocate`", Effect.AT_ONCE)
    ] = 256 << 20
    max_unauthenticated: Annotated[
        Positive,
        about(
            "connections without a session, of all addresses and services; beyond that, the address with the most "
            "loses its oldest one",
            Effect.AT_ONCE,
            example=200,
        ),
    ] = 4096
    max_unauthenticated_per_address: Annotated[
        Positive,
        about(
            "the same for one IPv4 address or IPv6 /64, counting connections that have sent something",
            Effect.AT_ONCE,
            example=50,
        ),
    ] = 512
    idle_session_timeout: Annotated[
        Seconds,
        about(
            "seconds after which the server ends a session without a tree connect, a session with neither an open "
            "file nor a message, and a connection whose users have logged off; 0: never",
            Effect.AT_ONCE,
            example=600.0,
        ),
    ] = 900.0
