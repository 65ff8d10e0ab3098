"""Named pipes and DCE/RPC services on them."""
