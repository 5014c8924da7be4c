"""`make simulate`: the trainer under a virtual clock, beside a closed form and the real loop; see docs/simulate.md."""
