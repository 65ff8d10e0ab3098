"""SERVER_TO_CLIENT_NOTIFICATION: the server says that a session has ended. [MS-SMB2 2.2.44]"""

from typing import Annotated, NamedTuple

from smb3server.wire.fields import Message
from smbdirect.fields import Int16ul, Int32ul

SERVER_TO_CLIENT_NOTIFICATION = 0x13
"""Its Command. No request has it, so it is not in ``header.Command``. [MS-SMB2 2.2.1]"""
SESSION_CLOSED = 0
"""SmbNotifySessionClosed. [MS-SMB2 2.2.44.1]"""


class SessionClosed(NamedTuple):
    """A notification with its SMB2_NOTIFY_SESSION_CLOSED. [MS-SMB2 2.2.44.1, 2.2.44.2]"""

    structure_size: Annotated[int, Int16ul] = 4
    reserved: Annotated[int, Int16ul] = 0
    notification_type: Annotated[int, Int32ul] = SESSION_CLOSED
    reserved2: Annotated[int, Int32ul] = 0


SESSION_CLOSED_NOTIFICATION = Message(SessionClosed)
