#!/usr/bin/env python3
"""Measures ik_llama.cpp through the Python package ik-llama-cpp-python, with the flags and the JSON of llama-bench.

It calls the C interface of the library, as llama-bench does: no tokenizer, no sampling, arbitrary tokens, keys and
values in f16. IK_LLAMA_CPP_LIB_PATH names another libllama.so of the same version, such as one built for this
processor. bench/build-ik installs both and starts this with the right Python.
"""

import argparse
import ctypes
import datetime
import importlib.metadata
import json
import os
import platform
import random
import statistics
import time

from ik_llama_cpp import _ctypes_api as api
from ik_llama_cpp._lib_loader import load_shared_library

LIBRARY = load_shared_library()
LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


def function(name: str, result, *arguments):
    """A function of the library that the package doesn't declare."""
    found = LIBRARY[name]
    found.restype, found.argtypes = result, arguments
    return found


log_set = function("llama_log_set", None, LOG, ctypes.c_void_p)
model_size = function("llama_model_size", ctypes.c_uint64, ctypes.c_void_p)
model_n_params = function("llama_model_n_params", ctypes.c_uint64, ctypes.c_void_p)
set_n_threads = function("llama_set_n_threads", None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32)
synchronize = function("llama_synchronize", None, ctypes.c_void_p)
kv_cache_seq_rm = function("llama_kv_cache_seq_rm", ctypes.c_bool, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32,
                           ctypes.c_int32)


def numbers(text: str) -> list[int]:
    return [int(item) for item in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("-m", "--model", required=True, help="model file (.gguf)")
    parser.add_argument("-p", "--n-prompt", type=numbers, default=[512], help="tokens of prompts; 0 for none")
    parser.add_argument("-n", "--n-gen", type=numbers, default=[128], help="tokens to generate; 0 for none")
    parser.add_argument("-d", "--n-depth", type=numbers, default=[0], help="tokens that are there before")
    parser.add_argument("-npl", "--n-parallel", type=numbers, default=[1], help="sequences at once")
    parser.add_argument("-b", "--batch-size", type=int, default=2048, help="most tokens handed over at once")
    parser.add_argument("-ub", "--ubatch-size", type=int, default=512, help="most tokens of a step")
    parser.add_argument("-t", "--threads", type=numbers, default=[os.cpu_count() or 1], help="threads")
    parser.add_argument("-r", "--repetitions", type=int, default=5, help="times that a test is repeated")
    parser.add_argument("-rtr", "--run-time-repack", type=int, choices=(0, 1), default=0, help="repack weights")
    parser.add_argument("-o", "--output", choices=("json",), default="json")
    return parser.parse_args()


def load(args: argparse.Namespace) -> int:
    params = api.llama_model_default_params()
    params.repack_tensors = bool(args.run_time_repack)
    model = api.llama_model_load_from_file(os.fsencode(args.model), params)
    if not model:
        raise SystemExit(f"ik_llama.cpp can't load {args.model}")
    return model


class Bench:
    """A context for one test, and a batch to hand tokens over."""

    def __init__(self, model: int, args: argparse.Namespace, test: dict):
        params = api.llama_context_default_params()
        params.n_ctx = test["n_parallel"] * (test["n_depth"] + test["n_prompt"] + test["n_gen"])
        params.n_batch, params.n_ubatch = args.batch_size, args.ubatch_size
        params.n_seq_max = test["n_parallel"]
        # The library's flash attention ends the process at a step with several sequences.
        params.flash_attn = test["n_parallel"] == 1
        self.context = api.llama_init_from_model(model, params)
        if not self.context:
            raise SystemExit(f"ik_llama.cpp can't make a context of {params.n_ctx} tokens")
        set_n_threads(self.context, test["n_threads"], test["n_threads"])
        self.sequences = range(test["n_parallel"])
        self.vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
        self.random = random.Random(1)
        self.size = args.batch_size
        self.batch = api.llama_batch_init(self.size, 0, 1)
        for row in range(self.size):
            self.batch.n_seq_id[row] = 1

    def prompt(self, past: int, tokens: int) -> None:
        """Runs a prompt for each sequence; the logits of its last token are computed."""
        end = past + tokens
        rows = [(sequence, position) for sequence in self.sequences for position in range(past, end)]
        for start in range(0, len(rows), self.size):
            chunk = rows[start:start + self.size]
            for row, (sequence, position) in enumerate(chunk):
                self.batch.token[row] = self.random.randrange(self.vocabulary)
                self.batch.pos[row] = position
                self.batch.seq_id[row][0] = sequence
                self.batch.logits[row] = position == end - 1
            self.batch.n_tokens = len(chunk)
            if status := api.llama_decode(self.context, self.batch):
                raise SystemExit(f"llama_decode ended with {status}")
        synchronize(self.context)

    def generate(self, past: int, tokens: int) -> None:
        for position in range(past, past + tokens):
            self.prompt(position, 1)

    def back_to(self, past: int) -> None:
        for sequence in self.sequences:
            kv_cache_seq_rm(self.context, sequence, past, -1)

    def free(self) -> None:
        api.llama_batch_free(self.batch)
        api.llama_free(self.context)


def measure(model: int, args: argparse.Namespace, test: dict) -> list[int]:
    """Warms up, fills the sequences up to the test's depth and times the repetitions, in nanoseconds."""
    bench = Bench(model, args, test)
    depth, prompt, generated = test["n_depth"], test["n_prompt"], test["n_gen"]
    bench.prompt(0, prompt)
    bench.generate(prompt, min(generated, 1))
    bench.back_to(0)
    bench.prompt(0, depth)
    samples = []
    for _ in range(args.repetitions):
        bench.back_to(depth)
        start = time.perf_counter_ns()
        bench.prompt(depth, prompt)
        bench.generate(depth + prompt, generated)
        samples.append(time.perf_counter_ns() - start)
    bench.free()
    return samples


def tests(args: argparse.Namespace):
    """All combinations of the lists, in llama-bench's order."""
    shapes = [(prompt, 0) for prompt in args.n_prompt if prompt] + [(0, tokens) for tokens in args.n_gen if tokens]
    for threads in args.threads:
        for depth in args.n_depth:
            for prompt, generated in shapes:
                for parallel in args.n_parallel:
                    yield {"n_threads": threads, "n_prompt": prompt, "n_gen": generated, "n_depth": depth,
                           "n_parallel": parallel}


def processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def subject(model: int, args: argparse.Namespace) -> dict:
    """What all tests of a call have in common."""
    description = ctypes.create_string_buffer(256)
    api.llama_model_desc(model, description, len(description))
    build = "ik-llama-cpp-python " + importlib.metadata.version("ik-llama-cpp-python")
    if "IK_LLAMA_CPP_LIB_PATH" in os.environ:
        build += ", another library"
    return {"build_commit": build, "build_number": 0, "cpu_info": processor(), "gpu_info": "", "backends": "CPU",
            "model_filename": args.model, "model_type": description.value.decode(), "model_size": model_size(model),
            "model_n_params": model_n_params(model), "n_batch": args.batch_size, "n_ubatch": args.ubatch_size,
            "type_k": "f16", "type_v": "f16", "repack": bool(args.run_time_repack)}


def result(about: dict, test: dict, samples: list[int]) -> dict:
    tokens = test["n_parallel"] * (test["n_prompt"] + test["n_gen"])
    speeds = [tokens * 1e9 / sample for sample in samples]

    def spread(values: list[float]) -> float:
        return statistics.stdev(values) if len(values) > 1 else 0.0

    return {**about, **test, "avg_ns": round(statistics.mean(samples)), "stddev_ns": round(spread(samples)),
            "avg_ts": statistics.mean(speeds), "stddev_ts": spread(speeds), "samples_ns": samples,
            "samples_ts": speeds}


def main() -> None:
    args = arguments()
    # The library's log would hide what the caller has to see; the reference has to live as long as the library.
    silent = LOG(lambda level, text, data: None)
    log_set(silent, None)
    api.llama_backend_init()
    model = load(args)
    about = subject(model, args)
    results = [{"test_time": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                **result(about, test, measure(model, args, test))} for test in tests(args)]
    api.llama_free_model(model)
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
