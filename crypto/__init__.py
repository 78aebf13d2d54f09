"""The cryptographic core: no torch, no grpc, no files, no clock; everything here is sans-I/O."""
