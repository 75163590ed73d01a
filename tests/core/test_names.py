"""What may be a name or a label."""

from __future__ import annotations

import pytest

from lockstep.core.names import check_label, check_name, namespace_and_task, storable
from lockstep.errors import InvalidName, InvalidRequest


@pytest.mark.parametrize("name", ["a", "a" * 255, "customer-42", "Größe/π 😀", "__QUEUE_MODE__", "a.b.c", " "])
def test_names(name: str) -> None:
    assert check_name(name, what="queue") == name


@pytest.mark.parametrize(
    "name",
    ["", "a" * 256, "a\x00b", "a\nb", "\x7f", "\x85", "\u2028", "\ud800", None, 5, b"a", ["a"]],
)
def test_bad_names_are_named(name: object) -> None:
    with pytest.raises(InvalidName, match=r"^queue "):
        check_name(name, what="queue")


def test_label_may_have_line_breaks() -> None:
    assert check_label("a\nb\u2028", what="reference", length_max=4) == "a\nb\u2028"


@pytest.mark.parametrize("text", ["abc", "\x00", "\ud800", 5, None])
def test_bad_labels_are_named(text: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^kind "):
        check_label(text, what="kind", length_max=2)


@pytest.mark.parametrize(
    ("text", "expected"), [("", True), ("é😀", True), ("\x00", False), ("é\x00", False), ("é\udc00", False)]
)
def test_storable(text: str, expected: bool) -> None:
    assert storable(text) is expected


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        ("orders", ("orders", "")),
        ("shop.orders", ("shop", "orders")),
        ("shop.orders.eu.1", ("shop", "orders")),
        (".orders", ("", "orders")),
        ("shop.", ("shop", "")),
    ],
)
def test_namespace_and_task(queue: str, expected: tuple[str, str]) -> None:
    assert namespace_and_task(queue) == expected
