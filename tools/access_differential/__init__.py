"""This server and Samba, judged by the same operations: who allows what."""
