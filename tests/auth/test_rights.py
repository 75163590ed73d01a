"""Rights, rules and patterns."""

from __future__ import annotations

import pytest

from lockstep.core.rights import RULES_MAX, Pattern, Rights, rules_of
from lockstep.errors import InvalidRequest


@pytest.mark.parametrize(
    ("pattern", "matched", "not_matched"),
    [
        ("orders", ["orders"], ["order", "orders.new", ""]),
        ("orders.*", ["orders.", "orders.new"], ["orders", "my.orders.new"]),
        ("*.dead", ["a.dead", ".dead"], ["dead", "a.dead.b"]),
        ("a*b*c", ["abc", "a-b-c", "abbcc"], ["acb", "ab", "ac"]),
        ("ab*ba", ["abba", "ab-ba"], ["aba"]),
        ("*", ["", "anything", "a b/c"], []),
        ("a[b].*", ["a[b].c"], ["ab.c"]),
    ],
)
def test_pattern(pattern: str, matched: list[str], not_matched: list[str]) -> None:
    found = Pattern(pattern)
    assert [name for name in matched if not found.matches(name)] == []
    assert [name for name in not_matched if found.matches(name)] == []


def test_pattern_of_many_pieces_takes_no_long_time() -> None:
    assert not Pattern("a*" * 100 + "b").matches("a" * 255)


def test_configure_implies_manage_and_admin_everything() -> None:
    rights = Rights(["configure a", "admin b"])
    assert [right for right in ("push", "pop", "browse", "manage", "configure") if rights.may(right, "a")] == [  # type: ignore[arg-type]
        "manage",
        "configure",
    ]
    assert rights.may("admin", "b")
    assert rights.may("push", "b")
    assert rights.everywhere == frozenset()


def test_roles_are_bundles() -> None:
    assert rules_of(["read-only"]).everywhere == {"browse"}
    assert rules_of(["read-write"]).everywhere == {"push", "pop", "browse", "manage"}
    assert rules_of(["read-only", "unknown"], ["push a.*"]).somewhere == {"browse", "push"}
    assert rules_of(["unknown"]).somewhere == frozenset()


@pytest.mark.parametrize(
    "rule", ["", "push", "push a b", "eat a", "push, pop a", "push " + "a" * 256, ",push a", "PUSH a"]
)
def test_rule_that_is_not_valid_is_refused(rule: str) -> None:
    with pytest.raises(InvalidRequest):
        Rights([rule])


def test_rules_are_bounded() -> None:
    with pytest.raises(InvalidRequest):
        Rights([f"push {number}" for number in range(RULES_MAX + 1)])


def test_decisions_are_remembered_within_bounds() -> None:
    rights = Rights(["push a*"])
    assert sum(rights.may("push", f"a{number}") for number in range(20_005)) == 20_005
    assert not rights.may("push", "b")
    assert len(rights._remembered) <= 10_000


def test_equal_rules_are_equal_rights() -> None:
    assert Rights(["push a", "pop b"]) == Rights(["pop b", "push a"])
    assert hash(Rights(["push a", "pop b"])) == hash(Rights(["pop b", "push a"]))
    assert Rights(["push a"]) != Rights(["push b"])
