#!/usr/bin/env python3
"""Writes crates/data/tests/golden/scattering.json: features of random images, computed by Kymatio.

    python3 peers/golden_scattering.py

If Kymatio is missing, the script creates peers/.venv-scattering and restarts there. Pixels are random
bytes divided by 255, from a fixed seed. Coefficients and features are row by row, channels last; those
of one channel of the image are consecutive. Coefficients are those of the image itself. Features are
those of the standardized image, whitened with the statistics of synthetic images, in numpy; the file has
the features of the first position only.
"""

import _venv

# Kymatio 0.3.0 imports scipy.special.sph_harm, which scipy 1.17 does not have.
_venv.ensure({"kymatio": "kymatio==0.3.0", "numpy": "numpy==2.2.6", "scipy": "scipy==1.14.1"}, "scattering")

import json
import pathlib

import numpy as np
from kymatio.numpy import Scattering2D

OUT = pathlib.Path(__file__).resolve().parent.parent / "crates/data/tests/golden/scattering.json"
# Height, width, channels: MNIST, CIFAR-10 in grey, and sizes that are not multiples of four.
SHAPES = [(28, 28, 1), (32, 32, 1), (13, 18, 3)]
SYNTHETIC, SIDE, SAMPLES, SHRINKAGE = 200, 32, 4, 0.1


class Uniform:
    """SplitMix64."""

    MASK = 2**64 - 1

    def __init__(self, number):
        self.state = number * 0xD1342543DE82EF95 & self.MASK

    def next(self):
        self.state = self.state + 0x9E3779B97F4A7C15 & self.MASK
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & self.MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & self.MASK
        return ((z ^ z >> 31) >> 11) / 2**53


def dead_leaves(number, channels):
    """An image of opaque discs from front to back, whose radii have the density r^-3."""
    uniform, side = Uniform(number), SIDE * SAMPLES
    image, covered = np.zeros((side, side, channels)), np.zeros((side, side), bool)
    middle = (np.arange(side) + 0.5) / SAMPLES
    for _ in range(20_000):
        if covered.all():
            break
        u = uniform.next()
        radius = ((1 - u) / 0.5**2 + u / SIDE**2) ** -0.5
        y, x = ((uniform.next() * 2 - 0.5) * SIDE for _ in range(2))
        brightness = uniform.next()
        color = [brightness] if channels == 1 else [brightness + 0.3 * (uniform.next() - 0.5) for _ in range(3)]
        rows, cols = (np.nonzero(abs(middle - center) <= radius)[0] for center in (y, x))
        if len(rows) == 0 or len(cols) == 0:
            continue
        window = np.ix_(rows, cols)
        inside = (middle[rows, None] - y) ** 2 + (middle[cols] - x) ** 2 <= radius**2
        new = inside & ~covered[window]
        image[window] = np.where(new[..., None], np.clip(color, 0, 1), image[window])
        covered[window] |= new
    return image.reshape(SIDE, SAMPLES, SIDE, SAMPLES, channels).mean(axis=(1, 3))


def standardize(image):
    image = (image - image.mean()) / (image.std() + 0.05)
    if image.shape[2] != 3:
        return image
    red, green, blue = np.moveaxis(image, 2, 0)
    colors = [(red + green + blue) / 3**0.5, (red - blue) / 2**0.5, (2 * green - red - blue) / 6**0.5]
    return np.stack(colors, axis=2)


def coefficients(image, scattering):
    """Rows, columns, channels of the image, 81 coefficients."""
    return np.stack([scattering(np.ascontiguousarray(x)) for x in np.moveaxis(image, 2, 0)]).transpose(2, 3, 0, 1)


def whitenings(channels):
    """For each channel, the means and the matrix that features are multiplied by."""
    scattering = Scattering2D(J=2, shape=(SIDE, SIDE), L=8)
    images = (standardize(dead_leaves(number, channels)) for number in range(SYNTHETIC))
    samples = np.stack([coefficients(image, scattering) for image in images])
    found = []
    for channel in range(channels):
        rows = samples[:, :, :, channel].reshape(-1, 81)
        deviations, correlations = rows.std(axis=0), np.corrcoef(rows.T)
        values, vectors = np.linalg.eigh(correlations)
        root = vectors / np.sqrt(values + SHRINKAGE) @ vectors.T
        scale = np.mean(values / (values + SHRINKAGE)) ** -0.5
        found.append((rows.mean(axis=0), scale * root / deviations[:, None]))
    return found


WHITENINGS = {channels: whitenings(channels) for channels in (1, 3)}


def digits(values):
    return [float(f"{value:.6g}") for value in values.ravel()]


def case(rng, height, width, channels):
    pixels = rng.integers(0, 256, (height, width, channels))
    # Kymatio takes channels first.
    images = (pixels / 255).transpose(2, 0, 1)
    scattering = Scattering2D(J=2, shape=(height, width), L=8)
    paths = np.concatenate([scattering(np.ascontiguousarray(image)) for image in images])
    first = coefficients(standardize(pixels / 255), scattering)[0, 0]
    features = [(x - means) @ matrix for x, (means, matrix) in zip(first, WHITENINGS[channels])]
    return {
        "image": [height, width, channels],
        "shape": [paths.shape[1], paths.shape[2], paths.shape[0]],
        "pixels": pixels.ravel().tolist(),
        "coefficients": digits(paths.transpose(1, 2, 0)),
        "first_features": digits(np.concatenate(features)),
    }


rng = np.random.default_rng(2021)
OUT.parent.mkdir(parents=True, exist_ok=True)
OUT.write_text(json.dumps([case(rng, *shape) for shape in SHAPES], separators=(",", ":")) + "\n")
print(f"{OUT}: {OUT.stat().st_size} bytes")
