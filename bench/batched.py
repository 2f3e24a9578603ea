#!/usr/bin/env python3
"""Measures how fast several sequences are decoded at once: `lichen bench -npl` beside llama.cpp's `llama-batched-bench`.

Each sequence has a prompt of its own, which isn't timed; then all of them get a token a step. The programs run in turns,
in another order every other round. Prints a Markdown table of medians, in tokens per second of all sequences together,
and writes every sample as JSON. A program of ik_llama.cpp with llama-bench's flags and -npl can be a third.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from compare import positive


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="model file (.gguf)")
    parser.add_argument("--lichen", default="target/release/lichen", help="the lichen program (default: %(default)s)")
    parser.add_argument("--llama-batched-bench", required=True, help="bench/build-peer makes one beside llama-bench")
    parser.add_argument("--ik-bench", help="bench/build-ik makes one")
    parser.add_argument("-npl", "--n-parallel", default="4,8,16", help="sequences at once (default: %(default)s)")
    parser.add_argument("-d", "--n-depth", type=positive, default=128, help="tokens of each prompt (default: %(default)s)")
    parser.add_argument("-n", "--n-gen", type=positive, default=32, help="tokens for each sequence (default: %(default)s)")
    parser.add_argument("-t", "--threads", type=positive, default=os.cpu_count(), help="threads (default: all)")
    parser.add_argument("--rounds", type=positive, default=3, help="turns of each program (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, default="batched.json", help="JSON file (default: %(default)s)")
    return parser.parse_args()


def commands(args: argparse.Namespace) -> dict[str, list[str]]:
    """What to run for each side; lichen is the first."""
    model, threads = str(args.model), str(args.threads)
    flags = ["-p", "0", "-n", str(args.n_gen), "-d", str(args.n_depth), "-npl", args.n_parallel, "-t", threads]
    flags += ["-r", "1", "-o", "json"]
    # A sequence's part of the context is a multiple of 256 there.
    most = max(int(count) for count in args.n_parallel.split(","))
    context = most * -(-(args.n_depth + args.n_gen) // 256) * 256
    sides = {
        "lichen": [args.lichen, "bench", model, *flags],
        "llama.cpp": [args.llama_batched_bench, "-m", model, "-c", str(context), "-b", "2048", "-ub", "512", "-npp",
                      str(args.n_depth), "-ntg", str(args.n_gen), "-npl", args.n_parallel, "-t", threads, "-tb", threads,
                      "--output-format", "jsonl"],
    }
    if args.ik_bench:
        sides["ik"] = [args.ik_bench, "-m", model, *flags, "-rtr", "0"]
        sides["ik repacked"] = [args.ik_bench, "-m", model, *flags, "-rtr", "1"]
    return sides


def speeds(command: list[str]) -> dict[int, float]:
    """Runs a program to its end; tokens per second for each number of sequences."""
    # llama.cpp writes its log to standard error, and much of it.
    output = subprocess.run(command, capture_output=True, text=True, check=False)
    if output.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {output.returncode}:\n{output.stderr[-2000:]}")
    if "--output-format" in command:
        tests = [json.loads(line) for line in output.stdout.splitlines() if line.startswith("{")]
        return {test["pl"]: test["speed_tg"] for test in tests}
    return {test["n_parallel"]: test["samples_ts"][0] for test in json.loads(output.stdout)}


def table(samples: dict[int, dict[str, list[float]]]) -> str:
    sides = list(next(iter(samples.values())))
    lines = ["| " + " | ".join(["sequences", *(f"{side} t/s" for side in sides), *(f"to {peer}" for peer in sides[1:])])
             + " |", "|" + "---:|" * (2 * len(sides))]
    for count, measured in samples.items():
        medians = [statistics.median(measured[side]) for side in sides]
        cells = [f"{median:.1f} ({min(measured[side]):.1f}-{max(measured[side]):.1f})"
                 for side, median in zip(sides, medians)]
        cells += [f"{medians[0] / median:.2f}" for median in medians[1:]]
        lines.append(f"| {count} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    args = arguments()
    sides = commands(args)
    samples = {int(count): {side: [] for side in sides} for count in args.n_parallel.split(",")}
    for turn in range(args.rounds):
        for side in sides if turn % 2 == 0 else reversed(sides):
            print(f"round {turn + 1}/{args.rounds}: {side}", file=sys.stderr)
            for count, speed in speeds(sides[side]).items():
                samples[count][side].append(speed)
    report = {"model": args.model.name, "threads": args.threads, "command": sys.argv, "samples_ts": samples}
    args.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(table(samples))


if __name__ == "__main__":
    main()
