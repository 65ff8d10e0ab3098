"""fsctl."""
