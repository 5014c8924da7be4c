"""Measurements that `make` targets run; each writes its JSON afresh, with its goals."""
