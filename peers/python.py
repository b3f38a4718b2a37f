#!/usr/bin/env python3
"""Runs all tests of the Python module, and compares it with PyTorch, Opacus and dp-accounting.

    python3 peers/python.py [--skip-tests] [--rounds N] [--steps N] [--threads N] [--json FILE]

It builds the module with `cargo build --release` and uses it in an environment of its own. Speed is
measured in one run, in rounds with a rotating order; what counts are the ratios. The step of private
contenders clips each example's gradient to norm 1 and sums; there is no noise and no update. Times
are the fastest of all rounds, because other work on the machine only adds to them. Peak memory is
that of the whole process.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
import warnings

import _venv

_venv.ensure(
    {
        "torch": "torch==2.15.0",
        "opacus": "opacus==1.6.0",
        "dp_accounting": "dp-accounting==0.6.0",
        "transformers": "transformers",
        "peft": "peft",
        "pytest": "pytest>=8",
    },
    "python",
)

ROOT = pathlib.Path(__file__).resolve().parent.parent
HERE = pathlib.Path(__file__).resolve().parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PACKAGE = TARGET / "python-package"
CONTENDERS = ["torch", "hooks", "ghost", "muffle"]
MODELS = {"gpt2-s": (16, 64), "cnn": (64, 0)}


def install():
    """Builds the module and copies the package beside it."""
    command = ["cargo", "build", "--release", "--locked", "--package", "muffle-python"]
    subprocess.run(command, cwd=ROOT, check=True)
    shutil.rmtree(PACKAGE, ignore_errors=True)
    shutil.copytree(ROOT / "crates/python/python/muffle", PACKAGE / "muffle", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    library = next(TARGET / "release" / name for name in ("lib_muffle.so", "lib_muffle.dylib") if (TARGET / "release" / name).exists())
    shutil.copy(library, PACKAGE / "muffle/_muffle.abi3.so")
    sys.path.insert(0, str(PACKAGE))
    os.environ["PYTHONPATH"] = str(PACKAGE)


class Worker:
    """A process of _python_step.py."""

    def __init__(self, contender, model, batch, seq, threads):
        command = [sys.executable, HERE / "_python_step.py", contender, model, batch, seq, threads]
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline().strip() != "ready":
            sys.exit(f"{contender} on {model}: did not start")

    def steps(self, warmup, steps):
        self.process.stdin.write(f"{warmup} {steps}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def steps(rounds, count, threads):
    """Milliseconds and megabytes of a step, by model and contender."""
    figures = {}
    for model, (batch, seq) in MODELS.items():
        workers = {name: Worker(name, model, batch, seq, threads) for name in CONTENDERS}
        times, peaks = {name: [] for name in CONTENDERS}, {}
        for turn in range(rounds):
            order = CONTENDERS[turn % len(CONTENDERS) :] + CONTENDERS[: turn % len(CONTENDERS)]
            for name in order:
                answer = workers[name].steps(2 if turn == 0 else 1, count)
                times[name] += answer["ms"]
                peaks[name] = answer["peak_mb"]
        for worker in workers.values():
            worker.close()
        figures[model] = {
            name: {"ms_min": min(times[name]), "ms_median": statistics.median(times[name]), "peak_mb": peaks[name]}
            for name in CONTENDERS
        }
    return figures


def fastest(call, rounds):
    """Seconds of the fastest of several calls."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return min(taken)


def accounting(rounds):
    """Seconds of the same computations with Muffle and others."""
    import dp_accounting
    from dp_accounting import pld
    from opacus.accountants.utils import get_noise_multiplier

    import muffle
    import muffle.opacus

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        muffle.opacus.register()

    def theirs():
        event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
        return pld.PLDAccountant().compose(event, 1000).get_epsilon(1e-5)

    def ours():
        run = {"noise_multiplier": 1.0, "sampling_rate": 0.01, "steps": 1000}
        return muffle.account(**run, delta=1e-5, accountant="pld").epsilon

    def calibrated(accountant):
        promise = {"target_epsilon": 3.0, "target_delta": 1e-5, "sample_rate": 0.01, "steps": 1000}
        return get_noise_multiplier(**promise, accountant=accountant)

    def calls():
        for _ in range(1000):
            muffle.Event.gaussian(1.0, sampling_rate=0.01)

    return {
        "call_us": fastest(calls, rounds) * 1e3,
        "pld": {"muffle": fastest(ours, rounds), "dp-accounting": fastest(theirs, rounds)},
        "pld_epsilon": {"muffle": ours(), "dp-accounting": theirs()},
        "calibration": {
            "muffle": fastest(lambda: calibrated("muffle"), rounds),
            "prv": fastest(lambda: calibrated("prv"), rounds),
        },
        "calibration_sigma": {"muffle": calibrated("muffle"), "prv": calibrated("prv")},
    }


def show(figures):
    """Prints figures and ratios."""
    for model, rows in figures["steps"].items():
        batch, seq = MODELS[model]
        print(f"\n{model}, batch {batch}{f' x {seq}' if seq else ''}")
        for name, row in rows.items():
            print(f"  {name:8} {row['ms_min']:9.1f} ms (median {row['ms_median']:.1f}) {row['peak_mb']:8.0f} MB")
        opacus = min(rows["hooks"]["ms_min"], rows["ghost"]["ms_min"])
        ours = rows["muffle"]
        print(f"  muffle / torch: {ours['ms_min'] / rows['torch']['ms_min']:.2f} x the time")
        print(f"  faster Opacus mode / muffle: {opacus / ours['ms_min']:.2f} x the time")
        print(f"  muffle / ghost: {ours['peak_mb'] / rows['ghost']['peak_mb']:.2f} x the memory")
    costs = figures["accounting"]
    print(f"\na call: {costs['call_us']:.1f} µs")
    for name, other in (("pld", "dp-accounting"), ("calibration", "prv")):
        pair = costs[name]
        print(f"{name}: {other} / muffle: {pair[other] / pair['muffle']:.0f} x ({1e3 * pair['muffle']:.2f} ms)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skip-tests", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json")
    options = parser.parse_args()
    install()
    if not options.skip_tests:
        # All tests run here: one that is skipped is a failure.
        command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
        output = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE)
        print(output.stdout)
        if output.returncode or " skipped" in output.stdout:
            sys.exit("tests failed or were skipped")
    figures = {
        "steps": steps(options.rounds, options.steps, options.threads),
        "accounting": accounting(options.rounds),
    }
    show(figures)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
