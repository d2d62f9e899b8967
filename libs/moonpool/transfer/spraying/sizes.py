"""How finely a transfer is cut when several ways carry it. Pure."""

SLICE_BYTES_MIN = 64 << 10
SLICE_BYTES_MAX = 8 << 20
BACKGROUND_SLICE_BYTES = 2 << 20  # nothing urgent overtakes a slice that was begun
SLICES_PER_WAY = 32  # what the ways end with is then at most a thirty-second part apart


def slice_bytes(payload_bytes: int, ways: int, worth_bytes: float = 0.0) -> int:
    """The smallest slices for small transfers, growing with the transfer; all there is for one
    way. `worth_bytes`: smaller slices cost more than they bring, since each has its price."""
    if ways <= 1:
        return SLICE_BYTES_MAX
    wanted = max(payload_bytes // (ways * SLICES_PER_WAY), int(worth_bytes))
    whole = wanted // SLICE_BYTES_MIN * SLICE_BYTES_MIN
    return min(max(whole, SLICE_BYTES_MIN), SLICE_BYTES_MAX)
