"""Teachers: servers that never sample and never change, and say how probable given tokens are to them."""
