"""Millions of records in little memory: columns of numbers instead of objects. Pure.

Used by shelves for what lies on them. It knows nothing of tiers, moves or time.
"""

from services.store.packed.order import Order
from services.store.packed.rows import Rows
from services.store.packed.table import Table

__all__ = ["Order", "Rows", "Table"]
