#!/usr/bin/env python3
"""Measures the start of `lichen` beside llama.cpp's: from the start of a process to the first token, and the most memory
that a filled context takes, beside what `lichen plan` foretells.

All start in turns, in another order every other round, with the model's file in the system's cache. A server has begun
when the first piece of a streamed completion of a word comes over HTTP. `run` is
`lichen run MODEL -n 1` from its start to its end, beside a `llama-bench` without a warm-up that runs a prompt of 16
tokens and generates one. Memory is the largest resident size (`VmHWM`, the mapped model included) of a server of one
context that was filled. Fails if lichen is later than llama.cpp, or takes more memory than `--most` times what was
foretold. Python's standard library is enough; memory is measured on Linux only.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import random
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

MIB = 1 << 20
# Of the answer that fills the context.
TOKENS = 16


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path, nargs="+", help="model files (.gguf)")
    parser.add_argument("--lichen", default="target/release/lichen", help="the lichen program (default: %(default)s)")
    parser.add_argument("--llama-server", required=True, help="bench/build-peer makes it beside llama-bench")
    parser.add_argument("--llama-bench", help="for `run`; left out if not given")
    parser.add_argument("-c", "--context", type=int, default=4096, help="tokens of the context (default: %(default)s)")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count(), help="threads (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (default: %(default)s)")
    parser.add_argument("--most", type=float, default=1.02, help="memory to what was foretold (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, default="start.json", help="JSON file (default: %(default)s)")
    return parser.parse_args()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def servers(args: argparse.Namespace, model: Path, port: int) -> dict[str, list[str]]:
    """What to run for each side. Beside the context and the threads the defaults of each hold."""
    context, threads = str(args.context), str(args.threads)
    return {
        "lichen": [args.lichen, "serve", "--port", str(port), "--model", str(model), "--name", "bench", "--ctx-cap",
                   context, "--max-concurrent", "1", "-t", threads, "--spill-budget", "0", "--access-log", "off"],
        "llama.cpp": [args.llama_server, "--host", "127.0.0.1", "--port", str(port), "-m", str(model), "-c", context,
                      "-np", "1", "-t", threads],
    }


def runs(args: argparse.Namespace, model: Path) -> dict[str, list[str]]:
    """Programs that load, run a short prompt, generate a token and end."""
    threads = str(args.threads)
    sides = {"lichen": [args.lichen, "run", str(model), "Hi", "-n", "1", "-t", threads]}
    if args.llama_bench:
        sides["llama.cpp"] = [args.llama_bench, "-m", str(model), "-p", "16", "-n", "1", "-r", "1", "--no-warmup",
                              "-t", threads, "-o", "json"]
    return sides


def ask(address: str, path: str, body: dict):
    request = urllib.request.Request(address + path, json.dumps(body).encode(), {"content-type": "application/json"})
    return urllib.request.urlopen(request, timeout=3600)


@contextlib.contextmanager
def server(command: list[str]):
    """Runs a server until the block ends."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def until_first_token(process: subprocess.Popen, address: str) -> float:
    """Asks until the server answers; the clock's time of the first piece."""
    # Not a chat: some models have no template.
    body = {"model": "bench", "prompt": "Hi", "max_tokens": 1, "stream": True}
    while process.poll() is None:
        try:
            with ask(address, "/v1/completions", body) as answer:
                for line in answer:
                    if line.startswith(b"data: {") and json.loads(line[6:]).get("choices"):
                        return time.perf_counter()
            raise SystemExit(f"{address} gave no token")
        except urllib.error.HTTPError as error:
            # llama-server listens while it still loads.
            if error.code != 503:
                raise
        except OSError:
            pass
        time.sleep(0.001)
    raise SystemExit(f"{process.args} ended with {process.returncode}")


def start(args: argparse.Namespace, model: Path, side: str) -> float:
    """Seconds from the start of a server to its first token."""
    port = free_port()
    began = time.perf_counter()
    with server(servers(args, model, port)[side]) as process:
        return until_first_token(process, f"http://127.0.0.1:{port}") - began


def run(command: list[str]) -> float:
    """Seconds that a program takes."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def peak(args: argparse.Namespace, model: Path, side: str, vocabulary: int) -> int:
    """The largest resident size of a server with a filled context, in bytes."""
    port = free_port()
    # Tokens of a text come equally often, so that all of the embedding is read.
    tokens = random.Random(0).choices(range(vocabulary), k=args.context - TOKENS - 1)
    with server(servers(args, model, port)[side]) as process:
        address = f"http://127.0.0.1:{port}"
        until_first_token(process, address)
        body = {"model": "bench", "prompt": tokens, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        ask(address, "/v1/completions", body).close()
        status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) * 1024


def foretold(args: argparse.Namespace, model: Path) -> dict[str, int]:
    """Bytes that `lichen plan` says the server will take."""
    command = [args.lichen, "plan", str(model), "--json", "--ctx-cap", str(args.context), "--max-concurrent", "1"]
    plan = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    parts = {part: plan[f"{part}_bytes"] for part in ("weight", "scratch", "tokenizer", "process")}
    return {"vocabulary": plan["vocabulary"], "kv": plan["context_bytes"]["f16"], **parts}


def measure(args: argparse.Namespace, model: Path) -> dict:
    # Into the system's cache.
    with model.open("rb") as file:
        while file.read(16 * MIB):
            pass
    sides, commands = ["lichen", "llama.cpp"], runs(args, model)
    serve, once = {side: [] for side in sides}, {side: [] for side in commands}
    for turn in range(args.rounds):
        for side in sides if turn % 2 == 0 else reversed(sides):
            print(f"{model.name}, round {turn + 1}/{args.rounds}: {side}", file=sys.stderr)
            serve[side].append(start(args, model, side))
            if side in commands:
                once[side].append(run(commands[side]))
    plan = foretold(args, model)
    vocabulary = plan.pop("vocabulary")
    peaks = {side: peak(args, model, side, vocabulary) for side in sides}
    return {"model": model.name, "serve_seconds": serve, "run_seconds": once, "peak_bytes": peaks, "foretold": plan}


def table(args: argparse.Namespace, results: list[dict]) -> tuple[str, list[str]]:
    """A Markdown table, and what was missed."""
    lines = ["| model | server, lichen / llama.cpp | ratio | run | MiB, lichen / llama.cpp | foretold | lichen to it |",
             "|---|---|---|---|---|---|---|"]
    missed = []
    both = lambda numbers, form: " / ".join(form.format(number) for number in numbers)
    for result in results:
        serve, once = ([statistics.median(times) for times in result[key].values()]
                       for key in ("serve_seconds", "run_seconds"))
        peaks, plan = result["peak_bytes"], sum(result["foretold"].values())
        share = peaks["lichen"] / plan
        lines.append(f"| {result['model']} | {both(serve, '{:.3f} s')} | {serve[1] / serve[0]:.2f} | "
                     f"{both(once, '{:.3f} s')} | {both([size / MIB for size in peaks.values()], '{:.1f}')} | "
                     f"{plan / MIB:.1f} | {share:.3f} |")
        if serve[0] > serve[1]:
            missed.append(f"{result['model']}: lichen is later than llama.cpp")
        if share > args.most:
            missed.append(f"{result['model']}: {share:.3f} of the memory that was foretold")
    return "\n".join(lines), missed


def main() -> None:
    args = arguments()
    results = [measure(args, model) for model in args.models]
    report = {
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": {"system": platform.platform(), "cpus": os.cpu_count()},
        "command": sys.argv,
        "results": results,
    }
    args.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    text, missed = table(args, results)
    print(text)
    if missed:
        raise SystemExit("\n".join(missed))


if __name__ == "__main__":
    main()
