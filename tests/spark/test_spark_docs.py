"""Spark prints what the chapter on reading in docs/spark.md shows. (Other tests run the page's demo.)"""

from __future__ import annotations

import re
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
from alpo_command import Alpo
from printed import ROOT, Example, difference

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READING = (ROOT / "docs" / "spark.md").read_text("utf-8").partition("\n## Reading\n")[2].partition("\n## ")[0]
EXAMPLES = re.findall(r"^```python\n(.*?)^```\n\n((?:    [^\n]*\n)*)", READING, re.MULTILINE | re.DOTALL)


def test_reading_prints_what_the_page_says(
    spark: SparkSession, alpo: Alpo, capsys: pytest.CaptureFixture[str]
) -> None:
    around: dict[str, Any] = {"spark": spark, "SERVERS": alpo.servers}
    assert len(EXAMPLES) == READING.count("```python") and all(shown for _, shown in EXAMPLES)
    for code, shown in EXAMPLES:
        exec(code, around)
        wrong = difference(Example("spark.md", code, dedent(shown).splitlines()), capsys.readouterr().out)
        assert not wrong, wrong
