"""smbtorture (Samba's protocol test suite) against this server: runner, comparison with Samba itself, report."""
