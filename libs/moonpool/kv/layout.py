"""How one block lies in memory: `[layer][k|v][token][kv_head][head_dim]`.

Each layer of a block is one contiguous range, so that moving a block layer by layer is one
range per layer, and a checksum per layer proves a layer before attention reads it.
"""

from dataclasses import dataclass

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Shape and size of a block of one model shard. ValueError on an impossible shape."""

    layers: int  # > 0
    kv_heads: int  # > 0
    head_dim: int  # > 0
    block_tokens: int  # a power of two in 16..512
    dtype: str  # a key of DTYPE_BYTES

    def __post_init__(self) -> None:
        if min(self.layers, self.kv_heads, self.head_dim) < 1:
            raise ValueError(f"layers, kv_heads and head_dim must be positive: {self}")
        if not 16 <= self.block_tokens <= 512 or self.block_tokens & (self.block_tokens - 1):
            raise ValueError(f"block_tokens {self.block_tokens} is no power of two in 16..512")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"dtype {self.dtype!r} is none of {sorted(DTYPE_BYTES)}")

    @property
    def layer_bytes(self) -> int:
        """K and V of one layer of one block."""
        return 2 * self.block_tokens * self.kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]

    @property
    def block_bytes(self) -> int:
        return self.layers * self.layer_bytes

    @property
    def token_bytes(self) -> int:
        """KV of one token over all layers."""
        return self.block_bytes // self.block_tokens

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """`[layers, 2, block_tokens, kv_heads, head_dim]`"""
        return (self.layers, 2, self.block_tokens, self.kv_heads, self.head_dim)

    def layer_offset(self, block: int, layer: int) -> int:
        """Byte offset of a layer of block number `block` in an array of blocks."""
        return block * self.block_bytes + layer * self.layer_bytes

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens, a partial tail included."""
        return -(-tokens // self.block_tokens)
