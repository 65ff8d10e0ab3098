"""``python -m tools.bench.report`` (``make bench``): the whole comparison, with plots, for docs/performance.md.

`plan` says what is measured and in which order, `run` measures it, `plots` draws, `page` writes. Servers, clients and
figures are those of `smb3server bench`; over SMB Direct, `smb3server.lab.bench.rdma_client` makes the load.
"""
