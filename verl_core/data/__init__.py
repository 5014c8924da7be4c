"""Prompts: read, tokenized once, served in an order that depends on the seed alone."""
