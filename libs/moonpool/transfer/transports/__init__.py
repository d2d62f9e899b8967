"""How bytes get from one process to another: `shm` (same host) and `tcp` (everywhere).

Only `moonpool.transfer.engine` comes in here. A transport knows slices, grants and descriptors;
it never knows blocks, requests or models.
"""
