"""The Mooncake papers' experiments by name: what they published, the same with our machines and
their policy, and with ours."""
