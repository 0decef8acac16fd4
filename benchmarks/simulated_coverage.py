"""Coverage of the core by the simulator alone: `make sim-coverage` prints it by file and in total.

It runs worlds from seeds, the worlds of every mutation (on the core as it is, and mutated), those in which operators
make mistakes, and every scenario. Lines that a correct core can never reach are not counted: those that raise because
an invariant broke or bytes were damaged.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import coverage

ROOT = Path(__file__).parent.parent
NEVER = ["raise InvariantBroken", "raise DamagedEntry", "raise ValueError", "if TYPE_CHECKING:"]


def exercise(seeds: int, seconds: int) -> None:
    """Run all worlds and scenarios; exits at the first fault."""
    from alpo_sim.mutations import MUTATIONS
    from alpo_sim.mutations.operators import MISTAKES
    from alpo_sim.options import Options
    from alpo_sim.replay import Replay
    from alpo_sim.scenario_text import parse
    from alpo_sim.world import World, run_world

    for seed in range(seeds):
        verdict = run_world(World(Options.draw(seed, seconds=seconds)))
        if not verdict.ok:
            sys.exit(f"seed {seed}: {verdict.invariant}: {verdict.detail}")
    for mutation in MUTATIONS.values():
        for seed in range(1, 4):
            mutation.verdict(seed)
            mutation.verdict(seed, mutated=False)
    for options, makes in MISTAKES.values():
        for seed in range(1, 3):
            run_world(makes(options(seed)))
    for file in sorted((ROOT / "tests" / "scenarios").glob("*.txt")):
        Replay(parse(file.read_text()), strict=False).run()


def branches(seen: coverage.Coverage) -> str:
    """Coverage of branches alone, as text; the report's own figure covers lines and branches together."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "seen.json"
        seen.json_report(outfile=str(file))
        totals = json.loads(file.read_text())["totals"]
    all_of_them, run = totals["num_branches"], totals["covered_branches"]
    return f"branches: {run} of {all_of_them}, {run / all_of_them:.1%}"


def main() -> None:
    """Measure and print the coverage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=150)
    parser.add_argument("--seconds", type=int, default=20)
    arguments = parser.parse_args()
    seen = coverage.Coverage(branch=True, source=[str(ROOT / "alpo" / "core")], data_file=None, config_file=False)
    seen.set_option("report:exclude_lines", NEVER)  # coverage reads "exclude_also" only from a file
    seen.start()
    exercise(arguments.seeds, arguments.seconds)
    seen.stop()
    seen.report(show_missing=True, skip_covered=True)
    print(branches(seen))


if __name__ == "__main__":
    main()
