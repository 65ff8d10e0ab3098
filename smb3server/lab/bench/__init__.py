"""``smb3server bench``: measure our server and Samba on the same machine, in turns, with the same client.

`cases` names the cases, `servers` starts the two servers, `client` drives one of them for some seconds: over TCP with
labgen.c, over SMB Direct with `rdma_client`, whose requests `load` makes. `accounting` reads processor time from /proc,
`figures` turns the rounds into medians and verdicts, `interpreter` finds out which Python our server runs on, `page`
writes the table. docs/performance.md says what the columns mean.
"""
