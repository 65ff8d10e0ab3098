"""Simulated clients of the failover bench: thousands of them in a process, with as little work of their own as possible."""
