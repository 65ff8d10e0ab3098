"""Compare which accesses this server and Samba allow, by the same operations on both."""
