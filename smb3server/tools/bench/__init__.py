"""``smb3server bench``: our server and Samba on the same machine, in turns, under the same client.

`cases` names what is measured, `servers` starts the two servers, `client` drives one of them for some seconds,
`accounting` reads processor time from /proc, `figures` turns the rounds into medians and verdicts, `interpreter` finds
out what Python ours runs on, `page` writes the table. docs/performance.md says what the columns mean.
"""
