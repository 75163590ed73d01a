"""Payloads in other formats than JSON: Avro and Protobuf, with a schema that is given or that a registry has."""
