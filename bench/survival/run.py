#!/usr/bin/env python3
"""Runs `lichen serve` and llama.cpp's `llama-server` under the same cap on memory and the same load, and prints what
became of each, side by side.

Each run has a control group of its own (version 1 or 2; needs the right to make one), a private copy of the model
whose pages are dropped from the cache first, so that they are charged to the group, and a limit on time. A request is
answered, refused with a typed error, or lost. Python's standard library is enough.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from harness import Arena
from scenarios import SCENARIOS


def arguments() -> argparse.Namespace:
    scenarios = "\n".join(f"  {name:<14} {scenario.run.__doc__}" for name, scenario in SCENARIOS.items())
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=f"scenarios:\n{scenarios}",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="model file (.gguf)")
    parser.add_argument("--scenarios", default="four", help="names, separated by commas, or all (default: %(default)s)")
    parser.add_argument("--caps", help="MiB, instead of those of the scenario")
    parser.add_argument("--second", type=Path, help="another model, for two_models")
    parser.add_argument("--lichen", default="target/release/lichen", help="the lichen program (default: %(default)s)")
    parser.add_argument("--llama-server", help="the llama-server program; without it lichen runs alone")
    parser.add_argument("--requests", type=int, default=4, help="requests at once, for four (default: %(default)s)")
    parser.add_argument("--words", type=int, default=900, help="words of each prompt (default: %(default)s)")
    parser.add_argument("--churn", type=int, default=50, help="prompts of churn (default: %(default)s)")
    parser.add_argument("-n", "--tokens", type=int, default=32, help="tokens of each answer (default: %(default)s)")
    parser.add_argument("-c", "--ctx", type=int, default=0, help="context of a request (default: the model's own)")
    parser.add_argument("--lichen-args", default="", help="more arguments for lichen serve")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count(), help="threads (default: all)")
    parser.add_argument("--seconds", type=float, help="most time of a run, instead of the scenario's")
    parser.add_argument("-o", "--output", type=Path, default="survival.json", help="JSON file (default: %(default)s)")
    args = parser.parse_args()
    names = list(SCENARIOS) if args.scenarios == "all" else args.scenarios.split(",")
    if unknown := set(names) - set(SCENARIOS):
        parser.error(f"no scenario is called {', '.join(unknown)}")
    if "two_models" in names and not args.second:
        parser.error("two_models needs --second")
    args.scenarios = names
    return args


def summary(result: dict) -> str:
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in result["outcomes"].items()) or "nothing asked"
    ends = ["alive" if end is None else f"ended with {end}" for end in result["exits"]]
    ends = ends[0] if len(set(ends)) == 1 else " and ".join(ends)
    return f"{outcomes}; {ends}; peak {result['peak_mib']} MiB; {'; '.join(result['notes'])}"


def main() -> None:
    args = arguments()
    programs = {"lichen": args.lichen} | ({"llama.cpp": args.llama_server} if args.llama_server else {})
    rows = []
    for name in args.scenarios:
        scenario = SCENARIOS[name]
        for cap in map(int, args.caps.split(",")) if args.caps else scenario.caps:
            args.cap = cap
            row = {"scenario": name, "cap_mib": cap}
            for engine, program in programs.items():
                with Arena(engine, program, args.threads, cap, args.seconds or scenario.seconds) as arena:
                    scenario.run(arena, args)
                    row[engine] = arena.result()
                print(name, cap, row[engine], file=sys.stderr)
            rows.append(row)
            args.output.write_text(json.dumps(rows, indent=1))
    print("| scenario | cap | " + " | ".join(programs) + " |\n|" + "---|" * (len(programs) + 2))
    for row in rows:
        told = " | ".join(summary(row[engine]) for engine in programs)
        print(f"| {row['scenario']} | {row['cap_mib']} MiB | {told} |")


if __name__ == "__main__":
    main()
