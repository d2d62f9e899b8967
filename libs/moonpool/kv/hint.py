"""What an owner of blocks may know of them beyond their keys, for whoever decides which go."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockHint:
    """Most eviction policies ignore it; all work without."""

    run_blocks: int = 0  # blocks of the prompt that uses them; 0: unknown
    partial: bool = False  # a prompt ended inside the block: only the very same prompt reuses it


NO_HINT = BlockHint()
