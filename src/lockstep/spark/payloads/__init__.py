"""Payloads in formats other than JSON: Avro and Protobuf, with a given schema or one from a registry."""
