"""Running a policy's code: one program, one input, hard limits."""
