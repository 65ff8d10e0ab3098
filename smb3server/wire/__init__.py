"""MS-SMB2 and MS-FSCC messages, declared once (``smbdirect.codec``), one module per command family."""
