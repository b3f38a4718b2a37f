#!/usr/bin/env python3
"""Compares speed and tightness of the accountant with two public ones, on the same queries in one run.

    python3 peers/accounting.py [--repeats N] [--json FILE] [--muffle PROGRAM]

Contenders:
* dp-accounting (Google): PLDAccountant with its default grid of 1e-4, timed inside this process,
  imports excluded.
* prv-accountant (Microsoft): eps_error 0.1 as its documentation suggests, and 0.01, which is closer
  to the tightness of the others and gives the certified interval below; delta_error is delta / 1000.
  Timed inside this process as well.
* ours: `muffle account`, timed as a whole process, which includes process start and argument
  parsing; and `muffle bench account`, timed inside one process. `cargo build --release` builds the
  program first, unless --muffle names one.

The contenders run in turn, in a rotating order, so that a slow moment of the machine affects all.

Exit status 1 if our epsilon is
* below prv-accountant's lower bound (then it claims too much privacy). That bound is proven for
  exact arithmetic, so a relative slack of 1e-9 is allowed for its rounding. It covers only the
  direction "remove", which makes it smaller; or
* more than 0.2 % above dp-accounting (then it wastes privacy).
The same holds for calibration: the noise multiplier must not be refuted by prv-accountant's lower
bound, nor be more than 0.2 % above that of dp-accounting, plus the tolerance given to
dp-accounting.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import _venv

_venv.ensure({"dp_accounting": "dp-accounting==0.6.0", "prv_accountant": "prv-accountant==0.2.0"}, "accounting")

import dp_accounting
from dp_accounting import pld
from prv_accountant import PRVAccountant
from prv_accountant.privacy_random_variables import PoissonSubsampledGaussianMechanism

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROUNDING = 1e-9
LOOSE = 0.002
CALIBRATION_TOLERANCE = 1e-6  # of the noise multiplier: dp-accounting's default; 1e-3 would save few steps

# noise multiplier, sampling rate, steps, delta
QUERIES = [
    (1, 0.01, 1000, 1e-5), (1.5, 0.04, 2250, 1e-5), (1.1, 256 / 60000, 14040, 1e-5),
    (0.6, 1024 / 42061, 410, 1 / 84122), (2, 0.1, 500, 1e-6), (0.8, 0.001, 100000, 1e-7),
    (10, 1, 100, 1e-5), (0.5, 0.01, 1000, 1e-5), (5, 0.5, 200, 1e-5),
    (0.7189, 1024 / 42043, 410, 8e-6), (0.7094, 1024 / 60591, 885, 1e-5), (2.3395 / 7, 1024 / 42043, 410, 8e-6),
]
# epsilon, delta, sampling rate, steps
CALIBRATIONS = [(1, 1e-5, 0.01, 1000), (8, 8e-6, 1024 / 42043, 410), (3, 1e-5, 256 / 60000, 14040), (2, 1e-6, 0.1, 500)]
LONG = (1, 0.001, 10**6, 1e-6)


def event(sigma, q, steps):
    return dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma)), steps)


def by_dp(sigma, q, steps, delta):
    return pld.PLDAccountant().compose(event(sigma, q, steps)).get_epsilon(delta)


def by_prv(eps_error):
    def query(sigma, q, steps, delta):
        """(lower, estimate, upper), or None if prv-accountant fails."""
        prv = PoissonSubsampledGaussianMechanism(noise_multiplier=sigma, sampling_probability=q)
        try:
            accountant = PRVAccountant(prv, eps_error=eps_error, delta_error=delta / 1000, max_self_compositions=steps)
            return tuple(map(float, accountant.compute_epsilon(delta, [steps])))
        except RuntimeError:
            return None
    return query


def muffle(program, command, **options):
    words = [str(program), *command.split()]
    for name, value in options.items():
        words += ["--" + name.replace("_", "-"), repr(value)]
    words += ["--accountant", "pld", "--json"]
    return words


def answer(words, field):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}\nexit code {done.returncode}: {done.stderr}")
    return float(json.loads(done.stdout)[field])


class Timed:
    """An answer with its time, measured inside the process that computed it."""

    def __init__(self, seconds):
        self.answer, self.seconds = None, seconds


def inside_muffle(program, calibration):
    """Ours without process start, as for the Python contenders: the median of queries in one process."""
    def query(*numbers):
        names = ("epsilon", "delta", "sampling_rate", "steps") if calibration else (
            "noise_multiplier", "sampling_rate", "steps", "delta")
        words = muffle(program, "bench account", **dict(zip(names, numbers)))
        return Timed(answer(words, "ms_median") / 1000)
    return query


def by_muffle(program):
    def query(sigma, q, steps, delta):
        words = muffle(program, "account", noise_multiplier=sigma, sampling_rate=q, steps=steps, delta=delta)
        return answer(words, "epsilon")
    return query


def dp_calibration(epsilon, delta, q, steps):
    return dp_accounting.calibrate_dp_mechanism(
        pld.PLDAccountant, lambda sigma: event(sigma, q, steps), epsilon, delta, tol=CALIBRATION_TOLERANCE)


def muffle_calibration(program):
    def query(epsilon, delta, q, steps):
        words = muffle(program, "calibrate", epsilon=epsilon, delta=delta, sampling_rate=q, steps=steps)
        return answer(words, "noise_multiplier")
    return query


def compare(contenders, queries, repeats):
    """Returns for each query the answer of each contender and the seconds of its runs."""
    names = list(contenders)
    rows = [{name: {"seconds": []} for name in names} for _ in queries]
    for turn in range(repeats):
        for i, query in enumerate(queries):
            shift = (turn + i) % len(names)
            for name in names[shift:] + names[:shift]:
                began = time.perf_counter()
                found = contenders[name](*query)
                taken = time.perf_counter() - began
                if isinstance(found, Timed):
                    found, taken = found.answer, found.seconds
                rows[i][name]["seconds"].append(taken)
                rows[i][name]["answer"] = found
    for row in rows:
        for one in row.values():
            one["min"], one["median"] = min(one["seconds"]), statistics.median(one["seconds"])
    return rows


def peak_kilobytes(words):
    """Peak memory of one child.

    A child inherits the high-water mark of the process that starts it, and this process is large. So
    a bare Python process starts the child. Its overhead is that of a program that does nothing.
    """
    script = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL);"
              "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
    return int(subprocess.run([sys.executable, "-S", "-E", "-c", script, *words],
                              check=True, capture_output=True, text=True).stdout)


def number(x):
    return f"{x:.6g}"


def seconds(one):
    return f"{one['min']:.3g} / {one['median']:.3g}"


def times(slow, fast):
    return f"{slow['median'] / fast['median']:.1f}"


def main():
    options = argparse.ArgumentParser(description="Compare the accountant with dp-accounting and prv-accountant.")
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--json", metavar="FILE", help="write the figures to this file")
    options.add_argument("--muffle", metavar="PROGRAM", help="measure this program instead of building one")
    options = options.parse_args()
    program = options.muffle
    if program is None:
        subprocess.run(["cargo", "build", "--release"], cwd=ROOT, check=True)
        program = ROOT / "target/release/muffle"

    faults = []
    bounds = by_prv(0.01)
    rows = compare(
        {"dp": by_dp, "prv 0.1": by_prv(0.1), "prv 0.01": bounds, "ours": by_muffle(program),
         "inside": inside_muffle(program, False)}, QUERIES, options.repeats)
    print("Times are min / median of", options.repeats, "runs in seconds. Ours is measured as a whole process, start "
          "included, and inside one process, as the others.")
    print(f"Versions: dp-accounting {importlib.metadata.version('dp-accounting')}, "
          f"prv-accountant {importlib.metadata.version('prv-accountant')}; {os.cpu_count()} cores.\n")
    print("| noise, rate, steps, delta | ε dp-accounting | ε prv (certified interval) | ε ours | ours − dp, % "
          "| s dp | s prv 0.1 | s prv 0.01 | s ours, process | s ours, query | dp / process | dp / query | prv 0.1 / query |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for query, row in zip(QUERIES, rows):
        dp, coarse, prv, ours, inside = row["dp"], row["prv 0.1"], row["prv 0.01"], row["ours"], row["inside"]
        excess = ours["answer"] / dp["answer"] - 1
        interval = "failed"
        if prv["answer"] is not None:
            low, estimate, high = prv["answer"]
            interval = f"{number(estimate)} ({number(low)} to {number(high)})"
            if not ours["answer"] >= low * (1 - ROUNDING):
                faults.append(f"{query}: ours {ours['answer']} is below the certified lower bound {low}")
        if not excess <= LOOSE:
            faults.append(f"{query}: ours {ours['answer']} is {100 * excess:.3f} % above dp-accounting")
        print(f"| {', '.join(map(number, query))} | {number(dp['answer'])} | {interval} | {number(ours['answer'])} "
              f"| {100 * excess:+.4f} | {seconds(dp)} | {seconds(coarse)} | {seconds(prv)} | {seconds(ours)} "
              f"| {seconds(inside)} | {times(dp, ours)} | {times(dp, inside)} | {times(coarse, inside)} |")

    calibrated = compare(
        {"dp": dp_calibration, "ours": muffle_calibration(program), "inside": inside_muffle(program, True)},
        CALIBRATIONS, options.repeats)
    print(f"\nCalibration; dp-accounting with tol = {CALIBRATION_TOLERANCE:g} and its own bracket (its defaults).\n")
    print("| epsilon, delta, rate, steps | noise dp-accounting | noise ours | ours − dp, % "
          "| s dp | s ours, process | s ours, query | dp / process | dp / query |")
    print("|---|---|---|---|---|---|---|---|---|")
    for query, row in zip(CALIBRATIONS, calibrated):
        epsilon, delta, q, steps = query
        dp, ours, inside = row["dp"], row["ours"], row["inside"]
        bound = bounds(ours["answer"], q, steps, delta)
        if bound is not None and not bound[0] <= epsilon * (1 + ROUNDING):
            faults.append(f"calibration {query}: noise {ours['answer']} costs at least {bound[0]}")
        if not ours["answer"] <= dp["answer"] * (1 + LOOSE) + CALIBRATION_TOLERANCE:
            faults.append(f"calibration {query}: noise {ours['answer']}, dp-accounting finds {dp['answer']}")
        print(f"| {', '.join(map(number, query))} | {number(dp['answer'])} | {number(ours['answer'])} "
              f"| {100 * (ours['answer'] / dp['answer'] - 1):+.4f} | {seconds(dp)} "
              f"| {seconds(ours)} | {seconds(inside)} | {times(dp, ours)} | {times(dp, inside)} |")

    sigma, q, steps, delta = LONG
    words = muffle(program, "account", noise_multiplier=sigma, sampling_rate=q, steps=steps, delta=delta)
    peak, nothing = peak_kilobytes(words), peak_kilobytes(["true"])
    print(f"\nPeak memory of ours at {', '.join(map(number, LONG))}: {peak / 1024:.1f} MiB "
          f"(a program that does nothing shows {nothing / 1024:.1f} MiB in this measurement).")

    if options.json:
        figures = {
            "repeats": options.repeats,
            "queries": [dict(zip(("sigma", "q", "steps", "delta"), query), **row) for query, row in zip(QUERIES, rows)],
            "calibrations": [dict(zip(("epsilon", "delta", "q", "steps"), query), **row)
                             for query, row in zip(CALIBRATIONS, calibrated)],
            "peak_kilobytes_at_a_million_steps": peak,
            "peak_kilobytes_of_nothing": nothing,
            "faults": faults,
        }
        pathlib.Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")
    for fault in faults:
        print("FAULT:", fault, file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
