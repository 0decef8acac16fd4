"""What `alpo-pipeline doctor` prints, and `alpo spark doctor`: what Spark needs on this machine."""

from __future__ import annotations

from ..exits import Failed
from ..options import Target
from ..output import escape, print_json


def tell(target: Target) -> None:
    """A line a fact. Raises Failed, after printing, if Spark could not work here."""
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
