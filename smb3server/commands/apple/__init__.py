"""What commands do for Macs alone. The client has asked for it by the create context AAPL (``commands.create.apple``).

Reading order: ``numbers`` (of files) -> ``for_macs`` (entries of folders) -> ``nfs_aces`` (modes).
"""
