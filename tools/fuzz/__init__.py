"""A fuzzer that knows the protocol's state: valid sequences, mutated before they are signed or encrypted."""
