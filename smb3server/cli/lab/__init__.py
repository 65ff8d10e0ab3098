"""Commands of the lab: captures, conformance, the proxy, the bench, the check of a NIC."""
