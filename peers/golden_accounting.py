#!/usr/bin/env python3
"""Generates crates/accounting/tests/golden.json, the reference values of the accountant's tests.

    python3 peers/golden_accounting.py

Needs dp-accounting and mpmath; if they are missing, it creates peers/.venv-accounting and restarts
there.

Two kinds of figures:

* `public*` are results of Google's dp-accounting: an upper bound on epsilon of another package.
* `*truth*` are exact values for one to three steps, computed here from the densities by closed forms
  and quadrature, without dp-accounting. A bound below them is wrong; a bound far above them is loose.

Every exact value is computed twice (by another method, or at another resolution), and the run fails
if the two differ by more than 1e-10 of the value.
"""

import importlib.metadata
import json
import logging
import math
import pathlib
import sys
import time

import _venv

_venv.ensure({"dp_accounting": "dp-accounting==0.6.0", "mpmath": "mpmath==1.4.1"}, "accounting")

import dp_accounting
import mpmath
import numpy
import scipy
from dp_accounting import pld, rdp
from mpmath import mp, mpf
from scipy.special import erfcx, ndtr

OUT = pathlib.Path(__file__).resolve().parent.parent / "crates/accounting/tests/golden.json"
AGREE = 1e-10  # largest relative difference allowed between the two computations of one truth
mp.dps = 40


def digits(x):
    """The double nearest to the first 15 significant digits of x: the file then has the exact input."""
    return float(mpmath.nstr(mpf(x), 15, strip_zeros=True))


def agree(a, b, what, tolerance=AGREE):
    if abs(a - b) > tolerance * abs(a):
        sys.exit(f"{what}: two computations differ: {a} and {b}")
    return a


# ---- dp-accounting ------------------------------------------------------------------------------------------------

ADD_REMOVE, REPLACE = "add-remove", "replace-one"
RELATION = {
    ADD_REMOVE: dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    REPLACE: dp_accounting.NeighboringRelation.REPLACE_ONE,
}


def public_epsilon(accountant, events, delta):
    for sigma, q, steps in events:
        accountant.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma)), steps)
    return digits(accountant.get_epsilon(delta))


def public(sigma, q, steps, delta, adjacency=ADD_REMOVE):
    sigma, q, delta = digits(sigma), digits(q), digits(delta)
    events = [(sigma, q, steps)]
    bound = public_epsilon(pld.PLDAccountant(RELATION[adjacency]), events, delta)
    # The Rényi accountant of dp-accounting has no replace-one rule for Poisson sampling.
    renyi = public_epsilon(rdp.RdpAccountant(), events, delta) if adjacency == ADD_REMOVE else None
    return dict(sigma=sigma, q=q, steps=steps, delta=delta, adjacency=adjacency, pld=bound, rdp=renyi)


PUBLIC = [
    # Settings that are common in practice and in other projects' tests.
    (1, 0.01, 1000, 1e-5), (1.5, 0.04, 2250, 1e-5), (1.1, 256 / 60000, 14040, 1e-5),
    (0.6, 1024 / 42061, 410, 1 / 84122), (2, 0.1, 500, 1e-6), (0.8, 0.001, 100000, 1e-7),
    (10, 1, 100, 1e-5), (0.5, 0.01, 1000, 1e-5), (5, 0.5, 200, 1e-5),
    # Published settings, and one in which a single block has a seventh of the joint noise.
    (0.7189, 1024 / 42043, 410, 8e-6), (0.7094, 1024 / 60591, 885, 1e-5), (2.3395 / 7, 1024 / 42043, 410, 8e-6),
    # One step and few steps.
    (1, 1, 1, 1e-5), (0.3, 0.01, 1, 1e-6), (0.5, 0.2, 1, 1e-4), (3, 0.5, 1, 1e-8), (20, 0.9, 1, 1e-10),
    (0.4, 0.001, 10, 1e-6), (0.7, 0.05, 7, 1e-9),
    # Small sampling rates.
    (0.5, 1e-4, 1000, 1e-6), (0.6, 1e-4, 100000, 1e-8), (1, 1e-4, 100000, 1e-10), (2, 0.0005, 20000, 1e-5),
    (0.4, 0.0003, 3000, 1e-4),
    # Large noise, where every step's loss is far smaller than a coarse grid.
    (20, 0.01, 100000, 1e-6), (20, 0.3, 10000, 1e-5), (12, 0.1, 30000, 1e-7), (20, 1, 1000, 1e-9),
    (8, 0.02, 5000, 1e-10),
    # High rates and large epsilons.
    (1, 0.9, 20, 1e-5), (3, 0.99, 300, 1e-6), (0.8, 0.3, 50, 1e-5), (0.3, 0.1, 100, 1e-5), (1, 1, 50, 1e-7),
    # Small deltas.
    (1.3, 0.02, 3000, 1e-10), (0.9, 0.005, 20000, 1e-9), (4, 0.25, 1000, 1e-8),
]

PUBLIC_REPLACE = [
    (1, 0.01, 1000, 1e-5), (2, 0.1, 500, 1e-6), (0.6, 0.02, 400, 1e-5), (5, 0.5, 200, 1e-5),
    (10, 1, 100, 1e-5), (1.1, 0.004, 14000, 1e-7), (0.5, 0.3, 1, 1e-4), (20, 0.05, 20000, 1e-8),
]

PUBLIC_HETEROGENEOUS = [
    (1e-5, [(1, 0.01, 500), (2, 0.02, 500)]),
    (1e-6, [(0.8, 0.005, 1000), (3, 0.1, 200), (20, 1, 10)]),
    (1e-5, [(0.5, 0.001, 100), (0.6, 0.002, 200), (0.7, 0.003, 300), (0.8, 0.004, 400)]),
    (1e-8, [(10, 1, 20), (1, 0.001, 10000)]),
    (1e-7, [(0.4, 0.01, 1), (5, 0.5, 50)]),
    (1e-10, [(1.2, 0.02, 1000), (1.2, 0.04, 250)]),
]


def public_heterogeneous(delta, events):
    bound = public_epsilon(pld.PLDAccountant(), events, delta)
    return dict(events=[dict(sigma=s, q=q, steps=t) for s, q, t in events], delta=delta, pld=bound)


# ---- The hockey-stick divergence of one to three steps ----------------------------------------------------------
#
# With P, Q the two output distributions of one step and alpha = e^eps, delta = H(P || Q) = integral (P - alpha Q)_+.
#   "remove":     P = (1-q) N(0) + q N(1),   Q = N(0)
#   "add":        P = N(0),                  Q = (1-q) N(0) + q N(1)
#   "replace":    P = (1-q) N(0) + q N(1),   Q = (1-q) N(0) + q N(-1)    (its mirror image is itself swapped)
# The loss L = log P/Q is monotone in x, so one step has a closed form. For more steps, condition on the first:
#   H_eps(P^T || Q^T) = integral P(x) H_{eps - L(x)}(P^{T-1} || Q^{T-1}) dx.
#
# In "remove" the loss of n steps exceeds n log(1-q), and H is exactly 1 - alpha below that; in "add" it stays below
# -n log(1-q), and H is exactly 0 above that. H is not analytic there, and in "replace" with a small q it has nearly a
# corner at 0, so the integral over x is cut where the first step's loss leads to that point.


def gap(eps, q, direction, lib):
    """In "remove" and "add", the value of q exp((2x-1)/(2 sigma^2)) where the loss is eps.

    If it is negative there is no such x.
    """
    return lib.expm1(eps if direction == "remove" else -eps) + q


def place(eps, sigma, q, direction, lib):
    """The x where the loss is eps. `lib` is mpmath or numpy, here and below."""
    if direction != "replace":
        return sigma**2 * lib.log(gap(eps, q, direction, lib) / q) + 0.5
    # A quadratic equation in exp(x / sigma^2), with x odd in eps.
    size, c = abs(eps), q * lib.exp(-1 / (2 * sigma**2))
    b = (1 - q) * lib.expm1(size)
    return lib.sign(eps) * sigma**2 * lib.log((b + lib.sqrt(b * b + 4 * lib.exp(size) * c * c)) / (2 * c))


def hockey_exact(eps, sigma, q, direction):
    """One step, by the definition, in high precision."""
    alpha, above = mp.exp(eps), lambda t: mp.ncdf(-t / sigma)
    if direction != "replace" and gap(eps, q, direction, mp) <= 0:
        return 1 - alpha if direction == "remove" else mpf(0)
    x = place(eps, sigma, q, direction, mp)
    if direction == "remove":
        return (1 - q) * above(x) + q * above(x - 1) - alpha * above(x)
    if direction == "add":
        return above(-x) - alpha * ((1 - q) * above(-x) + q * above(1 - x))
    return (1 - q) * (1 - alpha) * above(x) + q * (above(x - 1) - alpha * above(x + 1))


def mills(t):
    return math.sqrt(math.pi / 2) * erfcx(t / math.sqrt(2))


def density(t):
    return numpy.exp(-t * t / 2) / math.sqrt(2 * math.pi)


def hockey(eps, sigma, q, direction):
    """One step in double precision, for arrays of eps.

    The terms of the definition nearly cancel in the tail. The densities are equal at the threshold,
    which leaves differences of Mills ratios, all of one sign. These lose only a few bits.
    """
    s = 1 / sigma
    with numpy.errstate(all="ignore"):  # the form that does not apply may overflow
        alpha = numpy.exp(eps)
        if direction == "replace":
            # H_alpha(P || Q) = 1 - alpha + alpha H_{1/alpha}(Q || P), and swapping P and Q changes nothing here.
            size = abs(eps)
            y = place(size, sigma, q, direction, numpy) * s
            h = q * density(y - s) * (mills(y - s) - mills(y))
            h += numpy.exp(size) * q * density(y + s) * (mills(y) - mills(y + s))
            return numpy.where(eps < 0, -numpy.expm1(eps) + alpha * h, h)
        rest = gap(eps, q, direction, numpy)
        y = place(eps, sigma, q, direction, numpy) * s
        if direction == "remove":
            near = q * ndtr(s - y) - rest * ndtr(-y)
            far = q * density(y - s) * (mills(y - s) - mills(y))
            return numpy.where(rest <= 0, -numpy.expm1(eps), numpy.where(y < 0, near, far))
        near = alpha * (rest * ndtr(y) - q * ndtr(y - s))
        far = alpha * q * density(y - s) * (mills(-y) - mills(s - y))
        return numpy.where(rest <= 0, 0.0, numpy.where(y > 0, near, far))


def first_step(x, sigma, q, direction, lib):
    """Density of P and loss at x."""
    plain = lib.exp(-x * x / (2 * sigma**2)) / (sigma * lib.sqrt(2 * lib.pi))
    excess = q * lib.expm1((2 * x - 1) / (2 * sigma**2))
    if direction == "remove":
        return plain * (1 + excess), lib.log1p(excess)
    if direction == "add":
        return plain, -lib.log1p(excess)
    other = q * lib.expm1((-2 * x - 1) / (2 * sigma**2))
    return plain * (1 + excess), lib.log1p(excess) - lib.log1p(other)


def ends(sigma):
    """Outside, P has less than 1e-32; every delta in the file is above 1e-13."""
    return -12 * sigma, 1 + 12 * sigma


def cut_loss(eps, later, q, direction, lib):
    """The loss of the first step that leaves the `later` steps at the end of their range."""
    return eps + {"remove": -1, "add": 1, "replace": 0}[direction] * later * lib.log(1 - q)


def two_steps_exact(eps, sigma, q, direction):
    lo, hi = ends(sigma)
    points = {lo, -4 * sigma, mpf(0), mpf(1) / 2, mpf(1), 1 + 4 * sigma, hi}
    loss = cut_loss(eps, 1, q, direction, mp)
    if direction == "replace" or gap(loss, q, direction, mp) > 0:
        points.add(place(loss, sigma, q, direction, mp))

    def inside(x):
        p, loss = first_step(x, sigma, q, direction, mp)
        return p * hockey_exact(eps - loss, sigma, q, direction)

    return mp.quad(inside, sorted(p for p in points if lo <= p <= hi), maxdegree=7)


def tanh_sinh(h):
    """Nodes in (0, 1) and weights of the double-exponential rule, which tolerates singular ends."""
    u = numpy.arange(-3.5, 3.5 + h / 2, h)
    node = 1 / (1 + numpy.exp(-math.pi * numpy.sinh(u)))
    return node, h * math.pi * numpy.cosh(u) * node / (1 + numpy.exp(math.pi * numpy.sinh(u)))


def hockey_steps(eps, steps, sigma, q, direction, h):
    """`steps` steps in double precision for an array of eps, by the double-exponential rule of spacing `h`."""
    if steps == 1:
        return hockey(eps, sigma, q, direction)
    lo, hi = ends(sigma)
    cut = cut_loss(eps, steps - 1, q, direction, numpy)
    with numpy.errstate(all="ignore"):
        edge = numpy.clip(numpy.nan_to_num(place(cut, sigma, q, direction, numpy), nan=lo), lo, hi)
    node, weight = tanh_sinh(h)
    total = numpy.zeros_like(eps)
    for a, b in ((lo, edge), (edge, hi)):
        width = (b - a)[:, None]
        x = numpy.broadcast_to(a, eps.shape)[:, None] + width * node
        p, loss = first_step(x, sigma, q, direction, numpy)
        later = hockey_steps((eps[:, None] - loss).ravel(), steps - 1, sigma, q, direction, h)
        total += (width * weight * p * later.reshape(x.shape)).sum(axis=1)
    return total


def delta_of(eps, steps, sigma, q, direction, h=1 / 24):
    return float(hockey_steps(numpy.array([float(eps)]), steps, sigma, q, direction, h)[0])


def truth(sigma, q, steps, eps, direction):
    exact = [mpf(eps), mpf(sigma), mpf(q), direction]
    quick = delta_of(eps, steps, sigma, q, direction, 1 / 96)
    if steps == 1:
        value = hockey_exact(*exact)
    elif steps == 2:
        value = two_steps_exact(*exact)
    else:
        value = delta_of(eps, steps, sigma, q, direction, 1 / 128)
    agree(value, quick, f"delta at {sigma=} {q=} {steps=} {eps=} {direction}")
    adjacency = REPLACE if direction == "replace" else ADD_REMOVE
    return dict(sigma=sigma, q=q, steps=steps, epsilon=eps, adjacency=adjacency,
                direction=None if direction == "replace" else direction, delta=digits(value))


def epsilon_near(target, steps, sigma, q, direction):
    """An epsilon of four digits with a delta of about `target`; None if epsilon = 0 gives less."""
    lo, hi = 0.0, 1.0
    if delta_of(lo, steps, sigma, q, direction) < target:
        return None
    while delta_of(hi, steps, sigma, q, direction) > target:
        hi *= 2
    for _ in range(24):
        mid = (lo + hi) / 2
        lo, hi = (mid, hi) if delta_of(mid, steps, sigma, q, direction) > target else (lo, mid)
    return float(f"{lo:.4g}")


def truths():
    # All pairs of noise and rate in every direction would be too many rows. A subset is used, with
    # rotating targets, so that each direction has small and large epsilons at all scales.
    targets = [1e-1, 1e-4, 1e-8, 0.0, 1e-2, 1e-6, 1e-12, 1e-3, 1e-10, 0.05]
    pairs = [(s, q) for s in (0.3, 0.5, 1.0, 2.0, 5.0) for q in (0.001, 0.01, 0.1, 0.5, 0.9)]
    turn = 0
    for steps, keep in ((1, lambda k: k % 5 != 4), (2, lambda k: k % 2 == 0), (3, lambda k: k % 13 in (3, 8))):
        for i, (sigma, q) in enumerate(pairs):
            for j, direction in enumerate(("remove", "add", "replace")):
                if not keep(3 * i + j):
                    continue
                while True:
                    target, turn = targets[turn % len(targets)], turn + 1
                    # 0 and 0.05 are values of epsilon, the others values of delta.
                    eps = target if target in (0.0, 0.05) else epsilon_near(target, steps, sigma, q, direction)
                    if eps is not None and delta_of(eps, steps, sigma, q, direction) > 1e-13:
                        break
                yield truth(sigma, q, steps, eps, direction)


# ---- The Renyi divergence ---------------------------------------------------------------------------------------


def renyi(sigma, q, order, replace, step):
    """log of the integral of P^order Q^(1-order), over (order - 1), by the trapezoidal rule on a line.

    The integrand falls like a Gaussian outside [0, order] (replace-one: [0, 2 order - 1]) and is analytic in a strip,
    where the rule converges exponentially in 1 / step; `step` is chosen below for about 1e-35.
    """
    sigma, q, order, step = mpf(sigma), mpf(q), mpf(order), mpf(step)
    end = 2 * order - 1 if replace else order
    lo, n = -15 * sigma, int((end + 30 * sigma) / step) + 1
    total = mpf(0)
    for k in range(n + 1):
        x = lo + k * step
        term = -x * x / (2 * sigma**2) + order * mp.log(1 - q + q * mp.exp((2 * x - 1) / (2 * sigma**2)))
        if replace:
            term += (1 - order) * mp.log(1 - q + q * mp.exp((-2 * x - 1) / (2 * sigma**2)))
        total += mp.exp(term)
    return mp.log(total * step / (sigma * mp.sqrt(2 * mp.pi))) / (order - 1)


def renyi_step(sigma, order, replace):
    # Moving the line by i y multiplies the integrand by at most exp(y^2 / (2 sigma^2)), and by about
    # exp(order y^2 / (8 sigma^4)) more for the inverse power of Q in replace-one, while the rule's error falls as
    # exp(-2 pi y / step). The zeros of the mixtures limit y to pi sigma^2. Solve for a total of exp(-85).
    goal = 85
    step = 2 * math.pi**2 * sigma**2 / (goal + math.pi**2 * sigma**2 / 2)
    if replace:
        step = min(step, 2 * math.pi / math.sqrt(2 * goal * (1 / sigma**2 + order / (4 * sigma**4))))
    return step


def renyi_truth(sigma, q, order, replace=False):
    step = renyi_step(sigma, order, replace)
    value = renyi(sigma, q, order, replace, step)
    other = renyi(sigma, q, order, replace, step * 1.13)
    agree(value, other, f"Renyi divergence at {sigma=} {q=} {order=} {replace=}")
    return dict(sigma=sigma, q=q, order=float(order), value=digits(value))


ORDERS = (1.05, 1.5, 2, 2.7, 8, 17.3, 64, 256.5)
RENYI = [(s, q, a) for s in (0.2, 0.5, 1.0, 4.0) for q in (1e-4, 0.01, 0.3, 0.99) for a in ORDERS]
RENYI_REPLACE = [
    (0.5, 0.01, 1.05), (0.5, 0.3, 2), (0.5, 0.99, 8), (0.5, 1e-4, 17.3),
    (1.0, 1e-4, 1.5), (1.0, 0.01, 2), (1.0, 0.01, 17.3), (1.0, 0.3, 2.7), (1.0, 0.99, 64),
    (4.0, 1e-4, 8), (4.0, 0.01, 1.05), (4.0, 0.01, 64), (4.0, 0.3, 17.3), (4.0, 0.99, 2.7), (4.0, 0.3, 256.5),
]


# ---- Several rows of one person ---------------------------------------------------------------------------------


def group_truth(sigma, q, rows, eps):
    """One step, k rows of one person: P = sum_j Binom(k, q)(j) N(j), Q = N(0); the worse of the two directions."""
    s, p, alpha = mpf(sigma), mpf(q), mp.exp(mpf(eps))
    weight = [mp.binomial(rows, j) * p**j * (1 - p) ** (rows - j) for j in range(rows + 1)]

    def ratio(x):
        return mp.fsum(w * mp.exp((2 * j * x - j * j) / (2 * s * s)) for j, w in enumerate(weight))

    def solve(level):
        lo, hi = -60 * s * s - 60 * s, 60 * s * s + 60 * s + rows
        for _ in range(160):
            mid = (lo + hi) / 2
            lo, hi = (mid, hi) if ratio(mid) < level else (lo, mid)
        return lo

    def mixture_above(x):
        return mp.fsum(w * mp.ncdf((j - x) / s) for j, w in enumerate(weight))

    x = solve(alpha)
    remove = mixture_above(x) - alpha * mp.ncdf(-x / s)
    add = mpf(0)
    if 1 / alpha > weight[0]:
        x = solve(1 / alpha)
        add = mp.ncdf(x / s) - alpha * (1 - mixture_above(x))

    # The second computation: the integral of the positive part itself, cut where it changes sign.
    def density(x):
        return mp.exp(-x * x / (2 * s * s)) / (s * mp.sqrt(2 * mp.pi))

    lo, hi = -14 * s, rows + 14 * s
    cuts = sorted({lo, hi, min(max(x, lo), hi), min(max(solve(alpha), lo), hi)} | {mpf(j) for j in range(rows + 1)})
    other_remove = mpf(0)
    other_add = mpf(0)
    for a, b in zip(cuts, cuts[1:]):
        middle = ratio((a + b) / 2)
        if middle > alpha:
            other_remove += mp.quad(lambda x: density(x) * (ratio(x) - alpha), [a, b])
        elif alpha * middle < 1:
            other_add += mp.quad(lambda x: density(x) * (1 - alpha * ratio(x)), [a, b])
    what = f"delta at {sigma=} {q=} {rows=} {eps=}"
    agree(remove, other_remove, what)
    agree(add, other_add, what)
    return dict(sigma=sigma, q=q, rows=rows, epsilon=eps, delta=digits(max(remove, add)))


GROUP = [
    (1.0, 0.01, 1, 0.5), (1.0, 0.01, 2, 0.5), (1.0, 0.01, 4, 0.5), (1.0, 0.01, 8, 0.5),
    (2.0, 0.1, 2, 0.2), (2.0, 0.1, 4, 1.0), (2.0, 0.1, 8, 3.0), (0.5, 0.001, 2, 1.0), (0.5, 0.001, 8, 6.0),
    (5.0, 0.5, 4, 0.1), (5.0, 0.5, 8, 2.0), (1.5, 0.9, 4, 4.0), (3.0, 0.02, 8, 0.0),
]


def main():
    # dp-accounting logs which orders it leaves out of the Rényi bound; the bound remains valid.
    logging.getLogger("absl").setLevel(logging.ERROR)
    made = {
        "made_by": "peers/golden_accounting.py",
        "versions": {
            "dp-accounting": importlib.metadata.version("dp-accounting"),
            "mpmath": mpmath.__version__, "numpy": numpy.__version__, "scipy": scipy.__version__,
        },
    }
    parts = {
        "public": lambda: [public(*r) for r in PUBLIC] + [public(*r, REPLACE) for r in PUBLIC_REPLACE],
        "public_heterogeneous": lambda: [public_heterogeneous(*r) for r in PUBLIC_HETEROGENEOUS],
        "truth": lambda: list(truths()),
        "rdp_truth": lambda: [renyi_truth(*r) for r in RENYI],
        "rdp_truth_replace": lambda: [renyi_truth(*r, replace=True) for r in RENYI_REPLACE],
        "group_truth": lambda: [group_truth(*r) for r in GROUP],
    }
    for name, make in parts.items():
        began = time.time()
        made[name] = make()
        print(f"{name}: {len(made[name])} rows, {time.time() - began:.1f} s", flush=True)
    # One row per line, so that a diff shows the rows that changed.
    body = []
    for name, value in made.items():
        if isinstance(value, list):
            value = "[\n  " + ",\n  ".join(json.dumps(row, allow_nan=False) for row in value) + "\n ]"
        else:
            value = json.dumps(value)
        body.append(f" {json.dumps(name)}: {value}")
    text = "{\n" + ",\n".join(body) + "\n}\n"
    json.loads(text)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(text)
    print(f"{OUT}: {len(text)} bytes")


if __name__ == "__main__":
    main()
