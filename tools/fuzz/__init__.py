"""A fuzzer that knows the protocol's state: it mutates valid sequences before they are signed or encrypted."""
