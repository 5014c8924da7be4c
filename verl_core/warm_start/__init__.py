"""A tiny policy made here and brought to the point where reinforcement learning can see a signal.

Layer note: apart from `engine`, this is the one package that trains, so it too imports transformers' models and
torch. It knows nothing of ray, vllm or transfer_queue; it runs once, before any of them starts.
"""
