#!/usr/bin/env python3
"""Measures what watching memory costs while it isn't short: tokens per second while decoding, in `lichen run`, where
nobody watches, and in `lichen serve`, where every step keeps the ledger. Both decode the same text with the same
engine, and the engine's own clock is read. They run in turns; the table has medians and the best. Python's standard
library is enough.
"""

import argparse
import json
import re
import statistics
import subprocess
import tempfile
import urllib.request
from pathlib import Path

from serve import free_port, server

PROMPT = "Write a long and careful essay about how tides are made."


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="model file (.gguf)")
    parser.add_argument("--lichen", default="target/release/lichen", help="the program")
    parser.add_argument("-n", "--tokens", type=int, default=256, help="most tokens of an answer")
    parser.add_argument("-t", "--threads", type=int, default=2, help="threads that compute")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each")
    return parser.parse_args()


def unwatched(args: argparse.Namespace) -> tuple[int, float]:
    """Tokens and tokens per second of `lichen run`."""
    command = [args.lichen, "run", str(args.model), PROMPT, "-n", str(args.tokens), "-t", str(args.threads),
               "--temperature", "0", "--draft", "off"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    tokens, rate = re.search(r"answer: (\d+) tokens, ([\d.]+) tokens/s", told).groups()
    return int(tokens), float(rate)


def watched(args: argparse.Namespace) -> tuple[int, float]:
    """Tokens and tokens per second of `lichen serve`, from its access log."""
    with tempfile.NamedTemporaryFile() as log:
        port = free_port()
        command = [args.lichen, "serve", "--port", str(port), "--model", str(args.model), "--name", "bench",
                   "--threads", str(args.threads), "--draft", "off", "--access-log", log.name]
        with server(command, port) as address:
            body = {"model": "bench", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": args.tokens,
                    "temperature": 0}
            request = urllib.request.Request(address + "/v1/chat/completions", json.dumps(body).encode(),
                                             {"content-type": "application/json"})
            urllib.request.urlopen(request, timeout=600).close()
        lines = [json.loads(line) for line in log.read().splitlines()]
    entry = next(line for line in lines if "itl_s" in line)
    return entry["completion_tokens"], 1 / entry["itl_s"]


def main() -> None:
    args = arguments()
    rates = {unwatched: [], watched: []}
    lengths = set()
    for _ in range(args.rounds):
        for kind, samples in rates.items():
            tokens, rate = kind(args)
            lengths.add(tokens)
            samples.append(rate)
    if len(lengths) != 1:
        raise SystemExit(f"the answers differ: {sorted(lengths)} tokens")
    print("| | median | best |\n|---|---|---|")
    for kind, samples in rates.items():
        print(f"| {kind.__name__} | {statistics.median(samples):.1f} | {max(samples):.1f} |")
    median = statistics.median(rates[watched]) / statistics.median(rates[unwatched]) - 1
    best = max(rates[watched]) / max(rates[unwatched]) - 1
    print(f"\nwatched: {median:+.1%} by the median, {best:+.1%} by the best, {lengths.pop()} tokens each")


if __name__ == "__main__":
    main()
