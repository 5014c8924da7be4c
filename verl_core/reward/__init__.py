"""Rewards: verifiers by data source, one sample scored safely, many samples scored by processes that may be killed."""
