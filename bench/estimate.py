#!/usr/bin/env python3
"""Fills contexts of `lichen serve` and compares the memory that the process takes with what the ledger and `lichen plan`
say it takes.

Measured is the largest sum of resident anonymous and mapped bytes (`/proc/PID/smaps_rollup`) while the requests run;
beside it stands what `/admin/memory` said at that moment (every class that has memory behind it) and what `lichen plan`
says of the same options before anything runs. Errors are of the estimate, as a part of what was measured. Python's
standard library is enough.
"""

import argparse
import contextlib
import json
import os
import random
import socket
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

MIB = 1 << 20
TOKENS = 16


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path, nargs="+", help="model files (.gguf)")
    parser.add_argument("--lichen", default="target/release/lichen", help="the lichen program (default: %(default)s)")
    parser.add_argument("-c", "--contexts", type=numbers, default=[1024, 4096], help="tokens (default: 1024,4096)")
    parser.add_argument("--kv", default="f16,q8,q4", help="precisions (default: %(default)s)")
    parser.add_argument("--clients", type=numbers, default=[1, 4], help="requests at once (default: 1,4)")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count(), help="threads (default: all)")
    parser.add_argument("--most", type=float, default=5.0, help="largest error in per cent (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, default="estimate.json", help="JSON file (default: %(default)s)")
    return parser.parse_args()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def fetch(address: str, path: str, body: dict | None = None) -> dict:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=3600) as answer:
        return json.loads(answer.read() or b"{}")


def resident(process: int) -> dict[str, int]:
    """Anonymous and file-backed resident bytes."""
    fields = (line.split() for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:])
    kib = {field[0].rstrip(":"): int(field[1]) for field in fields}
    return {"anonymous": kib["Anonymous"] * 1024, "file": (kib["Rss"] - kib["Anonymous"]) * 1024}


def ledger(address: str) -> dict[str, int]:
    return {row["class"]: row["mapped_bytes"] for row in fetch(address, "/admin/memory")["classes"]}


def plan(args: argparse.Namespace, model: Path, options: list[str]) -> dict[str, int]:
    command = [args.lichen, "plan", str(model), "--json", *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def fill(address: str, client: int, context: int, vocabulary: int) -> None:
    """Asks for a text that fills a context but for a few tokens, of tokens that come equally often."""
    tokens = random.Random(client).choices(range(vocabulary), k=context - TOKENS - 1)
    fetch(address, "/v1/completions", {"model": "bench", "prompt": tokens, "max_tokens": TOKENS, "temperature": 0,
                                       "ignore_eos": True})


class Watch(threading.Thread):
    """Keeps the moment at which the process was largest."""

    def __init__(self, process: int, address: str):
        super().__init__()
        self.process, self.address, self.over = process, address, threading.Event()
        self.samples: list[tuple[dict, dict]] = []

    def run(self) -> None:
        while not self.over.wait(0.02):
            before = resident(self.process)
            account = ledger(self.address)
            after = resident(self.process)
            # A step in between may have changed the one and not the other.
            if abs(sum(before.values()) - sum(after.values())) < MIB:
                self.samples.append((after, account))

    def largest(self) -> tuple[dict, dict]:
        # What was computed stays for prompts to come, so the end is seen at rest too.
        time.sleep(0.3)
        self.over.set()
        self.join()
        return max(self.samples, key=lambda sample: sum(sample[0].values()))


@contextlib.contextmanager
def server(args: argparse.Namespace, model: Path, options: list[str]):
    port = free_port()
    # Nothing else is to take memory: no measurement of precisions, no pages on their way to disk.
    command = [args.lichen, "serve", "--port", str(port), "--model", str(model), "--name", "bench",
               "--access-log", "off", "--kv-gate", "off", "--spill-budget", "0", *options]
    address = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError):
                fetch(address, "/health")
                break
            time.sleep(0.05)
        yield process.pid, address
    finally:
        process.terminate()
        process.wait()


def cell(args: argparse.Namespace, model: Path, context: int, kv: str, clients: int) -> dict:
    options = ["--ctx-cap", str(context), "--max-concurrent", str(clients), "--kv", kv, "-t", str(args.threads)]
    foreseen = plan(args, model, options)
    planned = sum(foreseen[part] for part in ("process_bytes", "weight_bytes", "tokenizer_bytes", "scratch_bytes"))
    planned += clients * foreseen["context_bytes"][kv]
    with server(args, model, options) as (process, address):
        idle = resident(process)
        watch = Watch(process, address)
        watch.start()
        asking = [threading.Thread(target=fill, args=(address, client, context, foreseen["vocabulary"])) for client in range(clients)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        measured, account = watch.largest()
    total, known = sum(measured.values()), sum(account.values())
    error = lambda estimate: round(100 * (estimate - total) / total, 2)
    return {"model": model.name, "context": context, "kv": kv, "clients": clients, "idle": idle, "measured": measured,
            "ledger": account, "plan": foreseen, "measured_bytes": total, "ledger_bytes": known, "plan_bytes": planned,
            "ledger_error": error(known), "plan_error": error(planned)}


def main() -> None:
    args = arguments()
    cells = []
    print("| model | context | KV | clients | measured | ledger | error | plan | error |")
    print("|---|---|---|---|---|---|---|---|---|")
    for model in args.models:
        for context in args.contexts:
            for clients in args.clients:
                for kv in args.kv.split(","):
                    row = cell(args, model, context, kv, clients)
                    cells.append(row)
                    mib = {key: f"{row[key] / MIB:.1f}" for key in ("measured_bytes", "ledger_bytes", "plan_bytes")}
                    print(f"| {model.stem} | {context} | {kv} | {clients} | {mib['measured_bytes']} | "
                          f"{mib['ledger_bytes']} | {row['ledger_error']:+.1f} % | {mib['plan_bytes']} | "
                          f"{row['plan_error']:+.1f} % |", flush=True)
                    args.output.write_text(json.dumps(cells, indent=1))
    worst = max(abs(row[key]) for row in cells for key in ("ledger_error", "plan_error"))
    print(f"\nlargest error {worst:.1f} %")
    raise SystemExit(worst > args.most)


if __name__ == "__main__":
    main()
