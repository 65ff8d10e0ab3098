"""Judge captures of SMB Direct and SMB by the rules of their specifications.

Everything is read once, frame by frame, and handed upwards.

Reading order:

- files and packets: ``capture`` (pcap, pcapng, frames in order) -> ``packets`` (links, IP, TCP, InfiniBand packets);
- what is judged: ``rules`` (the table) -> ``verdicts`` (kept, broken, not judged);
- streams: ``tcp`` (reassembly, with holes where the capture has any) -> ``byte_stream``;
- fabrics: ``rdma`` (whole RDMA messages) -> ``iwarp``; ``ib_transport`` -> ``infiniband`` (CM, queue pairs, RoCE);
- MS-SMBD: ``smbdirect``, and ``memory`` (what requests offer to RDMA); for TCP ``direct_tcp``;
- MS-SMB2: ``smb2`` (headers) -> ``fields``, ``entries`` -> ``form`` (a message by itself) -> ``credits``, ``dialect``,
  ``sessions``, ``given_secrets``, ``logons`` (keys), ``protection``, ``compressed``, ``transforms``, ``effects``,
  ``answers`` -> ``exchange`` (requests and responses) -> ``records`` (a line each);
- all together: ``connection`` -> ``judge`` -> ``filters``, ``summary`` -> ``text_report``, ``json_report`` ->
  ``command``;
- beside it: ``replay`` (drives this project's own codecs and state machines by a capture), ``rewrite`` (writes
  captures).

The modules are written from the specifications and share no code with what they judge, but for three things: the
algorithms of ``smb3server.crypto`` and of ``smb3server.compression``, the messages of NTLM, and the chain of RDMA
transforms.
"""
