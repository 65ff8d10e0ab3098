"""MS-SWN, the Service Witness Protocol."""
