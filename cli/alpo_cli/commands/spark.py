"""`alpo spark`: check what Spark needs on this machine."""

from __future__ import annotations

from ..frame import App
from ..options import Target, remember, without_servers

app = App(
    callback=remember,
    help="The log in Apache Spark: is this machine ready for it?\n\nExamples:\n\n    alpo spark doctor",
)




@app.command("doctor")
@without_servers
def doctor(target: Target) -> None:
    """Check PySpark, PyArrow, Java and the workers' Python, and say what to do: the same as alpo-pipeline doctor.

    Exit code 1 when Spark could not work here. Needs no cluster, and starts no Spark.

    Examples:

        alpo spark doctor

        alpo spark doctor --json | jq 'select(.ok | not)'
    """
    from ..pipeline.spark import tell

    tell(target)
