#!/usr/bin/env python3
"""Generates crates/optim/tests/golden: trajectories of every optimizer, implemented again in plain numpy.

    python3 peers/golden_optim.py [CASE ...]

Needs numpy; if it is missing, it creates peers/.venv-optim and restarts there.

The problem. A unit is a tensor, or a pair A (m x r), B (n x r) that represents A Bᵀ. Example i has
the loss ½ Σ s·(unit − target_i)², so its gradient with respect to a unit is s·(unit − target_i). The
twelve gradient norms differ by more than a factor of ten. All random numbers are inputs: they are
drawn here, rounded to float32 and stored.

A file has
* script, case, numpy, config (every hyperparameter; nothing is left to a default)
* tensors      name, shape, role (weight, bias, embedding; factor_a, factor_b, head)
* units        the indices of the tensors of each unit: one, or those of A and B
* curvature    s of each unit, flat (row-major, as everything)
* targets      of each example, each unit
* initial      each tensor
* lots         of each step, the indices of its examples; one lot is empty
* batch        the public divisor B
* noise        of each step, each tensor: standard normal numbers
* probes       Muon with correction: of each step, each Muon matrix (in the order of the tensors), each j
* probe_lots   HyFree: of each probe, the examples whose losses it sums
* loss_noise   HyFree: of each probe, one standard normal number a point, in the order x = 0, +η, −η, +2η, −2η
* rates        the learning rate of each step; an input, except for HyFree, which computes it
* released     of each step, each tensor: the noisy divided release, in its coordinates
* expected     of each step, each tensor: its value after the step
* debug        further values that may help to find a difference; incomplete. Muon: `matrices` are
               the tensors that it updates, `blocks` the tensors of each clip block, `probe_widths`
               the standard deviations of the probes at the point of evaluation (with the normalizer
               frobenius always at the average: the scale does not change the result)
* float32      the largest difference in `expected` when every release and every value is rounded to
               float32 at each step: the order of magnitude by which a correct single-precision
               implementation may differ

Inputs are written as the shortest decimals that round to the same float32, the rest with nine
significant digits.

The code is deliberately simple: dense matrices, loops over examples, and no identity that the paper
of the algorithm does not state. Quantities that can be computed cheaply in another way are compared,
and the run fails if they differ.
"""

import json
import math
import pathlib
import re
import sys

import _venv

_venv.ensure({"numpy": "numpy==2.4.6"}, "optim")

import numpy as np

OUT = pathlib.Path(__file__).resolve().parent.parent / "crates/optim/tests/golden"
LIMIT = 250_000  # bytes of a file
STEPS = 25
EXAMPLES = 12
BATCH = 5
EMPTY, FULL = 6, 10  # the steps, from 1, whose lots are empty and full


def same(a, b, what, tolerance=1e-9):
    """Fails unless two computations of one quantity agree."""
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    worst = np.abs(a - b).max(initial=0.0)
    if a.shape != b.shape or not worst <= tolerance * max(1.0, np.abs(b).max(initial=0.0)):
        sys.exit(f"{what}: two computations differ by {worst}")


def f32(x):
    return np.asarray(x).astype(np.float32).astype(np.float64)


def length(parts):
    """The Euclidean norm of several arrays taken as one vector."""
    return math.sqrt(sum(float((x * x).sum()) for x in parts))


# ---- The problem --------------------------------------------------------------------------------------------------

TENSORS = [("w_wide", (3, 7), "weight"), ("w_tall", (6, 4), "weight"), ("w_square", (5, 5), "weight"),
           ("bias", (4,), "bias"), ("embed", (6, 3), "embedding")]
UNITS = [[0], [1], [2], [3], [4]]

PRISM_TENSORS = [("first.a", (7, 2), "factor_a"), ("first.b", (5, 2), "factor_b"),
                 ("second.a", (8, 3), "factor_a"), ("second.b", (6, 3), "factor_b"),
                 ("head.weight", (3, 4), "head"), ("head.bias", (3,), "head")]
PRISM_UNITS = [[0, 1], [2, 3], [4], [5]]

# More columns in [A, U_A] than rows.
NARROW_TENSORS = [("only.a", (4, 3), "factor_a"), ("only.b", (9, 3), "factor_b")]
NARROW_UNITS = [[0, 1]]


class Problem:
    def __init__(self, seed, tensors, units):
        self.random = random = np.random.default_rng(seed)
        self.tensors, self.units = tensors, units
        self.initial = [f32(random.normal(size=shape) * (0.8 if role.startswith("factor") else 0.5))
                        for _, shape, role in tensors]
        self.curvature, self.targets = [], [[] for _ in range(EXAMPLES)]
        for point in self.points(self.initial):
            self.curvature.append(f32(random.uniform(0.3, 1.5, size=point.shape)))
            common = 0.1 * random.normal(size=point.shape)
            for target, spread in zip(self.targets, np.geomspace(0.05, 4.0, EXAMPLES)):
                target.append(f32(point + common + spread * random.normal(size=point.shape)))
        self.lots = []
        for t in range(1, STEPS + 1):
            self.lots.append(self.lot(0 if t == EMPTY else EXAMPLES if t == FULL else random.integers(1, 10)))
        self.noise = [[self.normal(shape) for _, shape, _ in tensors] for _ in range(STEPS)]

    def lot(self, size):
        return sorted(int(i) for i in self.random.choice(EXAMPLES, size=size, replace=False))

    def normal(self, shape):
        return f32(self.random.normal(size=shape))

    def points(self, theta):
        return [theta[u[0]] if len(u) == 1 else theta[u[0]] @ theta[u[1]].T for u in self.units]

    def loss(self, theta, i):
        return sum(0.5 * float((s * (x - y) ** 2).sum())
                   for s, x, y in zip(self.curvature, self.points(theta), self.targets[i]))

    def unit_gradients(self, theta, i):
        return [s * (x - y) for s, x, y in zip(self.curvature, self.points(theta), self.targets[i])]

    def gradients(self, theta, i):
        """Of example i's loss with respect to each tensor."""
        found = [None] * len(self.tensors)
        for u, g in zip(self.units, self.unit_gradients(theta, i)):
            if len(u) == 1:
                found[u[0]] = g
            else:
                found[u[0]], found[u[1]] = g @ theta[u[1]], g.T @ theta[u[0]]
        return found

    def check(self):
        """Gradients against central differences, and the spread of their norms."""
        direction = [self.normal(shape) for _, shape, _ in self.tensors]
        h, norms = 1e-5, []
        for i in range(EXAMPLES):
            g = self.gradients(self.initial, i)
            norms.append(length(g))
            ahead = self.loss([x + h * d for x, d in zip(self.initial, direction)], i)
            behind = self.loss([x - h * d for x, d in zip(self.initial, direction)], i)
            slope = sum(float((a * d).sum()) for a, d in zip(g, direction))
            same((ahead - behind) / (2 * h), slope, "a slope", 1e-6)
        assert max(norms) > 10 * min(norms), norms
        sizes = [len(lot) for lot in self.lots]
        assert sizes.count(0) == 1 and sizes.count(EXAMPLES) >= 1 and len(set(sizes)) > 6, sizes


class Run:
    """One optimizer on a problem. With `single`, its state is rounded to float32."""

    def __init__(self, problem, config, single):
        self.p, self.c, self.single = problem, config, single
        self.theta = [x.copy() for x in problem.initial]
        self.expected, self.rates, self.released, self.debug = [], [], [], {}
        self.clipped, self.seen = {}, {}  # examples, by block

    def keep(self, parts):
        return [f32(x) for x in parts] if self.single else parts

    def rate(self, t):
        """The public schedule: constant, or linear from the rate down to 0.52 of it, in few digits."""
        return self.c["rate"] * (1.0 if self.c["schedule"] == "constant" else 1.0 - (t - 1) / 50)

    def record(self, theta, rate, released):
        self.theta = self.keep(theta)
        self.expected.append(self.theta)
        self.rates.append(rate)
        self.released.append(released)

    def factor(self, norm, clip, block=0):
        """The clip factor of a gradient with this norm."""
        self.seen[block] = self.seen.get(block, 0) + 1
        self.clipped[block] = self.clipped.get(block, 0) + (norm > clip)
        if self.c["clipping"] == "automatic":
            return clip / (norm + self.c["automatic_gamma"])
        return 1.0 if norm <= clip else clip / norm

    def release(self, t, blocks=None, clips=None, sigmas=None):
        """The noisy divided sum of clipped gradients; each block of tensors is clipped by its own norm."""
        if blocks is None:
            blocks = [list(range(len(self.theta)))]
            clips, sigmas = [self.c["clip"]], [self.c["sigma"]]
        total = [np.zeros_like(x) for x in self.theta]
        for i in self.p.lots[t - 1]:
            g = self.p.gradients(self.theta, i)
            for number, block in enumerate(blocks):
                factor = self.factor(length(g[k] for k in block), clips[number], number)
                for k in block:
                    total[k] = total[k] + factor * g[k]
        for block, clip, sigma in zip(blocks, clips, sigmas):
            for k in block:
                total[k] = (total[k] + sigma * clip * self.p.noise[t - 1][k]) / BATCH
        return self.keep(total)

    def check(self):
        for block in self.seen:
            assert 0 < self.clipped[block] < self.seen[block], f"block {block}: {self.clipped[block]} clipped"


# ---- SGD and Adam -------------------------------------------------------------------------------------------------


class Momentum:
    def __init__(self, mu):
        self.mu, self.v = mu, None

    def direction(self, g):
        self.v = g if self.v is None else [self.mu * v + x for v, x in zip(self.v, g)]
        return self.v


class Adam:
    def __init__(self, beta1, beta2, eps):
        self.beta1, self.beta2, self.eps = beta1, beta2, eps
        self.t, self.m, self.v = 0, None, None

    def moments(self, g):
        """The bias-corrected first and second moments after this gradient."""
        if self.t == 0:
            self.m, self.v = [np.zeros_like(x) for x in g], [np.zeros_like(x) for x in g]
        self.t += 1
        self.m = [self.beta1 * m + (1 - self.beta1) * x for m, x in zip(self.m, g)]
        self.v = [self.beta2 * v + (1 - self.beta2) * x * x for v, x in zip(self.v, g)]
        return ([m / (1 - self.beta1**self.t) for m in self.m], [v / (1 - self.beta2**self.t) for v in self.v])

    def direction(self, g):
        m, v = self.moments(g)
        return [a / (np.sqrt(b) + self.eps) for a, b in zip(m, v)]


def base(c):
    return Momentum(c["momentum"]) if c["base"] == "sgd" else Adam(c["beta1"], c["beta2"], c["eps"])


def run_first_order(run):
    """SGD, Adam, AdamW."""
    c, optimizer = run.c, base(run.c)
    for t in range(1, STEPS + 1):
        g, eta = run.release(t), run.rate(t)
        d = optimizer.direction(g)
        run.record([(1 - eta * c["weight_decay"]) * x - eta * y for x, y in zip(run.theta, d)], eta, g)


def run_adam_bc(run):
    c, optimizer = run.c, base(run.c)
    variance = (c["sigma"] * c["clip"] / BATCH) ** 2
    floored, coordinates = 0, 0
    for t in range(1, STEPS + 1):
        g, eta = run.release(t), run.rate(t)
        m, v = optimizer.moments(g)
        floored += sum(int((b - variance < c["floor"]).sum()) for b in v)
        coordinates += sum(b.size for b in v)
        d = [a / np.sqrt(np.maximum(b - variance, c["floor"])) for a, b in zip(m, v)]
        run.record([x - eta * y for x, y in zip(run.theta, d)], eta, g)
    assert 0.1 * coordinates < floored < 0.9 * coordinates, floored
    run.debug = {"noise_variance": variance, "floored": floored, "of": coordinates}


# ---- Muon ---------------------------------------------------------------------------------------------------------

QUINTIC = (3.4445, -4.7750, 2.0315)


def coefficients(kappa):
    found = [math.factorial(2 * s) / (4**s * math.factorial(s) ** 2) for s in range(kappa + 1)]
    same(found[:5], [1, 1 / 2, 3 / 8, 5 / 16, 35 / 128][:kappa + 1], "the coefficients")
    return found


def newton_schulz(x, c):
    """Q: the normaliser and q iterations."""
    tall = x.shape[0] > x.shape[1]
    y = x.T if tall else x
    size = length([y])
    alpha = max(1.0, size) if c["normalizer"] == "max1" else size
    y = y / alpha if alpha > 0 else 0 * y
    for _ in range(c["iterations"]):
        s = y @ y.T
        if c["polynomial"] == "quintic":
            y = QUINTIC[0] * y + QUINTIC[1] * s @ y + QUINTIC[2] * s @ s @ y
        else:
            y = sum(a * np.linalg.matrix_power(np.eye(len(s)) - s, k)
                    for k, a in enumerate(coefficients(c["kappa"]))) @ y
    check_newton_schulz(x, y.T if tall else y, alpha, c)
    return y.T if tall else y


def check_newton_schulz(x, found, alpha, c):
    """Checks the iteration on the singular values, one by one."""
    u, singular, v = np.linalg.svd(x, full_matrices=False)
    values = singular / alpha
    for _ in range(c["iterations"]):
        before = values
        if c["polynomial"] == "quintic":
            values = QUINTIC[0] * values + QUINTIC[1] * values**3 + QUINTIC[2] * values**5
        else:
            values = sum(a * (1 - values**2) ** k for k, a in enumerate(coefficients(c["kappa"]))) * values
            assert (values >= 0).all() and (values <= 1 + 1e-12).all()
            assert (1 - values**2 <= (1 - before**2) ** (c["kappa"] + 1) + 1e-12).all()
    same(found, u @ np.diag(values) @ v, "Newton-Schulz")


def shape_scale(shape, c):
    rows, cols = shape
    return {"none": 1.0, "rows-over-cols": math.sqrt(max(1.0, rows / cols)),
            "larger-side": 0.2 * math.sqrt(max(rows, cols))}[c["shape_scale"]]


def clip_blocks(tensors, group):
    """The first map: the tensors of each clip block. The last block is the auxiliary one."""
    own = [k for k, (_, shape, role) in enumerate(tensors)
           if len(shape) >= 2 and (group == "all" or role == "weight")]
    return [[k] for k in own] + [[k for k in range(len(tensors)) if k not in own]]


def muon_tensors(tensors, group):
    """The second map: the tensors that Muon updates. Adam updates the others."""
    return [k for k, (_, shape, role) in enumerate(tensors)
            if len(shape) >= 2 and (group in ("all", "paper") or role == "weight")]


def matches(pattern, name):
    """Whether the pattern is the name; each `*` stands for any characters, or none."""
    return re.fullmatch(".*".join(re.escape(part) for part in pattern.split("*")), name) is not None


def block_bounds(tensors, blocks, c):
    """The clip bound and noise multiplier of each block, by the first rule that matches its name."""
    names = [tensors[block[0]][0] for block in blocks[:-1]] + ["auxiliary"]
    clips, weights, used = [], [], set()
    for name in names:
        clip, weight = c["clip"], 1.0
        for number, rule in enumerate(c.get("blocks", [])):
            if matches(rule["tensors"], name):
                clip = clip if rule["clip"] is None else rule["clip"]
                weight = weight if rule["weight"] is None else rule["weight"]
                used.add(number)
                break
        clips.append(clip)
        weights.append(weight)
    assert len(used) == len(c.get("blocks", [])), "a rule that applies to no block"
    sigmas = [c["sigma"] * math.sqrt(sum(weights)) / math.sqrt(weight) for weight in weights]
    same(sum(1 / sigma**2 for sigma in sigmas), 1 / c["sigma"] ** 2, "the joint noise")
    return clips, sigmas


def bias_corrected(point, width, probes, c):
    """2 Q(point) − the mean of Q(point ± width U) over the probes U."""
    o = 2 * newton_schulz(point, c)
    for u in probes:
        around = newton_schulz(point + width * u, c) + newton_schulz(point - width * u, c)
        o = o - around / (2 * len(probes))
    return o


def run_muon(run):
    c, p = run.c, run.p
    blocks = clip_blocks(p.tensors, c["group"])
    matrices = muon_tensors(p.tensors, c["group"])
    others = [k for k in range(len(p.tensors)) if k not in matrices]
    clips, sigmas = block_bounds(p.tensors, blocks, c)
    # The noise of a tensor is that of its clip block, whichever rule updates the tensor.
    nus = {k: sigma * clip / BATCH
           for block, clip, sigma in zip(blocks, clips, sigmas) for k in block}
    at = c.get("evaluate_at", "momentum")
    aux = Adam(c["aux_beta1"], c["aux_beta2"], c["aux_eps"])
    mu = c["momentum"]
    momentum = {k: np.zeros_like(run.theta[k]) for k in matrices}
    norms, widths, apart = [], [], []
    for t in range(1, STEPS + 1):
        g, eta = run.release(t, blocks, clips, sigmas), run.rate(t)
        theta = list(run.theta)
        s = (1 - mu**t) / (1 - mu)
        widths.append([])
        for number, k in enumerate(matrices):
            momentum[k], = run.keep([mu * momentum[k] + g[k]])
            if c["probes"] == 0:
                norms.append(length([momentum[k]]))
                o = newton_schulz(momentum[k], c)
            else:
                # The standard deviation of the noise in M / s, and in M.
                rho = math.sqrt(nus[k] ** 2 * (1 - mu) * (1 + mu**t) / ((1 + mu) * (1 - mu**t)))
                same(s * rho, nus[k] * math.sqrt((1 - mu ** (2 * t)) / (1 - mu**2)),
                     "the noise of the momentum")
                points = {"momentum": (momentum[k], s * rho), "average": (momentum[k] / s, rho)}
                found = {name: bias_corrected(point, width, p.probes[t - 1][number], c)
                         for name, (point, width) in points.items()}
                norms.append(length([points[at][0]]))
                apart.append(float(np.abs(found["average"] - found["momentum"]).max()))
                if c["normalizer"] == "frobenius":
                    # Q does not depend on the scale.
                    same(found["average"], found["momentum"], "the two points of evaluation")
                    widths[-1].append(rho)
                else:
                    widths[-1].append(points[at][1])
                o = found[at]
            theta[k] = (1 - eta * c["weight_decay"]) * theta[k] - eta * shape_scale(theta[k].shape, c) * o
        for k, d in zip(others, aux.direction([g[k] for k in others])):
            own = eta * c["aux_ratio"]
            theta[k] = (1 - own * c["aux_weight_decay"]) * theta[k] - own * d
        run.record(theta, eta, g)
    if c["normalizer"] == "max1":
        below = sum(n < 1 for n in norms)
        assert 0.15 * len(norms) < below < 0.85 * len(norms), f"{below} of {len(norms)} below 1"
        run.debug["norms_below_one"] = below
    run.debug |= {"matrices": matrices, "blocks": blocks}
    # One number for all blocks or matrices, unless rules make them differ.
    if "blocks" in c:
        run.debug |= {"block_clips": clips, "block_sigmas": sigmas}
    else:
        run.debug["block_sigma"] = sigmas[0]
    if c["probes"] > 0:
        run.debug["probe_widths"] = widths if "blocks" in c else [step[0] for step in widths]
    if at == "average":
        # How many directions depend on the point of evaluation, and the largest change of an element.
        changed = sum(x > 0.01 for x in apart)
        assert changed > 0.15 * len(apart), f"{changed} of {len(apart)} directions changed"
        run.debug |= {"changed_by_point": changed, "of": len(apart), "largest_change": max(apart)}


# ---- DP-MacAdam ---------------------------------------------------------------------------------------------------


def kappa_of(beta, t):
    return 2 * (beta - beta**t) / (1 + beta)


def check_kappa(beta):
    """κ_t is E s_t for the product form when the gradients are independent with variance 1."""
    s, before = 0.0, np.zeros(1)
    for t in range(1, 8):
        weights = np.array([(1 - beta) * beta ** (t - i) / (1 - beta**t) for i in range(1, t + 1)])
        # E (g_t − m̂_t)(g_t − m̂_{t−1}); m̂_0 = 0
        u = 1 - weights[-1] + float((weights[:-1] * before[:t - 1]).sum()) if t > 1 else 0.0
        s = beta * s + (1 - beta) * u
        same(s, kappa_of(beta, t), "kappa")
        before = weights


class Flat:
    """Conversion between tensors and one vector."""

    def __init__(self, tensors):
        self.shapes = [x.shape for x in tensors]
        self.sizes = [x.size for x in tensors]
        self.ends = np.cumsum(self.sizes)
        self.d = int(self.ends[-1])

    def join(self, parts):
        return np.concatenate([x.ravel() for x in parts])

    def split(self, vector):
        return [v.reshape(shape) for v, shape in zip(np.split(vector, self.ends[:-1]), self.shapes)]


def release_around(run, flat, t, center, b):
    """The noisy divided sum of (g − center)/b, each scaled to norm at most 1."""
    total = np.zeros(flat.d)
    for i in run.p.lots[t - 1]:
        w = (flat.join(run.p.gradients(run.theta, i)) - center) / b
        norm = length([w])
        run.seen[0] = run.seen.get(0, 0) + 1
        run.clipped[0] = run.clipped.get(0, 0) + (norm > 1)
        total = total + w / max(1.0, norm)
    return run.keep([(total + run.c["sigma"] * flat.join(run.p.noise[t - 1])) / BATCH])[0]


def best_scale(variance):
    """b for these variances: of all b with Σ s²/b² = 1, the one with the least Σ b²."""
    s = np.sqrt(variance)
    b = np.sqrt(s) * math.sqrt(float(s.sum()))
    same((variance / b**2).sum(), 1.0, "the constraint")
    other = b * np.exp(0.1 * np.sin(np.arange(len(b))))
    other *= math.sqrt(float((variance / other**2).sum()))
    assert (other**2).sum() >= (b**2).sum()
    return b


def pooled(c, flat, squares, noises):
    """The scale of each tensor, from its mean squared deviations and noise variances of all steps so far; or None."""
    sizes, t = np.array(flat.sizes, dtype=float), len(squares)
    squares, noises = np.array(squares), np.array(noises)
    decays = np.array([c["beta1"] ** (t - i) for i in range(1, t + 1)])
    weights = decays[:, None] / noises**2
    weights /= weights.sum(axis=0)
    x = (weights * (squares - noises)).sum(axis=0)
    tau = np.sqrt((weights**2 * 2 * noises**2 / sizes).sum(axis=0))
    overall = float((sizes * x).sum() / flat.d)
    if overall <= 2 * length([sizes / flat.d * tau]):
        return None
    # The posterior of a normal prior N(overall, overall²) and a measurement with the error tau.
    precision = 1 / overall**2 + 1 / tau**2
    posterior, left = (overall / overall**2 + x / tau**2) / precision, 1 / np.sqrt(precision)
    b = best_scale(np.repeat(np.maximum(posterior, left), flat.sizes))
    # The same ratios at the level of the first scale.
    b *= c["clip_initial"] / math.sqrt(float((b**2).mean()))
    return b, posterior < left


def reliable(c, flat, m_hat, noises):
    """m_hat, each tensor times the share of its squared norm that the noise of all releases so far does not explain."""
    t = len(noises)
    weights = np.array([(1 - c["beta1"]) * c["beta1"] ** (t - i) / (1 - c["beta1"] ** t) for i in range(1, t + 1)])
    same(weights.sum(), 1.0, "the weights of the average")
    parts = flat.split(m_hat)
    shares = []
    for k, part in enumerate(parts):
        noise = part.size * sum(w**2 * n[k] for w, n in zip(weights, noises))
        shares.append(max(0.0, 1 - noise / float((part**2).sum())))
    return flat.join([s * part for s, part in zip(shares, parts)]), shares


def run_macadam(run):
    c = run.c
    beta1, beta2, sigma = c["beta1"], c["beta2"], c["sigma"]
    check_kappa(beta1)
    flat = Flat(run.theta)
    d = flat.d
    low, high = c["clip_min"] ** 2 / d, c["clip_max"] ** 2 / d
    m, v, s, m_hat, b = np.zeros(d), np.zeros(d), np.zeros(d), np.zeros(d), np.full(d, c["clip_initial"])
    lows, highs, bounds, squares, noises = 0, 0, [], [], []
    unresolved, raised, shares = 0, 0, []
    center = m_hat
    for t in range(1, STEPS + 1):
        eta, w = run.rate(t), release_around(run, flat, t, center, b)
        g = b * w + center
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        old, m_hat, v_hat = center, m / (1 - beta1**t), v / (1 - beta2**t)
        center = m_hat
        u = (g - m_hat) ** 2 if c["variance"] == "literal" else (g - m_hat) * (g - old)
        s = beta1 * s + (1 - beta1) * u
        if c["variance"] == "tensor":
            squares.append([float(((x - y) ** 2).mean()) for x, y in zip(flat.split(g), flat.split(old))])
            noises.append([(x.flat[0] * sigma / BATCH) ** 2 for x in flat.split(b)])
            center, share = reliable(c, flat, m_hat, noises)
            shares.extend(share)
            found = pooled(c, flat, squares, noises)
            if found is None:
                unresolved += 1
            else:
                lows, highs = lows + int((found[0] < c["clip_min"]).sum()), highs + int((found[0] > c["clip_max"]).sum())
                b = np.clip(found[0], c["clip_min"], c["clip_max"])
                raised += int(found[1].sum())
        elif t >= 2:
            free = c["variance_scale"] * (s / kappa_of(beta1, t) - b * b * sigma**2 / BATCH**2)
            lows, highs = lows + int((free < low).sum()), highs + int((free > high).sum())
            b = best_scale(np.minimum(np.maximum(free, low), high))
        bounds.append([float(b.min()), float(b.max())])
        step = eta * m_hat / (np.sqrt(v_hat) + c["gamma"])
        run.record(flat.split(flat.join(run.theta) - step), eta, flat.split(w))
    every = (STEPS - 1) * d
    assert min(lows, highs, every - lows - highs) > 0.02 * every, (lows, highs, every)
    run.debug = {"h1": low, "h2": high, "at_h1": lows, "at_h2": highs, "of": every, "b_range": bounds,
                 "b_last": b.tolist()}
    if c["variance"] == "tensor":
        assert 1 < unresolved < STEPS / 2 and raised > 2, (unresolved, raised)
        none = sum(int(share == 0) for share in shares)
        assert 2 < none < len(shares) / 2 and max(shares) > 0.5, (none, len(shares), max(shares))
        run.debug |= {"unresolved": unresolved, "raised": raised, "no_center": none, "largest_share": max(shares)}


# ---- AdaCliP ------------------------------------------------------------------------------------------------------


def run_adaclip(run):
    c = run.c
    flat = Flat(run.theta)
    d = flat.d
    low, high = c["clip_min"] ** 2 / d, c["clip_max"] ** 2 / d
    a, b, velocity = np.zeros(d), np.full(d, c["clip_initial"]), np.zeros(d)
    variance = np.full(d, c["clip_initial"] ** 2 / d)
    same(best_scale(variance), b, "the first scale")
    lows, highs = 0, 0
    for t in range(1, STEPS + 1):
        eta, w = run.rate(t), release_around(run, flat, t, a, b)
        g = b * w + a
        free = c["variance_scale"] * ((g - a) ** 2 - (b * c["sigma"] / BATCH) ** 2)
        lows, highs = lows + int((free < low).sum()), highs + int((free > high).sum())
        variance = c["beta2"] * variance + (1 - c["beta2"]) * np.minimum(np.maximum(free, low), high)
        a = c["beta1"] * a + (1 - c["beta1"]) * g
        b = best_scale(variance)
        velocity = c["momentum"] * velocity + g
        run.record(flat.split(flat.join(run.theta) - eta * velocity), eta, flat.split(w))
    every = STEPS * d
    assert min(lows, highs, every - lows - highs) > 0.02 * every, (lows, highs, every)
    run.debug = {"h1": low, "h2": high, "at_h1": lows, "at_h2": highs, "of": every, "b_last": b.tolist()}


# ---- PRISM --------------------------------------------------------------------------------------------------------


def qr_positive(a):
    """Thin QR with a non-negative diagonal of R."""
    q, r = np.linalg.qr(a)
    sign = np.where(np.diag(r) < 0, -1.0, 1.0)
    q, r = q * sign, sign[:, None] * r
    same(q @ r, a, "QR")
    return q, r


class Frame:
    """A point A Bᵀ with the orthonormal frames in which its tangent vectors have the coordinates X, Y⊥."""

    def __init__(self, a, b):
        self.a, self.b = a, b
        self.qa, self.ra = qr_positive(a)
        self.qb, self.rb = qr_positive(b)

    def coordinates(self, ga, gb):
        x = ga @ np.linalg.inv(self.rb)
        y = gb @ np.linalg.inv(self.ra)
        k = self.qa.T @ x
        return x, y - self.qb @ k.T

    def off(self, y):
        """(I − Q_B Q_Bᵀ) y"""
        return y - self.qb @ (self.qb.T @ y)

    def dense(self, x, y):
        return x @ self.qb.T + self.qa @ y.T

    def project(self, g):
        """The projection of a dense matrix on the tangent space, by its own formula."""
        pa, pb = self.qa @ self.qa.T, self.qb @ self.qb.T
        return pa @ g + g @ pb - pa @ g @ pb

    def half_lift(self, x, y):
        k = self.qa.T @ x
        da = (x - 0.5 * self.qa @ k) @ np.linalg.inv(self.rb).T
        db = (y + 0.5 * self.qb @ k.T) @ np.linalg.inv(self.ra).T
        same(da @ self.b.T + self.a @ db.T, self.dense(x, y), "the half lift")
        return da, db

    def check_noise(self):
        """The covariance of the noise, as a matrix on all of R^{mn}, is the tangent projector."""
        (m, r), n = self.a.shape, self.b.shape[0]
        columns, projector = [], []
        for j in range(m * r + n * r):
            e = np.zeros(m * r + n * r)
            e[j] = 1.0
            columns.append(self.dense(e[:m * r].reshape(m, r), self.off(e[m * r:].reshape(n, r))).ravel())
        for j in range(m * n):
            e = np.zeros(m * n)
            e[j] = 1.0
            projector.append(self.project(e.reshape(m, n)).ravel())
        same(np.array(columns).T @ np.array(columns), np.array(projector), "the covariance of the noise")
        same(np.trace(np.array(projector)), r * (m + n - r), "the dimension of the tangent space")


def transport(x, y, old, new):
    moved_x = x @ (old.qb.T @ new.qb) + old.qa @ (y.T @ new.qb)
    moved_y = new.off(old.qb @ (x.T @ new.qa) + y @ (old.qa.T @ new.qa))
    same(new.dense(moved_x, moved_y), new.project(old.dense(x, y)), "the transport")
    return moved_x, moved_y


def inverse_root(v):
    values, vectors = np.linalg.eigh(v)
    found = vectors @ np.diag(values**-0.5) @ vectors.T
    same(found @ v @ found, np.eye(len(v)), "the inverse root")
    return found


def polar(a):
    u, _, v = np.linalg.svd(a)
    return u @ v


def retract(a, b, ua, ub, eta):
    r = a.shape[1]
    qu, ru = np.linalg.qr(np.hstack([a, ua]))
    qv, rv = np.linalg.qr(np.hstack([b, ub]))
    one = np.eye(r)
    u, s, v = np.linalg.svd(ru @ np.block([[one, -eta * one], [-eta * one, 0 * one]]) @ rv.T)
    root = np.diag(np.sqrt(s[:r]))
    new_a, new_b = qu @ u[:, :r] @ root, qv @ v.T[:, :r] @ root
    o = polar(new_a.T @ a + new_b.T @ b)
    new_a, new_b = new_a @ o, new_b @ o

    u, s, v = np.linalg.svd(a @ b.T - eta * (ua @ b.T + a @ ub.T))
    same(new_a @ new_b.T, u[:, :r] @ np.diag(s[:r]) @ v[:r], "the retraction and the truncated SVD")
    same(new_a.T @ new_a, new_b.T @ new_b, "the balance of the factors")
    rest = s[r] if len(s) > r else 0.0
    assert s[r - 1] > 0.02 * s[0] and rest < 0.5 * s[r - 1], f"singular values {s}: too close to decide which is kept"
    return new_a, new_b


def balance(a, b):
    """The factors U S^½ O, V S^½ O of A Bᵀ = U S Vᵀ, with the orthogonal O that brings them closest to A and B."""
    r = a.shape[1]
    u, s, v = np.linalg.svd(a @ b.T)
    root = np.diag(np.sqrt(s[:r]))
    new_a, new_b = u[:, :r] @ root, v[:r].T @ root
    o = polar(new_a.T @ a + new_b.T @ b)
    new_a, new_b = new_a @ o, new_b @ o
    same(new_a @ new_b.T, a @ b.T, "the product of balanced factors")
    same(new_a.T @ new_a, new_b.T @ new_b, "the balance of the factors")
    assert s[r - 1] > 0.02 * s[0], f"singular values {s}: too close to a lost rank"
    return new_a, new_b


def noise_moment(f, nu2):
    """The expectations of dAᵀdA/m and dBᵀdB/n if the release is noise alone: summed over its coordinates."""
    (m, r), n = f.a.shape, f.b.shape[0]
    na, nb = np.zeros((r, r)), np.zeros((r, r))
    for j in range(m * r + n * r):
        e = np.zeros(m * r + n * r)
        e[j] = 1.0
        da, db = f.half_lift(e[:m * r].reshape(m, r), f.off(e[m * r:].reshape(n, r)))
        na, nb = na + nu2 * da.T @ da / m, nb + nu2 * db.T @ db / n
    same(na, nu2 * (m - 0.75 * r) / m * np.linalg.inv(f.b.T @ f.b), "the noise of V_A")
    same(nb, nu2 * (n - 0.75 * r) / n * np.linalg.inv(f.a.T @ f.a), "the noise of V_B")
    return na, nb


def positive_part(v):
    """The symmetric matrix with its negative eigenvalues set to 0, and how many there were."""
    values, vectors = np.linalg.eigh(v)
    return vectors @ np.diag(np.maximum(values, 0.0)) @ vectors.T, int((values < 0).sum())


def run_prism(run):
    c, p = run.c, run.p
    sigma, clip, beta1, beta2 = c["sigma"], c["clip"], c["beta1"], c["beta2"]
    pairs = [u for u in p.units if len(u) == 2]
    heads = [u[0] for u in p.units if len(u) == 1]
    head = Adam(beta1, beta2, c["head_eps"])
    state = {a: None for a, _ in pairs}
    ridges, negative = [], 0
    for a, b in pairs:
        run.theta[a], run.theta[b] = run.keep(balance(run.theta[a], run.theta[b]))
    for t in range(1, STEPS + 1):
        eta = run.rate(t)
        frames = {a: Frame(run.theta[a], run.theta[b]) for a, b in pairs}
        if t == 1:
            for f in frames.values():
                f.check_noise()

        total = [np.zeros_like(x) for x in run.theta]
        for i in p.lots[t - 1]:
            g = p.gradients(run.theta, i)
            for a, b in pairs:
                g[a], g[b] = frames[a].coordinates(g[a], g[b])
            for u, dense in zip(p.units, p.unit_gradients(run.theta, i)):
                if len(u) == 2:
                    projected = frames[u[0]].project(dense)
                    same(frames[u[0]].dense(g[u[0]], g[u[1]]), projected, "the projection of a gradient")
                    same(length([g[u[0]], g[u[1]]]), length([projected]), "the norm of a projected gradient")
            factor = run.factor(length(g), clip)
            total = [x + factor * y for x, y in zip(total, g)]
        noise = list(p.noise[t - 1])
        for a, b in pairs:
            noise[b] = frames[a].off(noise[b])
        g = run.keep([(x + sigma * clip * z) / BATCH for x, z in zip(total, noise)])

        theta = list(run.theta)
        for a, b in pairs:
            f = frames[a]
            (m, r), n = f.a.shape, f.b.shape[0]
            if state[a] is None:
                mx, my = np.zeros_like(f.a), np.zeros_like(f.b)
                va, vb = np.zeros((r, r)), np.zeros((r, r))
                na, nb = np.zeros((r, r)), np.zeros((r, r))
            else:
                old, mx, my, va, vb, na, nb = state[a]
                mx, my = transport(mx, my, old, f)
            mx, my = beta1 * mx + (1 - beta1) * g[a], beta1 * my + (1 - beta1) * g[b]
            da, db = f.half_lift(g[a], g[b])
            va = beta2 * va + (1 - beta2) * da.T @ da / m
            vb = beta2 * vb + (1 - beta2) * db.T @ db / n
            nu2 = (sigma * clip / BATCH) ** 2
            ea, eb = noise_moment(f, nu2)
            na, nb = beta2 * na + (1 - beta2) * ea, beta2 * nb + (1 - beta2) * eb
            state[a] = (f, mx, my, va, vb, na, nb)

            la = c["ridge"] * nu2 * (m - 0.75 * r) / m * np.trace(np.linalg.inv(f.b.T @ f.b)) / r
            lb = c["ridge"] * nu2 * (n - 0.75 * r) / n * np.trace(np.linalg.inv(f.a.T @ f.a)) / r
            ridges.append([float(la), float(lb)])
            ua, ub = f.half_lift(mx / (1 - beta1**t), my / (1 - beta1**t))
            va, vb = va / (1 - beta2**t), vb / (1 - beta2**t)
            if c["subtract_noise"]:
                va, below_a = positive_part(va - na / (1 - beta2**t))
                vb, below_b = positive_part(vb - nb / (1 - beta2**t))
                negative += below_a + below_b
            ua = ua @ inverse_root(va + la * np.eye(r))
            ub = ub @ inverse_root(vb + lb * np.eye(r))
            theta[a], theta[b] = retract(f.a, f.b, ua, ub, eta)
        if heads:
            for k, d in zip(heads, head.direction([g[k] for k in heads])):
                theta[k] = theta[k] - eta * c["head_ratio"] * d
        run.record(theta, eta, g)
    assert not c["subtract_noise"] or negative, "no eigenvalue was ever negative"
    run.debug = {"negative_eigenvalues": negative, "ridges": [ridges[i:i + len(pairs)] for i in range(0, len(ridges), len(pairs))]}


# ---- HyFree -------------------------------------------------------------------------------------------------------


def offsets(points, eta):
    return [0.0, eta, -eta] + ([2 * eta, -2 * eta] if points == 5 else [])


def fit(xs, losses, noise):
    """Fits −b·x + a·x²/2 to the losses minus the first one.

    Returns slope b, curvature a, and their standard deviations if each loss has the standard
    deviation `noise`.
    """
    y = [v - losses[0] for v in losses]
    s2, s3, s4 = (sum(x**k for x in xs) for k in (2, 3, 4))
    sxy, sx2y = sum(x * v for x, v in zip(xs, y)), sum(x * x * v for x, v in zip(xs, y))
    det = s3**2 - s2 * s4
    b, a = (sxy * s4 - s3 * sx2y) / det, 2 * (s3 * sxy - s2 * sx2y) / det
    # Compared with a solver, in units of the step, so that its matrix is well-conditioned.
    h = xs[1]
    design = np.array([[-x / h, (x / h) ** 2 / 2] for x in xs])
    solved = np.linalg.lstsq(design, np.array(y), rcond=None)[0]
    same([b * h, a * h * h], solved, "the fit", 1e-7)
    # Both are linear in the losses: the weight of each, then the root of the sum of squares.
    weights = np.linalg.pinv(design)
    weights[:, 0] -= weights.sum(axis=1)
    sd_b, sd_a = noise * np.sqrt((weights**2).sum(axis=1)) / np.array([h, h * h])
    known = {3: (1 / math.sqrt(2), math.sqrt(6)), 5: (1 / math.sqrt(10), math.sqrt(134) / 17)}[len(xs)]
    same([sd_b * h, sd_a * h * h], [noise * known[0], noise * known[1]], "the deviations of the fit")
    return b, a, float(sd_b), float(sd_a)


def run_hyfree(run):
    c, p, optimizer = run.c, run.p, base(run.c)
    eta, bound, reports = c["rate"], c["loss_clip"], []
    for t in range(1, STEPS + 1):
        g = run.release(t)
        d = optimizer.direction(g)
        if t % c["every"] == 0:
            number = len(reports)
            lot, noise = p.probe_lots[number], p.loss_noise[number]
            xs, losses, cut = offsets(c["points"], eta), [], 0
            for x, z in zip(xs, noise):
                there = run.keep([a - x * b for a, b in zip(run.theta, d)])
                each = [p.loss(there, i) for i in lot]
                cut += sum(v > bound for v in each)
                total = sum(min(max(v, -bound), bound) for v in each)
                losses.append((total + c["loss_sigma"] * bound * float(z)) / BATCH)
            b, a, sd_b, sd_a = fit(xs, losses, c["loss_sigma"] * bound / BATCH)
            wide = c["gate"] * sd_a < a and c["gate"] * sd_b < b
            report = {"step": t, "rate_before": eta, "loss_bound": bound, "losses": losses, "cut": cut, "slope": b,
                      "slope_sd": sd_b, "curvature": a, "curvature_sd": sd_a, "open": wide}
            # A decision must not depend on rounding.
            assert abs(a - c["gate"] * sd_a) > 0.05 * sd_a and abs(b - c["gate"] * sd_b) > 0.05 * sd_b, report
            if wide:
                keep = c["rate_smoothing"]
                eta = keep * eta + (1 - keep) * min(max(b / a, eta / 2), 2 * eta)
            bound = max(c["loss_clip_min"], c["loss_clip_factor"] * losses[0])
            reports.append(report | {"newton": b / a, "rate_after": eta, "loss_bound_after": bound})
        run.record([x - eta * y for x, y in zip(run.theta, d)], eta, g)
    wide = [r["open"] for r in reports]
    assert any(wide) and not all(wide), wide
    assert any(r["loss_bound_after"] == c["loss_clip_min"] for r in reports), "the least bound was never used"
    points = len(reports) * c["points"]
    assert 0 < sum(r["cut"] for r in reports), points
    run.debug = {"probes": reports}


# ---- The cases ----------------------------------------------------------------------------------------------------

ALL = {"rate": 0.02, "schedule": "constant", "clip": 4.0, "clipping": "flat", "automatic_gamma": 0.01, "sigma": 0.6}
SGD = ALL | {"base": "sgd", "momentum": 0.9, "weight_decay": 0.0}
ADAM = ALL | {"base": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
MUON = ALL | {"momentum": 0.9, "polynomial": "kappa", "kappa": 2, "iterations": 5, "normalizer": "frobenius",
              "shape_scale": "none", "weight_decay": 0.0, "group": "hidden", "block_weights": "equal", "probes": 0,
              "aux_ratio": 0.7, "aux_beta1": 0.9, "aux_beta2": 0.999, "aux_eps": 1e-8,
              "aux_weight_decay": 0.0, "clip": 2.0, "sigma": 0.3}
MACADAM = {"rate": 0.015, "schedule": "constant", "beta1": 0.9, "beta2": 0.999, "gamma": 1e-8,
           "clip_initial": 1.0}
ADACLIP = {"rate": 0.05, "schedule": "constant", "beta1": 0.8, "beta2": 0.9, "sigma": 0.6, "clip_initial": 2.0,
           "clip_min": 2.0, "clip_max": 4.0, "variance_scale": 1.0, "momentum": 0.0}
PRISM = ALL | {"beta1": 0.9, "beta2": 0.999, "ridge": 1.0, "subtract_noise": False, "head_ratio": 0.5, "head_eps": 1e-8, "scale": 1.0}
HYFREE = {"gate": 2.0, "every": 5, "points": 3, "probe": "fresh-lot", "loss_clip_min": 5.0, "loss_clip_factor": 3.0,
          "rate_smoothing": 0.9, "schedule": "probed"}

# name: the seed, the optimizer, the hyperparameters, the tensors and units
# An epsilon of 1e-8 has no visible effect, so two cases (adamw, macadam-exact) have a large one.
CASES = {
    "sgd": (1, run_first_order, SGD, TENSORS, UNITS),
    "sgd-decay": (2, run_first_order, SGD | {
        "schedule": "linear", "clipping": "automatic", "weight_decay": 0.3}, TENSORS, UNITS),
    "adam": (3, run_first_order, ADAM | {"rate": 0.03}, TENSORS, UNITS),
    "adamw": (4, run_first_order, ADAM | {
        "rate": 0.03, "schedule": "linear", "weight_decay": 0.4, "eps": 0.01}, TENSORS, UNITS),
    "adam-bc": (5, run_adam_bc, ADAM | {"rate": 0.01, "eps": 0.0, "floor": 0.02}, TENSORS, UNITS),
    "muon-k1": (11, run_muon, MUON | {"kappa": 1, "iterations": 7}, TENSORS, UNITS),
    "muon-k2": (12, run_muon, MUON, TENSORS, UNITS),
    "muon-k2-all": (13, run_muon, MUON | {"group": "all"}, TENSORS, UNITS),
    "muon-k3": (14, run_muon, MUON | {"kappa": 3, "iterations": 4}, TENSORS, UNITS),
    "muon-quintic": (15, run_muon, MUON | {"polynomial": "quintic", "kappa": None}, TENSORS, UNITS),
    "muon-max1": (16, run_muon, MUON | {"normalizer": "max1", "clip": 0.8, "momentum": 0.7}, TENSORS, UNITS),
    "muon-scaled": (17, run_muon, MUON | {
        "schedule": "linear", "shape_scale": "rows-over-cols", "weight_decay": 0.4}, TENSORS, UNITS),
    "muon-scaled-02": (18, run_muon, MUON | {"shape_scale": "larger-side"}, TENSORS, UNITS),
    "muon-bc": (19, run_muon, MUON | {"probes": 1}, TENSORS, UNITS),
    "muon-bc-max1": (20, run_muon, MUON | {
        "probes": 2, "normalizer": "max1", "clip": 0.8, "momentum": 0.7}, TENSORS, UNITS),
    "muon-paper": (21, run_muon, MUON | {"group": "paper"}, TENSORS, UNITS),
    # Muon updates `embed`, which is clipped with the auxiliary block: the rule gives this block
    # another noise than any matrix.
    "muon-bc-paper": (22, run_muon, MUON | {
        "group": "paper", "probes": 1, "block_weights": "rules",
        "blocks": [{"tensors": "auxiliary", "clip": 1.5, "weight": 0.25}]}, TENSORS, UNITS),
    # Five iterations bring most singular values to 1 from either point; after three they differ.
    "muon-bc-average-max1": (23, run_muon, MUON | {
        "probes": 1, "normalizer": "max1", "evaluate_at": "average", "iterations": 3, "clip": 2.6,
        "momentum": 0.7}, TENSORS, UNITS),
    # The second rule also matches the tensors of the first, which comes first.
    "muon-blocks": (24, run_muon, MUON | {
        "probes": 1, "block_weights": "rules",
        "blocks": [{"tensors": "w_*a*", "clip": 1.2, "weight": 2.0},
                   {"tensors": "w_*", "clip": None, "weight": 0.5},
                   {"tensors": "auxiliary", "clip": 0.9, "weight": None}]}, TENSORS, UNITS),
    "macadam-literal": (31, run_macadam, MACADAM | {
        "sigma": 1.0, "variance": "literal", "variance_scale": 1.0, "clip_min": 3.0, "clip_max": 4.5}, TENSORS, UNITS),
    "macadam-exact": (32, run_macadam, MACADAM | {
        "sigma": 0.5, "variance": "exact", "variance_scale": float(BATCH), "clip_min": 2.0, "clip_max": 4.0,
        "gamma": 0.01}, TENSORS, UNITS),
    "macadam-tensor": (73, run_macadam, MACADAM | {
        "sigma": 0.8, "variance": "tensor", "variance_scale": None, "clip_initial": 3.0, "clip_min": 2.6,
        "clip_max": 3.2}, TENSORS, UNITS),
    "adaclip": (34, run_adaclip, ADACLIP, TENSORS, UNITS),
    "adaclip-momentum": (35, run_adaclip, ADACLIP | {
        "rate": 0.01, "momentum": 0.8, "variance_scale": float(BATCH)}, TENSORS, UNITS),
    "prism": (41, run_prism, PRISM, PRISM_TENSORS, PRISM_UNITS),
    "prism-narrow": (42, run_prism, PRISM, NARROW_TENSORS, NARROW_UNITS),
    # The noise is so large that some eigenvalues of the difference are negative.
    "prism-subtract-noise": (43, run_prism, PRISM | {
        "subtract_noise": True, "ridge": 0.5, "beta2": 0.95, "sigma": 1.5}, PRISM_TENSORS, PRISM_UNITS),
    # Factors A R and B R⁻ᵀ, for random R whose singular values are as given.
    "prism-unbalanced": (44, run_prism, PRISM | {"gauge": [24.0, 0.25, 3.0]}, PRISM_TENSORS, PRISM_UNITS),
    "hyfree-sgd": (51, run_hyfree, SGD | HYFREE | {
        "rate": 0.03, "gate": 0.0, "every": 2, "probe": "same-lot", "loss_sigma": 0.002, "loss_clip": 20.0}, TENSORS,
                   UNITS),
    "hyfree-adam": (52, run_hyfree, ADAM | HYFREE | {
        "rate": 0.05, "clipping": "automatic", "every": 3, "points": 5, "loss_sigma": 0.002, "loss_clip": 20.0},
                    TENSORS, UNITS),
}


def problem_of(seed, c, tensors, units):
    p = Problem(seed, tensors, units)
    p.check()
    for a, b in (u for u in units if len(u) == 2 and "gauge" in c):
        r = p.initial[a].shape[1]
        u, v = (np.linalg.qr(p.normal((r, r)))[0] for _ in range(2))
        s = np.array(c["gauge"][:r])
        p.initial[a], p.initial[b] = f32(p.initial[a] @ u @ np.diag(s) @ v), f32(p.initial[b] @ u @ np.diag(1 / s) @ v)
    if c.get("probes"):
        shapes = [tensors[k][1] for k in muon_tensors(tensors, c["group"])]
        p.probes = [[[p.normal(shape) for _ in range(c["probes"])] for shape in shapes]
                    for _ in range(STEPS)]
    if "every" in c:
        steps = [t for t in range(1, STEPS + 1) if t % c["every"] == 0]
        fresh = c["probe"] == "fresh-lot"
        p.probe_lots = [p.lot(0 if n == 3 else p.random.integers(2, 10)) if fresh else p.lots[t - 1]
                        for n, t in enumerate(steps)]
        p.loss_noise = [p.normal(c["points"]) for _ in steps]
    return p


# ---- The files ----------------------------------------------------------------------------------------------------


def inputs(x):
    """Nested lists of the shortest decimals that round to each float32."""
    if isinstance(x, list):
        return [inputs(y) for y in x]
    found = [float(str(v)) for v in np.asarray(x).ravel().astype(np.float32)]
    assert (f32(found) == np.asarray(x).ravel()).all()
    return found


def digits(x):
    """Nested lists with nine significant digits."""
    if isinstance(x, dict):
        return {k: digits(v) for k, v in x.items()}
    if isinstance(x, list):
        return [digits(y) for y in x]
    if isinstance(x, np.ndarray):
        return [float(f"{v:.9g}") for v in x.ravel().tolist()]
    return float(f"{x:.9g}") if isinstance(x, float) else x


def write(path, content):
    """Writes one line per key, and one line per entry of a nested list."""
    lines = []
    for key, value in content.items():
        if isinstance(value, list) and value and isinstance(value[0], (list, dict)):
            text = "[\n" + ",\n".join("  " + json.dumps(v, allow_nan=False) for v in value) + "]"
        else:
            text = json.dumps(value, allow_nan=False)
        lines.append(f" {json.dumps(key)}: {text}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    size = path.stat().st_size
    assert size < LIMIT, f"{path.name}: {size} bytes"
    return size


def make(name):
    seed, optimizer, config, tensors, units = CASES[name]
    p = problem_of(seed, config, tensors, units)
    run, rounded = Run(p, config, False), Run(p, config, True)
    for one in (run, rounded):
        optimizer(one)
        one.check()
    deviation = max(float(np.abs(a - b).max()) for x, y in zip(run.expected, rounded.expected) for a, b in zip(x, y))
    assert run.clipped == rounded.clipped and deviation < 1e-4, deviation
    moved = length([a - b for a, b in zip(run.theta, p.initial)])
    assert 0.3 < moved < 100, moved

    content = {
        "script": "peers/golden_optim.py", "case": name, "numpy": np.__version__, "config": config,
        "tensors": [{"name": n, "shape": list(shape), "role": role} for n, shape, role in tensors], "units": units,
        "curvature": inputs(p.curvature), "targets": inputs(p.targets), "initial": inputs(p.initial),
        "lots": p.lots, "batch": BATCH, "noise": inputs(p.noise)}
    if hasattr(p, "probes"):
        content["probes"] = inputs(p.probes)
    if hasattr(p, "probe_lots"):
        content |= {"probe_lots": p.probe_lots, "loss_noise": inputs(p.loss_noise)}
    content |= {"rates": digits(run.rates), "released": digits(run.released), "expected": digits(run.expected),
                "debug": digits(run.debug), "float32": float(f"{deviation:.1e}")}
    size = write(OUT / f"{name}.json", content)
    clipped = " ".join(f"{run.clipped[k]}/{run.seen[k]}" for k in sorted(run.seen))
    print(f"{name:20} clipped {clipped:35} norm {length(p.initial):.4f} -> {length(run.theta):.4f}, moved {moved:.4f}, "
          f"float32 {deviation:.0e}, {size} bytes", flush=True)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or CASES:
        make(name)


if __name__ == "__main__":
    main()
