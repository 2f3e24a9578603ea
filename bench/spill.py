#!/usr/bin/env python3
"""Time to the first token of prompts that come back from the disk tier of `lichen serve`, beside that of the same prompts
when they were new, and of one after a restart. Python's standard library is enough."""

import argparse
import contextlib
import json
import statistics
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

# The cache holds the state of one context and a little: of so many prompts most are on disk.
PROMPTS = 6


def prompt(number: int, tokens: int) -> list[int]:
    """Tokens that no other number shares."""
    return [300 + (at * at + 7 * at * (number + 1) + 31 * number) % 9000 for at in range(tokens)]


@contextlib.contextmanager
def server(args: argparse.Namespace, folder: str):
    command = [args.lichen, "serve", "--port", "0", "--threads", str(args.threads), "--access-log", "off"]
    command += ["--spill-dir", folder, "--ctx-cap", str(args.tokens + 256), "--max-concurrent", "1"]
    process = subprocess.Popen([*command, "--model", args.model], stdout=subprocess.PIPE, text=True)
    try:
        yield next(line.split()[2] for line in process.stdout if line.startswith("listening on "))
    finally:
        process.terminate()
        process.wait()


def ask(address: str, tokens: list[int]) -> tuple[float, int, str]:
    """Seconds, cached tokens and the answer."""
    body = json.dumps({"prompt": tokens, "max_tokens": 1, "temperature": 0, "ignore_eos": True}).encode()
    request = urllib.request.Request(address + "/v1/completions", body, {"content-type": "application/json"})
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=600) as reply:
        answer = json.load(reply)
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return time.monotonic() - began, cached, answer["choices"][0]["text"]


def row(args: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory() as folder:
        with server(args, folder) as address:
            cold = [ask(address, prompt(number, args.tokens)) for number in range(PROMPTS)]
            time.sleep(1)
            warm = [ask(address, prompt(number, args.tokens)) for number in range(PROMPTS // 2)]
        with server(args, folder) as address:
            warm_start = ask(address, prompt(PROMPTS - 1, args.tokens))
    same = all(before[2] == after[2] for before, after in zip(cold, warm)) and cold[-1][2] == warm_start[2]
    before, after = (statistics.median(seconds for seconds, _, _ in answers) for answers in (cold, warm))
    least = min(cached for _, cached, _ in [*warm, warm_start])
    cells = [Path(args.model).stem, f"{before * 1000:.0f} ms", f"{after * 1000:.0f} ms", f"{after / before:.1%}"]
    cells += [f"{warm_start[0] * 1000:.0f} ms", str(least), "equal" if same else "different"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", help="model files (.gguf)")
    parser.add_argument("--lichen", default="target/release/lichen", help="the lichen program (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of a prompt (default: %(default)s)")
    parser.add_argument("-t", "--threads", type=int, default=2, help="threads (default: %(default)s)")
    args = parser.parse_args()
    print("| model | new | from disk | part | after a restart | cached tokens | answers |\n|---|---|---|---|---|---|---|")
    for args.model in args.models:
        print(row(args), flush=True)


if __name__ == "__main__":
    main()
