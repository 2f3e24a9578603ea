#!/usr/bin/env python3
"""Measures `lichen bench` beside llama.cpp's `llama-bench` and a program of ik_llama.cpp with the same flags.

They run in turns, once each a round and in another order every other round, so that a machine which gets slower or
faster over time does so for all. Prints a Markdown table of medians and writes every sample as JSON.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path, help="model files (.gguf)")
    parser.add_argument("--lichen", default="target/release/lichen", help="the lichen program (default: %(default)s)")
    parser.add_argument("--llama-bench", help="llama.cpp's llama-bench; bench/build-peer makes one")
    parser.add_argument("--ik-bench", help="bench/build-ik makes one, and ik_llama.cpp's own llama-bench is one")
    parser.add_argument("--rounds", type=positive, default=5, help="turns of each program (default: %(default)s)")
    parser.add_argument("-t", "--threads", type=threads, default=[os.cpu_count() or 1], help="counts, such as 1,2,4")
    parser.add_argument("-p", "--n-prompt", default="512", help="as for llama-bench (default: %(default)s)")
    parser.add_argument("-n", "--n-gen", default="128", help="as for llama-bench (default: %(default)s)")
    parser.add_argument("-d", "--n-depth", default="0", help="as for llama-bench (default: %(default)s)")
    parser.add_argument("-r", "--repetitions", type=positive, default=1, help="samples a turn (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, default="bench.json", help="JSON file (default: %(default)s)")
    args = parser.parse_args()
    if not (args.llama_bench or args.ik_bench):
        parser.error("there is nothing to compare with; give --llama-bench, --ik-bench or both")
    return args


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def threads(text: str) -> list[int]:
    return [positive(item) for item in text.split(",")]


def measure(command: list[str]) -> tuple[list[dict], int]:
    """Runs a program to its end; its tests and its largest resident size in bytes (the mapped model included)."""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    # Linux counts in KiB, macOS in bytes.
    return json.loads(output), usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def commands(args: argparse.Namespace, model: Path, count: int) -> dict[str, list[str]]:
    """What to run for each side; lichen is the first."""
    flags = ["-p", args.n_prompt, "-n", args.n_gen, "-t", str(count), "-r", str(args.repetitions), "-o", "json"]
    # ik_llama.cpp's own llama-bench has no depth.
    if args.n_depth != "0":
        flags += ["-d", args.n_depth]
    sides = {"lichen": [args.lichen, "bench", str(model), *flags]}
    if args.llama_bench:
        sides["llama.cpp"] = [args.llama_bench, "-m", str(model), *flags]
    if args.ik_bench:
        sides["ik"] = [args.ik_bench, "-m", str(model), *flags, "-rtr", "0"]
        sides["ik repacked"] = [args.ik_bench, "-m", str(model), *flags, "-rtr", "1"]
    return sides


def name(test: dict) -> str:
    """The test as llama-bench's own table calls it."""
    parts = [f"{kind}{test[key]}" for kind, key in (("pp", "n_prompt"), ("tg", "n_gen")) if test[key]]
    return "+".join(parts) + (f" @ d{test['n_depth']}" if test.get("n_depth") else "")


def compare(args: argparse.Namespace, model: Path, count: int) -> list[dict]:
    """All rounds of one model on one number of threads: a result for each test."""
    results: dict[str, dict] = {}
    sides = commands(args, model, count)
    peaks: dict[str, int] = dict.fromkeys(sides, 0)
    for turn in range(args.rounds):
        for side in sides if turn % 2 == 0 else reversed(sides):
            print(f"{model.name}, {count} threads, round {turn + 1}/{args.rounds}: {side}", file=sys.stderr)
            tests, peak = measure(sides[side])
            peaks[side] = max(peaks[side], peak)
            for test in tests:
                result = results.setdefault(name(test), {"samples_ts": {side: [] for side in sides}, "about": {}})
                # From nanoseconds: llama-bench rounds its samples_ts.
                tokens = test["n_prompt"] + test["n_gen"]
                result["samples_ts"][side] += [tokens * 1e9 / sample for sample in test["samples_ns"]]
                result["about"][side] = {key: test.get(key) for key in ("build_commit", "cpu_info", "model_type")}
    return [summary(model, count, test, result, peaks) for test, result in results.items()]


def summary(model: Path, count: int, test: str, result: dict, peaks: dict[str, int]) -> dict:
    samples = result["samples_ts"]
    if not all(samples.values()):
        raise SystemExit(f"{test} was not measured by {next(side for side in samples if not samples[side])}")
    medians = {side: statistics.median(values) for side, values in samples.items()}
    return {
        "model": model.name,
        "threads": count,
        "test": test,
        "median_ts": medians,
        "ratio": {side: medians["lichen"] / median for side, median in medians.items() if side != "lichen"},
        "peak_bytes": peaks,
        **result,
    }


def table(results: list[dict]) -> str:
    sides = list(results[0]["median_ts"])
    speeds, sizes = ([f"{side} {unit}" for side in sides] for unit in ("t/s", "MiB"))
    head = ["model", "threads", "test", *speeds, *(f"to {peer}" for peer in sides[1:]), *sizes]
    lines = ["| " + " | ".join(head) + " |", "|---|---:|---|" + "---:|" * (len(head) - 3)]
    for result in results:
        samples = result["samples_ts"]
        cells = [result["model"], str(result["threads"]), result["test"]]
        for side in sides:
            cells.append(f"{result['median_ts'][side]:.2f} ({min(samples[side]):.2f}-{max(samples[side]):.2f})")
        cells += [f"{ratio:.2f}" for ratio in result["ratio"].values()]
        cells += [f"{result['peak_bytes'][side] / 2**20:.0f}" for side in sides]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    args = arguments()
    results = []
    for model in args.models:
        for count in args.threads:
            results += compare(args, model, count)
    report = {
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": {"system": platform.platform(), "cpus": os.cpu_count()},
        "command": sys.argv,
        "results": results,
    }
    args.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(table(results))


if __name__ == "__main__":
    main()
