#!/usr/bin/env python3
"""Runs `lichen serve` and llama.cpp's `llama-server` under the same cap on memory and the same load, and prints what
became of each, side by side.

Each case has a control group of its own (version 1 or 2; needs the right to make one), a private copy of the model
whose pages are dropped from the cache first, so that they are charged to the group, and a limit on time. A request is
answered, refused with a typed error, or lost. Python's standard library is enough.
"""

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

MIB = 1 << 20
WORDS = ("river stone cloud market winter letter garden copper evening bridge window harbour forest silver morning paper "
         "island candle mirror station thunder orchard valley engine feather marble lantern meadow compass saddle").split()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="model file (.gguf)")
    parser.add_argument("--lichen", default="target/release/lichen", help="the lichen program (default: %(default)s)")
    parser.add_argument("--llama-server", help="the llama-server program; without it lichen runs alone")
    parser.add_argument("--caps", default="1000,700,600,550,500,450", help="MiB (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=4, help="requests at once (default: %(default)s)")
    parser.add_argument("--words", type=int, default=900, help="words of each prompt (default: %(default)s)")
    parser.add_argument("--sequential", action="store_true", help="one request after another, each with its own prompt")
    parser.add_argument("-n", "--tokens", type=int, default=32, help="tokens of each answer (default: %(default)s)")
    parser.add_argument("-c", "--ctx", type=int, help="context of a request (default: the model's own)")
    parser.add_argument("--lichen-args", default="", help="more arguments for lichen serve")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count(), help="threads (default: all)")
    parser.add_argument("--seconds", type=float, default=240, help="most time of a case (default: %(default)s)")
    parser.add_argument("--balloon", type=int, default=0, help="MiB that another process in the group takes meanwhile")
    parser.add_argument("-o", "--output", type=Path, default="survival.json", help="JSON file (default: %(default)s)")
    return parser.parse_args()


class Group:
    """A control group with a cap on memory."""

    def __init__(self, name: str, cap: int):
        self.old = Path("/sys/fs/cgroup/memory").is_dir()
        base = Path("/sys/fs/cgroup/memory" if self.old else "/sys/fs/cgroup")
        key = "memory:" if self.old else "0::"
        own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if key in line)
        self.path = base / own.split(":", 2)[2].lstrip("/") / name
        self.path.mkdir()
        (self.path / ("memory.limit_in_bytes" if self.old else "memory.max")).write_text(str(cap))

    def enter(self) -> None:
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def number(self, old: str, new: str) -> int:
        return int((self.path / (old if self.old else new)).read_text())

    def facts(self) -> dict:
        events = self.path / ("memory.oom_control" if self.old else "memory.events")
        kills = [int(line.split()[1]) for line in events.read_text().splitlines() if line.startswith("oom_kill ")]
        return {"peak_mib": self.number("memory.max_usage_in_bytes", "memory.peak") // MIB, "oom_kills": sum(kills)}

    def remove(self) -> None:
        for _ in range(50):
            with contextlib.suppress(OSError):
                return self.path.rmdir()
            time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def cold(model: Path, folder: Path) -> Path:
    """A copy whose pages nobody has in the cache."""
    copy = folder / "model.gguf"
    shutil.copyfile(model, copy)
    with open(copy, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return copy


def prompt(number: int, words: int) -> str:
    return f"Number {number}. " + " ".join(WORDS[(i * 7 + i * i * number + number) % len(WORDS)] for i in range(words))


def ask(address: str, text: str, tokens: int, until: float, out: list) -> None:
    body = {"model": "bench", "prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(address + "/v1/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    began = time.monotonic()
    while True:
        try:
            with urllib.request.urlopen(request, timeout=max(1.0, until - time.monotonic())) as answer:
                got = json.load(answer)["usage"]["completion_tokens"]
                result = "answered" if got == tokens else f"cut at {got} tokens"
        except urllib.error.HTTPError as error:
            retry = error.headers.get("retry-after")
            kind = json.loads(error.read() or b"{}").get("error", {}).get("type", "untyped")
            if retry and error.code in (429, 503) and time.monotonic() + float(retry) < until:
                time.sleep(float(retry))
                continue
            result = f"{error.code} {kind}"
        except TimeoutError:
            result = "no answer in time"
        except OSError:
            result = "connection lost"
        out.append((result, time.monotonic() - began))
        return


def case(command: list[str], port: int, cap: int, args: argparse.Namespace) -> dict:
    group = Group(f"survival-{os.getpid()}-{port}", cap * MIB)
    result: dict = {"cap_mib": cap, "results": []}
    log = tempfile.TemporaryFile()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, preexec_fn=group.enter)
    balloon = None
    try:
        began = time.monotonic()
        until = began + args.seconds
        address = f"http://127.0.0.1:{port}"
        ready = False
        while not ready and process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(address + "/health", timeout=5).close()
                ready = True
            time.sleep(0.1)
        result["ready_s"] = round(time.monotonic() - began, 1) if ready else None
        if ready:
            if args.balloon:
                grow = f"import time\nb=bytearray()\nfor _ in range({args.balloon}): b+=bytearray({MIB}); time.sleep(0.01)\n" \
                       "time.sleep(600)"
                balloon = subprocess.Popen([sys.executable, "-c", grow], preexec_fn=group.enter)
            outs: list = []
            threads = [threading.Thread(target=ask, args=(address, prompt(i, args.words), args.tokens, until, outs))
                       for i in range(args.requests)]
            began = time.monotonic()
            for thread in threads:
                thread.start()
                if args.sequential:
                    thread.join()
            for thread in threads:
                thread.join()
            result["results"] = [text for text, _ in outs]
            result["seconds"] = round(time.monotonic() - began, 1)
            with contextlib.suppress(OSError, ValueError):
                with urllib.request.urlopen(address + "/admin/memory", timeout=5) as answer:
                    memory = json.load(answer)
                    result["levels"] = [change["to"] for change in memory["transitions"]]
                    result["actions"] = {a["action"]: a["freed_bytes"] for a in memory["actions"]}
        with contextlib.suppress(subprocess.TimeoutExpired):
            # One that was killed while it answered needs a moment to be gone.
            process.wait(timeout=1)
        result["exit"] = process.poll()
        if process.poll() is not None:
            log.seek(0)
            result["last_words"] = log.read()[-400:].decode(errors="replace")
        result |= group.facts()
    finally:
        for child in filter(None, (process, balloon)):
            child.kill()
            child.wait()
        group.remove()
    return result


def summary(result: dict) -> str:
    counts: dict[str, int] = {}
    for text in result["results"]:
        counts[text] = counts.get(text, 0) + 1
    end = "alive" if result["exit"] is None else f"ended with {result['exit']}"
    told = ", ".join(f"{count} {text}" for text, count in counts.items()) or "not ready"
    return f"{told}; {end}; peak {result['peak_mib']} MiB, {result.get('seconds', '-')} s"


def main() -> None:
    args = arguments()
    rows, names = [], ["lichen"] + (["llama.cpp"] if args.llama_server else [])
    for cap in map(int, args.caps.split(",")):
        row = {}
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                model, port = cold(args.model, Path(folder)), free_port()
                slots = str(args.requests if not args.sequential else 1)
                command = [args.lichen, "serve", "--port", str(port), "-t", str(args.threads), "--access-log", "off",
                           "--model", str(model), "--name", "bench", "--max-concurrent", slots]
                command += ["--ctx-cap", str(args.ctx)] if args.ctx else []
                command += args.lichen_args.split()
                if name == "llama.cpp":
                    command = [args.llama_server, "--port", str(port), "-t", str(args.threads), "-m", str(model), "-c",
                               str(args.ctx or 0), "-np", slots, "--kv-unified", "-fa", "on"]
                row[name] = case(command, port, cap, args)
                print(cap, name, row[name], file=sys.stderr)
        rows.append(row)
    args.output.write_text(json.dumps(rows, indent=1))
    print("| cap | " + " | ".join(names) + " |\n|" + "---|" * (len(names) + 1))
    for row in rows:
        cap = row["lichen"]["cap_mib"]
        print(f"| {cap} MiB | " + " | ".join(summary(row[name]) for name in names) + " |")


if __name__ == "__main__":
    main()
