"""Pages of lists on the wire."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

Limit = Annotated[int, Meta(ge=1, le=1_000_000)]
"""Number of items. The setting `page_items_max` may allow fewer."""
Offset = Annotated[int, Meta(ge=0, le=2**62)]
"""Number of items to skip."""


class Pagination(Struct, omit_defaults=True):
    limit: int
    offset: int
    total: int | UnsetType | None = UNSET
    """Null is unknown: some queue is large and was not counted yet."""
