#!/usr/bin/env python3
"""Compares speed and memory of one training step with PyTorch and Opacus, on the same model in one run.

    python3 peers/step.py [--cases PRESET:BATCHxSEQ ...] [--rounds N] [--steps N] [--warmup N] [--threads N]
                          [--keep] [--skip CONTENDER ...] [--json FILE] [--muffle PROGRAM]
    python3 peers/step.py --check

A step is forward and backward. The private contenders also clip each example's gradient to norm 1
and sum. There is no noise and no update of the weights; the batch is the same each time. The model
is GPT-2 in float32 with an untied head, because ghost clipping of Opacus refuses tied weights. An
example is one sequence; its loss is the mean over its next ids.

Contenders:
* torch: PyTorch, eager, not private
* hooks: Opacus, per-example gradients by hooks, and DPOptimizer.clip_and_accumulate
* ghost: Opacus, ghost clipping (two backward passes)
* ours-plain, ours: `muffle bench step`, not private and private; `cargo build --release` builds the
  program first, unless --muffle names one

They run in rounds, in a rotating order, one at a time. The Python contenders are processes that live
through all rounds of a case; ours is restarted in each round and times its own steps. No time
includes the construction of the model. For a Python contender the minimum and median are over all
timed steps; for ours, the minimum of the minima and the median of the medians. Peak memory is what
the kernel reports for each process, including libraries and the construction of the model; the
memory of an idle PyTorch is printed beside it.

PyTorch returns large tensors to the system, which zeroes their pages again in each step. This takes
a considerable part of its time. --keep configures glibc so that the Python contenders keep freed
memory: they are then faster and larger.

--check compares the summed gradients of the Python contenders with a loop over single examples, on
a tiny model.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import _venv

_venv.ensure({"torch": "torch==2.15.0", "opacus": "opacus==1.6.0"}, "torch")

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORKER = pathlib.Path(__file__).resolve().parent / "_torch_step.py"

PRESETS = {
    "gpt2-s": {"layers": 4, "width": 256, "heads": 4, "inner": 1024, "vocabulary": 8192, "positions": 1024},
    "gpt2": {"layers": 12, "width": 768, "heads": 12, "inner": 3072, "vocabulary": 50257, "positions": 1024},
}
PYTHON = ["torch", "hooks", "ghost"]
KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(10**12), "MALLOC_TOP_PAD_": str(64 * 2**20),
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
OURS = {"ours-plain": "plain", "ours": "private"}
# Largest share of the machine that other work may take. OpenMP threads wait for each other by
# spinning, and lose far more time than the other work takes.
QUIET = 0.1
RATIOS = [
    ("ours / ours-plain", "ms", "ours", "ours-plain"), ("ours / torch", "ms", "ours", "torch"),
    ("ours-plain / torch", "ms", "ours-plain", "torch"), ("hooks / ours", "ms", "hooks", "ours"),
    ("ghost / ours", "ms", "ghost", "ours"), ("hooks / torch", "ms", "hooks", "torch"),
    ("ghost / torch", "ms", "ghost", "torch"), ("memory: ours / ours-plain", "peak", "ours", "ours-plain"),
    ("memory: ours / torch", "peak", "ours", "torch"), ("memory: hooks / ours", "peak", "hooks", "ours"),
    ("memory: ghost / ours", "peak", "ghost", "ours"),
]


def case(text):
    try:
        preset, size = text.split(":")
        batch, seq = map(int, size.split("x"))
        if not (preset in PRESETS and batch > 0 and 1 < seq <= PRESETS[preset]["positions"]):
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected PRESET:BATCHxSEQ with a preset of {', '.join(PRESETS)}; got {text}")
    return preset, batch, seq


def busy():
    """Share of the machine that other work uses while no contender runs, measured for a second."""
    def read():
        with open("/proc/stat") as stat:
            ticks = list(map(int, stat.readline().split()[1:9]))
        return sum(ticks), ticks[3] + ticks[4]  # all; idle and waiting for I/O
    total, idle = read()
    time.sleep(1)
    later, later_idle = read()
    return 1 - (later_idle - idle) / max(later - total, 1)


class Worker:
    """A Python contender in its own process, which waits for its turns."""

    def __init__(self, contender, preset, batch, seq, threads, keep):
        shape = json.dumps({**PRESETS[preset], "batch": batch, "seq": seq})
        self.contender = contender
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), contender, shape, str(threads)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), **(KEEP if keep else {})})
        self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.contender}: exit code {self.process.wait()}")
        return line

    def turn(self, warmup, steps):
        self.process.stdin.write(f"{warmup} {steps}\n")
        self.process.stdin.flush()
        found = json.loads(self.read())
        return {"ms": found["ms"], "peak": found["peak_kb"] / 1024}

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Ours:
    def __init__(self, program, mode, preset, batch, seq, threads):
        self.words = [str(program), "bench", "step", "--model", preset, "--batch", str(batch), "--seq", str(seq),
                      "--mode", mode, "--threads", str(threads), "--json"]

    def turn(self, warmup, steps):
        process = subprocess.Popen(self.words, stdout=subprocess.PIPE, text=True)
        answer = process.stdout.read()
        # Peak memory as the kernel reports it. It starts from that of this script, which is small,
        # because it does not import PyTorch.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"{' '.join(self.words)}\nexit code {process.returncode}")
        found = json.loads(answer)
        return {"ms": [], "min": found["ms_min"], "median": found["ms_median"], "peak": usage.ru_maxrss / 1024,
                "said": found}


def measure(preset, batch, seq, options, program):
    """Returns the rounds of each contender with their statistics, and the share of other work."""
    with contextlib.ExitStack() as stack:
        contenders = {}
        for name in PYTHON:
            if name not in options.skip:
                contenders[name] = Worker(name, preset, batch, seq, options.threads, options.keep)
                stack.callback(contenders[name].close)
        for name, mode in OURS.items():
            if name not in options.skip:
                contenders[name] = Ours(program, mode, preset, batch, seq, options.threads)
        names, turns = list(contenders), {name: [] for name in contenders}
        others = []
        for i in range(options.rounds):
            others.append(busy())
            for name in names[i % len(names):] + names[:i % len(names)]:
                turns[name].append(contenders[name].turn(options.warmup, options.steps))
    found = {}
    for name, rounds in turns.items():
        steps = [ms for turn in rounds for ms in turn["ms"]]
        found[name] = {
            "ms_min": min(steps or [turn["min"] for turn in rounds]),
            "ms_median": statistics.median(steps or [turn["median"] for turn in rounds]),
            "peak": max(turn["peak"] for turn in rounds), "rounds": rounds,
        }
    return found, max(others)


def idle(modules):
    """Peak memory in MiB of a Python process that only imports the modules."""
    script = f"import {modules}\nprint(next(l.split()[1] for l in open('/proc/self/status') if l.startswith('VmHWM')))"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, capture_output=True, text=True)
    return int(done.stdout) / 1024


def show(found):
    print("| contender | ms min | ms median | peak MiB |")
    print("|---|---|---|---|")
    for name, one in found.items():
        print(f"| {name} | {one['ms_min']:.1f} | {one['ms_median']:.1f} | {one['peak']:.0f} |")
    print("\n| ratio | of minima | of medians |")
    print("|---|---|---|")
    for title, what, upper, lower in RATIOS:
        if upper in found and lower in found:
            a, b = found[upper], found[lower]
            if what == "peak":
                print(f"| {title} | {a['peak'] / b['peak']:.2f} | |")
            else:
                print(f"| {title} | {a['ms_min'] / b['ms_min']:.2f} | {a['ms_median'] / b['ms_median']:.2f} |")
    print(flush=True)


def main():
    options = argparse.ArgumentParser(description="Compare a training step with PyTorch and Opacus.")
    options.add_argument("--cases", type=case, nargs="+", metavar="PRESET:BATCHxSEQ",
                         default=[("gpt2-s", 16, 64), ("gpt2", 4, 100)])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--steps", type=int, default=3, help="timed steps of a Python contender in a round")
    options.add_argument("--warmup", type=int, default=1, help="steps before the timed ones")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--keep", action="store_true", help="the Python contenders keep freed memory")
    options.add_argument("--skip", nargs="+", default=[], choices=[*PYTHON, *OURS])
    options.add_argument("--json", metavar="FILE", help="write the figures to this file")
    options.add_argument("--muffle", metavar="PROGRAM", help="measure this program instead of building one")
    options.add_argument("--check", action="store_true", help="check the gradients of the Python contenders and exit")
    options = options.parse_args()
    if options.rounds < 1 or options.steps < 1:
        sys.exit("--rounds and --steps must be at least 1")
    if options.check:
        import _torch_step
        _torch_step.check()
        return
    program = options.muffle
    if program is None and not set(OURS) <= set(options.skip):
        subprocess.run(["cargo", "build", "--release"], cwd=ROOT, check=True)
        program = ROOT / "target/release/muffle"

    versions = {name: importlib.metadata.version(name) for name in ("torch", "opacus")}
    bare = {modules: idle(modules) for modules in ("torch", "torch, opacus")}
    print(f"{', '.join(f'{name} {version}' for name, version in versions.items())}; {os.cpu_count()} cores, "
          f"{options.threads} threads; {options.rounds} rounds of {options.warmup} + {options.steps} steps"
          f"{'; freed memory kept' if options.keep else ''}.")
    print("Peak MiB of a Python process that only imports: "
          f"{'; '.join(f'{modules}: {peak:.0f}' for modules, peak in bare.items())}.\n")
    figures = []
    for preset, batch, seq in options.cases:
        print(f"{preset}, {batch} examples of {seq}\n", flush=True)
        found, others = measure(preset, batch, seq, options, program)
        show(found)
        if others > QUIET:
            print(f"Other work took {100 * others:.0f} % of the machine before a round: these times are unreliable.\n")
        figures.append({"preset": preset, "batch": batch, "seq": seq, "busy": others, "contenders": found})
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(
            {"versions": versions, "threads": options.threads, "warmup": options.warmup, "keep": options.keep,
             "idle": bare, "cases": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
