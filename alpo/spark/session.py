"""Spark sessions that can use the log: with this interpreter and a suitable Java."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from .java import find_java


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Prepare the builder for the data source ``alpo``: ``alpo.spark.configure(SparkSession.builder).getOrCreate()``.

    Sets JAVA_HOME for the process (see `alpo.spark.java`) and the interpreter of Spark's workers, unless PYSPARK_PYTHON
    names one. Every setting may be changed on the builder afterwards. Raises `alpo.spark.java.NoJava`.
    """
    if "SPARK_REMOTE" not in os.environ:
        os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return builder.config("spark.sql.session.timeZone", "UTC")
