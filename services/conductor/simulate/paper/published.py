"""What the papers published: numbers from text and tables, or read off the figures (about 1 %)."""

# FAST'25, figure 5: mean time to first token, conversation trace, 16 nodes, split not given
FIG5_TTFT_S = {"random": 19.65, "load-balance": 5.27, "local": 3.58, "global": 3.07}

# figure 8: mean prefill time on the GPU in seconds: Mooncake, vLLM, vLLM with prefix caching
FIG8_GPU_S = {
    "conversation": (1.06, 1.66, 1.52),
    "toolagent": (0.53, 1.12, 0.74),
    "synthetic": (0.73, 2.02, 1.90),
}

# figure 9: share of tokens found in one pooled LRU cache, by its size in tokens
FIG9_TOKENS = (100_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000, 50_000_000)
FIG9_HITS = {
    "conversation": (0.073, 0.087, 0.120, 0.215, 0.300, 0.398),
    "toolagent": (0.363, 0.387, 0.414, 0.484, 0.544, 0.595),
    "synthetic": (0.012, 0.146, 0.235, 0.381, 0.545, 0.658),
}

# figure 10, ten prefills of 3 M tokens: share of tokens found (local, global), GPU seconds
FIG10_HITS = {
    "conversation": (0.169, 0.375),
    "toolagent": (0.420, 0.581),
    "synthetic": (0.264, 0.622),
}
FIG10_GPU_S = {
    "conversation": (1.38, 1.05),
    "toolagent": (0.70, 0.52),
    "synthetic": (1.50, 0.78),
}

# figure 15: 16 nodes, synthetic trace, promises of 10 s and 100 ms, by number of prefills
FIG15_PREFILLS = (5, 6, 7, 8, 9, 10, 11)
FIG15_EFFECTIVE = (0.777, 0.972, 0.991, 0.990, 0.992, 0.984, 0.861)
FIG15_TTFT_S = (5.74, 1.71, 1.30, 1.19, 1.12, 1.11, 1.14)
FIG15_TBT_MS = (31.5, 31.8, 32.9, 35.0, 38.3, 44.2, 58.3)

# arXiv version, table 3: 8 prefills, 8 decodes, 23,000 requests at twice their speed
REJECTED = {"baseline": 4183, "early": 3771, "predicted": 3589}
REJECTED_OF = 23_000
