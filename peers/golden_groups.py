#!/usr/bin/env python3
"""Prints the reference values of crates/accounting/tests/groups.rs: costs for units of several rows.

    python3 peers/golden_groups.py

Needs mpmath, and no code of Muffle; if it is missing, it creates peers/.venv-accounting and restarts
there. Divergences of one step are closed forms:

* one row, lots of a fixed size: H_alpha((1-q) N(0) + q N(2s) || N(0)), s = 1/sigma (pair.rs, claim 3);
* one row, Poisson lots, replace-one: H_alpha((1-q) N(0) + q N(s) || (1-q) N(0) + q N(-s)) (claim 2);
* k rows from one: (eps, delta) becomes (k eps, delta (e^(k eps) - 1)/(e^eps - 1)) (Vadhan 2017, Lemma 2.2);
* k rows in full or shuffled lots: N(c k sqrt(T)/sigma) against N(0), c = 1 (add/remove) or 2 (replace-one).
"""

import _venv

_venv.ensure({"mpmath": "mpmath==1.4.1"}, "accounting")

from mpmath import exp, expm1, log, mp, mpf, ncdf, nstr, sqrt

mp.dps = 40


def fixed_size(sigma, q, eps):
    mu, alpha = 2 / mpf(sigma), exp(eps)
    at = (log((alpha - 1 + q) / q) + mu**2 / 2) / mu
    return q * ncdf(mu - at) - (alpha - 1 + q) * ncdf(-at)


def poisson_replace(sigma, q, eps):
    s, alpha = 1 / mpf(sigma), exp(eps)
    # P = alpha Q where, with u = e^(s z), b u^2 - a (alpha - 1) u - alpha b = 0.
    a, b = (1 - q) * (alpha - 1), q * exp(-(s**2) / 2)
    at = log((a + sqrt(a**2 + 4 * alpha * b**2)) / (2 * b)) / s
    p = (1 - q) * ncdf(-at) + q * ncdf(s - at)
    return p - alpha * ((1 - q) * ncdf(-at) + q * ncdf(-s - at))


def gaussian(mu, eps):
    return ncdf(mu / 2 - eps / mu) - exp(eps) * ncdf(-mu / 2 - eps / mu)


def group(one, k, eps):
    """delta of k rows at eps, from delta of one row."""
    return one(mpf(eps) / k) * expm1(eps) / expm1(mpf(eps) / k)


def solve(curve, delta, low, high):
    """Returns eps with curve(eps) = delta, for a decreasing curve."""
    low, high = mpf(low), mpf(high)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if curve(middle) > delta else (low, middle)
    return high


def show(*row):
    print("    (" + ", ".join(x if isinstance(x, str) else nstr(mpf(x), 12) for x in row) + "),")


print("// lots of a fixed size: sigma, dataset, lot, adjacency, rows, epsilon, delta; then epsilon at delta = 1e-5")
for sigma, dataset, lot, k, eps in [(1.5, 1000, 50, 2, 1.0), (2.0, 1000, 100, 5, 3.0), (4.0, 200, 100, 3, 2.0), (3.0, 500, 5, 16, 4.0)]:
    for adjacency in ["ReplaceOne", "AddRemove"]:
        q = mpf(lot) / (dataset if adjacency == "ReplaceOne" else dataset - (k - 1))
        curve = lambda eps: group(lambda one: fixed_size(sigma, q, one), k, eps)
        show(sigma, str(dataset), str(lot), adjacency, str(k), eps, curve(eps), solve(curve, mpf("1e-5"), "1e-6", 200))

print("// Poisson lots, replace-one: sigma, q, rows, epsilon, delta; then epsilon at delta = 1e-5")
for sigma, q, k, eps in [(1.0, "0.01", 2, 1.0), (2.0, "0.1", 4, 3.0), (0.8, "0.001", 3, 2.0)]:
    curve = lambda eps: group(lambda one: poisson_replace(sigma, mpf(q), one), k, eps)
    show(sigma, q, str(k), eps, curve(eps), solve(curve, mpf("1e-5"), "1e-3", 100))

print("// full lots and shuffled epochs: sigma, epochs, adjacency, rows, epsilon at delta = 1e-5")
for sigma, epochs, k in [(10, 4, 1), (10, 4, 3), (30, 25, 8), (50, 1, 100), (5, 1, 2)]:
    for c, adjacency in [(1, "AddRemove"), (2, "ReplaceOne")]:
        mu = c * k * sqrt(mpf(epochs)) / sigma
        show(sigma, str(epochs), adjacency, str(k), solve(lambda eps: gaussian(mu, eps), mpf("1e-5"), "1e-9", 1000))
