"""Divides a network over ranks: plan, a rank's shard, buckets of gradients, parameters gathered on rank 0."""
