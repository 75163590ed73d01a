"""The guide to Spark names every option, and what it says of the row of a message is so."""

from __future__ import annotations

import re

import pytest
from blocks import ROOT

from lockstep.spark.options import READ_OPTIONS
from lockstep.spark.read.schema import COLUMNS
from lockstep.spark.write.sink_schema import COLUMNS as WRITTEN_COLUMNS
from lockstep.spark.write.write_options import WRITE_OPTIONS

GUIDE = (ROOT / "docs/guides/spark.md").read_text()


def section(heading: str) -> str:
    """What stands under a heading, up to the next one of its rank."""
    rank, _, _ = heading.partition(" ")
    found = re.search(rf"^{re.escape(heading)}$(.*?)(?=^{rank} |\Z)", GUIDE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"there is no section {heading}"
    return found[1]


def named_in_table(text: str) -> set[str]:
    """The names in the first column of the tables."""
    cells = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_reading_has_a_row_for_every_option_and_no_other() -> None:
    assert named_in_table(section("### Options")) == set(READ_OPTIONS)


@pytest.mark.parametrize("column", COLUMNS)
def test_row_of_a_message_has_every_column(column: str) -> None:
    assert column in named_in_table(section("## Reading"))


def test_writing_has_a_row_for_every_option_and_no_other() -> None:
    assert named_in_table(section("### Options of a write")) == set(WRITE_OPTIONS)


@pytest.mark.parametrize("column", WRITTEN_COLUMNS)
def test_what_is_written_has_every_column(column: str) -> None:
    assert column in named_in_table(section("## Writing"))
