"""Lockstep beside other queues on this machine: the same messages, the same phases, each at its best setting."""
