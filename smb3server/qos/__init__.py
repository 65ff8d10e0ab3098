"""Storage quality of service: flows of reads and writes, what was measured of them, and their limits. [MS-SQOS]

Belongs here: flows, rates and limits. Not here: how a request is delayed (``dispatch.flow_limits``), and where policies
come from (``settings``).

Reading order: ``rates`` (how long an operation has to wait, how many there were) -> ``flows`` (a flow and their table).
"""
