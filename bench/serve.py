#!/usr/bin/env python3
"""Measures `lichen serve` and llama.cpp's `llama-server` beside each other under the same load.

Starts both on loopback with the same model, threads and number of sequences. They get the load in turns, in another
order every other round: some clients at once, each with a prompt of its own and a fixed number of tokens to generate.
Prints a Markdown table of medians and writes every sample as JSON. Python's standard library is enough.
"""

import argparse
import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

SUBJECTS = ["tides", "bridges", "bread", "owls", "clocks", "rivers", "glass", "chess", "maps", "violins", "salt",
            "comets", "gardens", "steel", "languages", "trains"]
ASK = ("Write a long and careful essay about {}. Begin with their history, then say what people believe about them and "
       "what is known, give examples from several countries, and end with an open question. Use plain words.")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="model file (.gguf)")
    parser.add_argument("--lichen", default="target/release/lichen", help="the lichen program (default: %(default)s)")
    parser.add_argument("--llama-server", help="the llama-server program; bench/build-peer makes one beside llama-bench")
    parser.add_argument("-c", "--clients", default="1,8", help="clients at once, such as 1,4,8 (default: %(default)s)")
    parser.add_argument("-n", "--tokens", type=int, default=96, help="tokens of each answer (default: %(default)s)")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count(), help="threads (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each server (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, default="serve.json", help="JSON file (default: %(default)s)")
    return parser.parse_args()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def server(command: list[str], port: int):
    """Runs a server until the block ends; yields its address once it is healthy."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            if process.poll() is not None:
                raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
            with contextlib.suppress(OSError):
                urllib.request.urlopen(address + "/health", timeout=5).close()
                break
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()


def stream(address: str, prompt: str, tokens: int, times: list[float]) -> None:
    """Asks for an answer and notes when each piece of it came."""
    body = {"model": "bench", "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "stream": True,
            "temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(address + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("choices") and event["choices"][0]["delta"].get("content"):
                times.append(time.perf_counter())
            if event.get("usage") and event["usage"]["completion_tokens"] != tokens:
                raise SystemExit(f"{address} gave {event['usage']['completion_tokens']} tokens and not {tokens}")


def load(address: str, clients: int, tokens: int, turn: int) -> dict:
    """All clients at once. Rates in tokens per second: over all, and while every client was decoding."""
    times = [[] for _ in range(clients)]
    prompts = [f"{turn}. " + ASK.format(SUBJECTS[i % len(SUBJECTS)]) for i in range(clients)]
    threads = [threading.Thread(target=stream, args=(address, prompt, tokens, seen))
               for prompt, seen in zip(prompts, times)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ended = max(seen[-1] for seen in times)
    first, last = max(seen[0] for seen in times), min(seen[-1] for seen in times)
    decoded = sum(sum(first < at <= last for at in seen) for seen in times)
    return {"clients": clients, "all": clients * tokens / (ended - began),
            "decode": decoded / (last - first) if last > first else float("nan")}


def main() -> None:
    args = arguments()
    counts = [int(count) for count in args.clients.split(",")]
    most, model = max(counts), str(args.model)
    ports = {"lichen": free_port()}
    commands = {"lichen": [args.lichen, "serve", "--port", str(ports["lichen"]), "--threads", str(args.threads),
                           "--access-log", "off", "--model", model, "--name", "bench", "--max-concurrent", str(most),
                           "--ctx-cap", "2048"]}
    if args.llama_server:
        ports["llama.cpp"] = free_port()
        commands["llama.cpp"] = [args.llama_server, "--port", str(ports["llama.cpp"]), "-t", str(args.threads), "-m",
                                 model, "-np", str(most), "-c", str(2048 * most), "--no-webui"]
    samples = []
    with contextlib.ExitStack() as stack:
        addresses = {name: stack.enter_context(server(command, ports[name])) for name, command in commands.items()}
        for turn in range(-1, args.rounds):
            for name in sorted(addresses, reverse=turn % 2 == 1):
                for count in counts:
                    # The round before the first warms up.
                    sample = load(addresses[name], count, 8 if turn < 0 else args.tokens, turn)
                    if turn >= 0:
                        samples.append({"server": name, **sample})
                        print(samples[-1], file=sys.stderr)
    args.output.write_text(json.dumps({"model": args.model.name, "threads": args.threads, "samples": samples}, indent=1))
    print(table(samples, counts, list(commands)))


def table(samples: list[dict], counts: list[int], names: list[str]) -> str:
    def median(name: str, count: int, key: str) -> float:
        return statistics.median(s[key] for s in samples if s["server"] == name and s["clients"] == count)

    lines = ["| clients | " + " | ".join(f"{name}, {key}" for key in ("all", "decode") for name in [*names, "ratio"])
             + " |"]
    lines.append(re.sub(r"[^|]+", "---", lines[0]))
    for count in counts:
        cells = [str(count)]
        for key in ("all", "decode"):
            values = [median(name, count, key) for name in names]
            cells += [f"{value:.1f}" for value in values] + [f"{values[0] / values[-1]:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
