#!/usr/bin/env python3
"""Tokens a second and bytes read for each token where the weights don't fit: `lichen serve --overcommit-weights` under
caps on memory, one request at a time. Several programs can be compared. Needs what `survival/run.py` needs."""

import argparse
import sys
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "survival"))
from harness import MIB, Arena, prompt  # noqa: E402

TOKENS = 64
ARGS = "--overcommit-weights --draft off --kv-gate off"


def read_bytes(pid: int) -> int:
    """What a process has read from disks since it started."""
    lines = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(lines["read_bytes"])


def metric(arena: Arena, name: str) -> float | None:
    with urllib.request.urlopen(arena.servers[0][1] + "/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)), None)


def row(arena: Arena, program: str, model: Path, cap: int) -> str:
    if not arena.start([model], slots=1, ctx=1024, args=ARGS):
        return f"| {cap} MiB | {program} | not ready | | | |"
    arena.ask(prompt(1, 8), 4)
    pid = arena.servers[0][0].pid
    read, began = read_bytes(pid), time.monotonic()
    outcome = arena.ask(prompt(2, 8), TOKENS).outcome
    rate = TOKENS / (time.monotonic() - began)
    read = (read_bytes(pid) - read) / TOKENS / MIB
    hot, predicted = metric(arena, "lichen_weights_hot_bytes"), metric(arena, "lichen_predicted_passes_per_second")
    shown = [f"{hot / MIB:.0f}" if hot else "", f"{predicted:.1f}" if predicted else ""]
    return f"| {cap} MiB | {program} | {outcome}, {rate:.1f} | {shown[1]} | {read:.0f} | {shown[0]} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="model file (.gguf)")
    parser.add_argument("--caps", default="450,400,350,300,256", help="MiB (default: %(default)s)")
    parser.add_argument("--lichen", nargs="+", default=["target/release/lichen"], help="programs to compare")
    args = parser.parse_args()
    print("| cap | program | tokens/s | predicted | MiB read for a token | MiB that stay |\n|---|---|---|---|---|---|")
    for cap in map(int, args.caps.split(",")):
        for program in args.lichen:
            with Arena("lichen", program, 2, cap, 240) as arena:
                print(row(arena, program, args.model, cap), flush=True)


if __name__ == "__main__":
    main()
