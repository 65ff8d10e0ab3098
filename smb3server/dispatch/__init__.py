"""One message in, one reply out (MS-SMB2 3.3.5.2, 3.3.4.1).

Read ``dispatcher`` first: what becomes of a message. ``request`` has what handlers get and give, ``chain`` the message
that is being worked on, ``checks`` what is the same for all commands, ``lookup`` how a command finds its open, and
``reply`` how replies are made and sent.

``pending`` and ``waiting`` are about requests that take time. The first keeps them for interim replies and CANCEL; the
second says what they wait for and how they go on. ``parking`` makes whole messages wait.

The others serve some commands: ``data_channel`` and ``read_size`` READ and WRITE; ``long_work``, ``reserving`` and
``stable_storage`` what changes files. ``errno_status`` has the status of each errno, ``watchdog`` names slow requests.
"""
