#!/usr/bin/env python3
"""Compares training end to end with PyTorch and Opacus: same model, data set and (ε, δ), in one run.

    python3 peers/e2e.py [--model DIR] [--train FILE] [--validation FILE] [--lot N] [--steps N] [--clip C] [--rate R]
                         [--epsilon E] [--examples N] [--max-length N] [--micro-batch N] [--threads N] [--keep]
                         [--contenders NAME ...] [--json FILE] [--muffle PROGRAM]
    python3 peers/e2e.py --check

A Hugging Face Llama is trained on E2E: ` source <bos> target <eos>`, with the source masked. The loss
of an example is the mean over its target. Examples of --max-length tokens or more are left out. All
contenders use Adam with the same rate, betas .9 and .999 and no decay. The private ones draw lots by
Poisson sampling, clip each example's gradient to the same norm, and add noise with the same sigma,
which our run calibrates to epsilon at delta = 1/(10 N). The others draw exactly --lot examples in
each step. The script checks that all see the same examples: their number, the number of target
tokens of the validation data, and the NLL of the untrained model.

Contenders, each in its own process, one after the other:
* ours: `muffle train` with dp-adam, and the head tied to the embedding as in the model's files
* ours-own-head: the same with an untied head, as `ghost` needs it
* ours-plain: `muffle train` with adam, not private
* torch: PyTorch, eager, not private, in micro-batches
* hooks: Opacus, per-example gradients by hooks. Opacus has no rule for LlamaRMSNorm; this script adds
  one. Without it, Opacus uses functorch (hooks-functorch-norm)
* ghost: Opacus, ghost clipping, with the same rule and an untied head, because it refuses tied weights
* fast: Opacus, fast gradient clipping without ghost norms; functorch: all per-example gradients by
  functorch. They run only if named
The remaining mode of Opacus, ew, fails: Expanded Weights of PyTorch cannot handle the product in
LlamaRMSNorm. --check shows which modes work, and compares their clipped sums with a loop over single
examples.

The Python contenders are configured for speed: no logits where nothing is predicted, micro-batches
of examples of similar length, a fused Adam, no attention mask; and with --keep, freed memory is kept
(see step.py).

The first step is a warm-up. Our program shows each finished step on a terminal. The script provides
one and records the times. The last step is shown only after the evaluation that follows it, so the
timed steps are the second to the last but one, for all contenders. Examples/s is the (expected) lot
size, times the timed steps, divided by their seconds. Under Poisson sampling it varies with the
sizes of lots, which our program does not reveal, by one part in the root of the expected number of
examples. NLL is per target token on the first --examples of the validation data. Peak memory is what
the kernel reports for each process, including libraries, data and evaluation.
"""

import argparse
import importlib.metadata
import json
import math
import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile
import termios
import time

import _venv

_venv.ensure({"torch": "torch==2.15.0", "transformers": "transformers==5.22.2", "opacus": "opacus==1.6.0"}, "torch")

from step import KEEP, QUIET, busy, idle

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORKER = pathlib.Path(__file__).resolve().parent / "_torch_e2e.py"

OURS = {"ours": {}, "ours-own-head": {"model.own_head": "true"},
        "ours-plain": {"optimizer.name": "adam", "privacy.sampling": "fixed"}}
PYTHON = ["torch", "hooks", "ghost", "fast", "functorch", "hooks-functorch-norm"]
DEFAULT = ["ours", "ours-own-head", "ours-plain", "torch", "hooks", "ghost"]
OPACUS = PYTHON[1:]
OWN_HEAD = ["ghost", "ours-own-head"]
RATIOS = [("ours", "torch"), ("ours", "ours-plain"), ("ours-plain", "torch"), ("hooks", "torch"), ("ghost", "torch")]


def toml(options, validation, changes):
    """A RUN.toml."""
    keys = {
        "model.source": json.dumps(str(options.model)), "data.train": json.dumps(str(options.train)),
        "data.validation": json.dumps(str(validation)), "data.format": '"e2e"', "data.max_length": options.max_length,
        # The others remove rows that are too long. The data set is public.
        "data.dropped_rows": '"public"',
        "privacy.epsilon": float(options.epsilon), "optimizer.name": '"dp-adam"',
        "optimizer.learning_rate": options.rate, "optimizer.clip": options.clip, "optimizer.betas": [0.9, 0.999],
        "training.lot_size": options.lot, "training.steps": options.steps,
        "training.threads": options.threads, "training.checkpoint_every": options.steps,
        "evaluation.every": options.steps, "evaluation.examples": options.examples, "evaluation.samples": 0,
        "evaluation.score": "false",
    }
    keys |= {key: value if value in ("true", "false") else json.dumps(value) for key, value in changes.items()}
    if keys["optimizer.name"] == '"adam"':
        del keys["privacy.epsilon"], keys["optimizer.clip"]
    sections = {}
    for key, value in keys.items():
        section, name = key.split(".")
        sections.setdefault(section, []).append(f"{name} = {value}\n")
    return "\n".join(f"[{section}]\n{''.join(lines)}" for section, lines in sections.items())


def ours(name, options, validation, folder):
    """Runs our program with a terminal as standard error, and records when each step is shown."""
    run, out = folder / f"{name}.toml", folder / name
    run.write_text(toml(options, validation, OURS[name]))
    words = [str(options.muffle), "train", str(run), "--out", str(out), "--json"]
    ear, mouth = pty.openpty()
    termios.tcsetwinsize(mouth, (50, 250))  # a narrow terminal would truncate the line
    answer = folder / f"{name}.json"
    with open(answer, "w") as file:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=mouth,
                                   env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"})
    os.close(mouth)
    said, shown = "", {}
    while True:
        try:
            more = os.read(ear, 65536)
        except OSError:  # the program has closed its end
            break
        now, said = time.perf_counter(), said + more.decode(errors="replace")
        for step in re.findall(rf"step (\d+)/{options.steps} ", said):
            shown.setdefault(int(step), now)
    os.close(ear)
    # Peak memory as the kernel reports it. It starts from that of this script, which is small,
    # because it does not import PyTorch.
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{said}\n{' '.join(words)}\nexit code {process.returncode}")
    missing = set(range(1, options.steps)) - set(shown)
    if missing:
        sys.exit(f"{said}\n{' '.join(words)}\nmissing steps in the output: {sorted(missing)}")
    found, looks = json.loads(answer.read_text()), (out / "history.jsonl").read_text().splitlines()
    looks = {look["step"]: look["nll"] for look in map(json.loads, looks)}
    portion = re.search(r"(\d+) records at a time", said)
    trained = re.search(r"(\d+) of \d+ parameters are trained", said)
    # The first of these is the second step.
    steps = [shown[step] - shown[step - 1] for step in range(2, options.steps)]
    return {"records": found["records"], "validation_tokens": found["metrics"]["tokens"],
            "parameters": int(trained[1]), "micro_batch": int(portion[1]), "before": looks[0],
            "after": looks[options.steps], "seconds": steps, "peak": usage.ru_maxrss / 1024,
            "epsilon": found["epsilon"], "delta": found["delta"], "sigma": found["sigma"]}


def python(name, options, validation, promise):
    job = {"contender": name, "model": str(options.model), "train": str(options.train), "validation": str(validation),
           "limit": options.max_length, "examples": options.examples, "threads": options.threads,
           "lot": options.lot, "steps": options.steps, "clip": options.clip, "rate": options.rate,
           "micro_batch": options.micro_batch, "own_head": name in OWN_HEAD, "seed": options.seed,
           "sigma": promise.get("sigma"), "delta": promise.get("delta")}
    done = subprocess.run([sys.executable, str(WORKER), json.dumps(job)], stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": str(options.threads), "TOKENIZERS_PARALLELISM": "false",
                               "HF_HUB_OFFLINE": "1", **(KEEP if options.keep else {})})
    if done.returncode != 0:
        return {"failed": f"exit code {done.returncode}"}
    found = json.loads(done.stdout)
    found["warm"], found["peak"] = found["seconds"][0], found.pop("peak_kb") / 1024
    found["seconds"], found["lots"] = found["seconds"][1:-1], found["lots"][1:-1]
    return {**found, "micro_batch": options.micro_batch}


def same(found):
    """Exits unless all contenders saw the same examples and started from the same model."""
    for key in ("records", "validation_tokens"):
        values = {name: one[key] for name, one in found.items()}
        if len(set(values.values())) > 1:
            sys.exit(f"{key} differ: {values}")
    before = {name: one["before"] for name, one in found.items()}
    if max(before.values()) - min(before.values()) > 1e-4:
        sys.exit(f"the untrained models differ: {before}")


def show(found, options):
    print("| contender | examples/s | s/step | peak MiB | NLL before | NLL after | ε | head | parameters | micro-batch |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, one in found.items():
        if "failed" in one:
            print(f"| {name} | {one['failed']} | | | | | | | | |")
            continue
        epsilon = f"{one['epsilon']:.3f}" if isinstance(one.get("epsilon"), float) else "∞"
        print(f"| {name} | {one['rate']:.2f} | {options.lot / one['rate']:.3f} | {one['peak']:.0f} | {one['before']:.4f} "
              f"| {one['after']:.4f} | {epsilon} | {'own' if name in OWN_HEAD else 'tied'} "
              f"| {one['parameters']} | {one['micro_batch']} |")
    found = {name: one for name, one in found.items() if "failed" not in one}
    opacus = [name for name in OPACUS if name in found]
    pairs = [("ours-own-head" if name in OWN_HEAD else "ours", name) for name in opacus]
    print("\n| ratio | examples/s | peak memory |")
    print("|---|---|---|")
    for a, b in pairs + RATIOS:
        if a in found and b in found:
            print(f"| {a} / {b} | {found[a]['rate'] / found[b]['rate']:.2f} | {found[a]['peak'] / found[b]['peak']:.2f} |")
    if opacus and "ours" in found:
        fast = max(opacus, key=lambda name: found[name]["rate"])
        print(f"| ours / fastest mode of Opacus ({fast}) | {found['ours']['rate'] / found[fast]['rate']:.2f} "
              f"| {found['ours']['peak'] / found[fast]['peak']:.2f} |")
    print(flush=True)


def main():
    shared = ROOT.parent / "shared"
    options = argparse.ArgumentParser(description="Compare training end to end with PyTorch and Opacus.")
    options.add_argument("--model", type=pathlib.Path, default=shared / "models/stories15M", metavar="DIR")
    options.add_argument("--train", type=pathlib.Path, default=shared / "data/e2e/src1_train.txt", metavar="FILE")
    options.add_argument("--validation", type=pathlib.Path, default=shared / "data/e2e/src1_valid.txt", metavar="FILE")
    options.add_argument("--lot", type=int, default=64, help="the expected number of examples in a lot")
    options.add_argument("--steps", type=int, default=6, help="steps; the first and the last are not timed")
    options.add_argument("--clip", type=float, default=0.1)
    options.add_argument("--rate", type=float, default=1e-4,
                         help="the learning rate; at 1e-3 the first step overshoots and later steps are random")
    options.add_argument("--epsilon", type=float, default=8.0)
    options.add_argument("--examples", type=int, default=256, help="validation examples of the NLL")
    options.add_argument("--max-length", type=int, default=100, help="examples must be shorter")
    options.add_argument("--micro-batch", type=int, default=16, help="of the Python contenders; ours chooses its own")
    options.add_argument("--threads", type=int, default=os.cpu_count())
    options.add_argument("--seed", type=int, default=0, help="of the Python contenders; ours has none")
    options.add_argument("--keep", action="store_true", help="the Python contenders keep freed memory")
    options.add_argument("--contenders", nargs="+", default=DEFAULT, choices=[*OURS, *PYTHON])
    options.add_argument("--json", metavar="FILE", help="write the figures to this file")
    options.add_argument("--muffle", metavar="PROGRAM", help="measure this program instead of building one")
    options.add_argument("--check", action="store_true", help="check the modes of Opacus and exit")
    options = options.parse_args()
    options.model, options.train, options.validation = (
        path.resolve() for path in (options.model, options.train, options.validation))
    if options.check:
        import _torch_e2e
        _torch_e2e.check(options.model, options.validation, options.max_length)
        return
    if options.steps < 3:
        sys.exit("--steps must be at least 3: the first and the last are not timed")
    names = [name for name in [*OURS, *PYTHON] if name in options.contenders]
    if set(names) & set(OPACUS) and not {"ours", "ours-own-head"} & set(names):
        sys.exit("Opacus uses the sigma of our run: add ours or ours-own-head to --contenders")
    if options.muffle is None:
        subprocess.run(["cargo", "build", "--release"], cwd=ROOT, check=True)
        options.muffle = ROOT / "target/release/muffle"
    options.muffle = pathlib.Path(options.muffle).resolve()

    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "opacus")}
    bare = {modules: idle(modules) for modules in ("torch, transformers.models.llama.modeling_llama", "torch, opacus")}
    timed = options.steps - 2
    print(f"{', '.join(f'{name} {version}' for name, version in versions.items())}; {os.cpu_count()} cores, "
          f"{options.threads} threads{'; freed memory kept' if options.keep else ''}.")
    print(f"{options.model.name}; lots of {options.lot}; {options.steps} steps, {timed} of them timed; clip "
          f"{options.clip}, rate {options.rate}.")
    print("Peak MiB of a Python process that only imports: "
          f"{'; '.join(f'{modules}: {peak:.0f}' for modules, peak in bare.items())}.\n", flush=True)
    found, promise, others = {}, {}, []
    with tempfile.TemporaryDirectory(prefix="muffle-e2e-") as folder:
        folder = pathlib.Path(folder)
        # Our program evaluates the whole file at the end, which is not part of this comparison.
        validation = folder / "validation.txt"
        with options.validation.open() as lines:
            validation.write_text("".join(line for line, _ in zip(lines, range(2 * options.examples))))
        for name in names:
            others.append(busy())
            print(f"{name} …", file=sys.stderr, flush=True)
            if name in OURS:
                found[name] = ours(name, options, validation, folder)
                if name != "ours-plain":
                    promise = {key: found[name][key] for key in ("sigma", "delta")}
            else:
                found[name] = python(name, options, validation, promise)
            if "failed" not in found[name]:
                found[name]["rate"] = options.lot * timed / sum(found[name]["seconds"])
    same({name: one for name, one in found.items() if "failed" not in one})
    first = next(one for one in found.values() if "failed" not in one)
    print(f"{first['records']} examples. "
          + (f"ε = {options.epsilon} at δ = {promise['delta']:.3e} needs σ = {promise['sigma']:.4f}. " if promise else "")
          + f"Poisson sampling makes examples/s vary by {100 / math.sqrt(options.lot * timed):.0f} %.\n")
    show(found, options)
    if max(others) > QUIET:
        print(f"Other work took up to {100 * max(others):.0f} % of the machine: these times are unreliable.\n")
    if options.json:
        given = {key: str(value) if isinstance(value, pathlib.Path) else value for key, value in vars(options).items()}
        pathlib.Path(options.json).write_text(json.dumps(
            {"versions": versions, "options": given, "idle": bare, "busy": others, "timed_steps": timed,
             "promise": promise, "contenders": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
