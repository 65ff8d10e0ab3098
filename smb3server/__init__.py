"""SMB 2.0.2 to 3.1.1 file server.

A room is a folder, and a module imports only from its own room and from rooms before it (``tools.check_layers``).

Reading order:

- what the server stands on: ``process`` (what the process asks of its host), ``wire`` (messages),
  ``compression``, ``backends`` (stores), ``crypto`` (signing and encryption), ``access`` (who may do what to a file),
  ``auth`` (who a client is), ``net`` (transports and addresses), ``admin`` (the admin socket), ``settings`` (what can
  be set);
- the server: ``dfs`` (namespaces), ``files`` (what all opens of a file share), ``virtual_disks`` (shared virtual
  disks), ``qos`` (flows and their limits), ``state`` (connections, sessions, opens), ``dispatch`` (one message in, one
  reply out), ``rpc`` (named pipes), ``domain`` (users of a domain), ``commands`` (one section of MS-SMB2 3.3.5 a
  module), ``server`` (accepts connections);
- around it: ``persistence`` (what outlives the process), ``status`` (what administrators see), ``observing`` (metrics,
  traces), ``discovery`` (being found), ``web`` (the web page), ``cluster`` (several nodes);
- the client: ``client`` (shares as folders), ``remote`` (its former name);
- programs: ``config`` (file and command line), ``service`` (puts everything together), ``testing`` (a server for tests
  of others), ``lab`` (judges captures and servers), ``doctor`` (is RDMA used, and why not?), ``cli`` (commands).

``smbdirect`` is below all of them. ``witness``, a package of its own, stands between ``web`` and ``cluster``. To
understand the server, read ``wire.header``, ``dispatch.dispatcher``, ``commands.echo`` and ``commands.read``, then
``state.objects`` and ``files.file``. docs/walks.md follows requests on their way, docs/where-to-put.md says where to
put a change.
"""

__version__ = "0.1.0"
