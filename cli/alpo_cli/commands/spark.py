"""`alpo spark`: what Spark needs on this machine."""

from __future__ import annotations

from ..exits import Failed
from ..frame import App
from ..options import Target, remember, without_servers
from ..output import escape, print_json

app = App(
    callback=remember,
    help="The log in Apache Spark: is this machine ready for it?\n\nExamples:\n\n    alpo spark doctor",
)




@app.command("doctor")
@without_servers
def doctor(target: Target) -> None:
    """Check PySpark, PyArrow, Java and the workers' Python, and say what to do.

    Exit code 1 when Spark could not work here. Needs no cluster, and starts no Spark.

    Examples:

        alpo spark doctor

        alpo spark doctor --json | jq 'select(.ok | not)'
    """
    from alpo.spark.fitness import examine

    facts = examine()
    for fact in facts:
        if target.json:
            print_json({**fact._asdict(), "do": fact.do or None})
        else:
            print(escape(f"{'OK' if fact.ok else 'bad':<5} {fact.check:<12} {fact.says}"))
            if fact.do:
                print(escape(f"{'':<19}-> {fact.do}"))
    bad = [fact.check for fact in facts if not fact.ok]
    if bad:
        raise Failed(f"bad: {', '.join(bad)}")
