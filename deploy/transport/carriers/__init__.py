"""Chooses gRPC or Flower for a party.

Imports transport.grpc and transport.flower.
"""
