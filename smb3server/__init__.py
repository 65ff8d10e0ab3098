"""SMB 2.0.2 to 3.1.1 file server.

A room is a folder, and a module imports only from its own room and from rooms before it (``tools.check_layers``), in
this order:

1. ``process`` (what the process asks of its host), ``wire`` (messages), ``backends`` (stores), ``crypto`` (signing and
   encryption), ``access`` (who may do what to a file), ``auth`` (who somebody is), ``net`` (transports and addresses);
2. ``settings`` (what can be set), ``files`` (what all opens of a file share), ``state`` (connections, sessions, opens);
3. ``dispatch`` (one message in, one reply out), ``rpc`` (named pipes), ``commands`` (one section of MS-SMB2 3.3.5 a
   module), ``server`` (accepts connections);
4. ``persistence`` (what outlives the process), ``status`` (what is shown to administrators), ``cluster``;
5. ``client`` (a small client), ``config`` (file and command line), ``service`` (puts everything together), ``tools``
   and ``cli`` (commands).

``witness``, a package of its own, stands between ``status`` and ``cluster``; ``smbdirect`` is below all of them.
To understand the server, read ``wire.header``, ``dispatch.dispatcher``, ``commands.echo`` and ``commands.read``, then
``state.objects`` and ``files.file``. docs/architecture.md follows requests on their way and says where to put a change.
"""

__version__ = "0.1.0"
