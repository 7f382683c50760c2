"""Checking a run directory against itself: plan, ledger, every byte of every shard."""
