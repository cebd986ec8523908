"""Clients and values of the protocol, made with kio and not with `insync.wire`."""
