"""Spark's type `variant`: JSON of any shape, in a binary form that Spark searches without parsing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

Finish = Callable[[Any], Any]


def is_variant(kind: pa.DataType) -> bool:
    # For Arrow, Spark's variant is a struct; only this metadata identifies it.
    return pa.types.is_struct(kind) and any(b"variant" in (field.metadata or {}) for field in kind)


def variant_finish(kind: pa.DataType) -> Finish | None:
    """A function that converts the JSON texts left by a decoder to variants; None if the type has none."""
    if is_variant(kind):
        return _variant
    if pa.types.is_struct(kind):
        return _of_struct({field.name: variant_finish(field.type) for field in kind})
    if pa.types.is_list(kind):
        finish = variant_finish(kind.value_type)
        return None if finish is None else _of_list(finish)
    if pa.types.is_map(kind):
        finish = variant_finish(kind.item_type)
        return None if finish is None else _of_map(finish)
    return None


def _of_struct(fields: dict[str, Finish | None]) -> Finish | None:
    some = {name: finish for name, finish in fields.items() if finish is not None}
    if not some:
        return None

    def finish(value: Any) -> Any:
        if value is None:
            return None
        return {**value, **{name: one(value[name]) for name, one in some.items() if name in value}}

    return finish


def _of_list(finish: Finish) -> Finish:
    return lambda values: None if values is None else [finish(one) for one in values]


def _of_map(finish: Finish) -> Finish:
    return lambda values: None if values is None else {name: finish(one) for name, one in values.items()}


def _variant(raw: Any) -> Any:
    from pyspark.sql.variant_utils import VariantUtils

    if raw is None:
        return None
    try:
        value, metadata = VariantUtils.parse_json(bytes(raw).decode())
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise msgspec.ValidationError(f"it does not become a variant: {error}") from error
    return {"value": value, "metadata": metadata}
