"""`make bench-modes`: the three modes on equal simulated devices, each beside the bound that its own draws allow.

Only devices are simulated: the trainer, the stages, Ray, TransferQueue, the servers and the clients are the product's.
A simulated device is one server (rollout) or one unit of training speed: `conditions` holds the numbers, `paced` the
training side, the scripted engine the rollout side.
"""
