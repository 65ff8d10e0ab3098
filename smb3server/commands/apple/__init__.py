"""What commands do for Macs alone. The client has asked for it by the create context AAPL (``create.apple``)."""
