#!/usr/bin/env python3
"""Writes crates/data/tests/golden/scattering.json: coefficients of random images, computed by Kymatio.

    python3 peers/golden_scattering.py

If Kymatio is missing, the script creates peers/.venv-scattering and restarts there. Pixels are random
bytes divided by 255, from a fixed seed. Coefficients are row by row, channels last; those of one channel
of the image are consecutive.
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


def digits(values):
    return [float(f"{value:.6g}") for value in values.ravel()]


def case(rng, height, width, channels):
    pixels = rng.integers(0, 256, (height, width, channels))
    # Kymatio takes channels first.
    images = (pixels / 255).transpose(2, 0, 1)
    scattering = Scattering2D(J=2, shape=(height, width), L=8)
    paths = np.concatenate([scattering(np.ascontiguousarray(image)) for image in images])
    return {
        "image": [height, width, channels],
        "shape": [paths.shape[1], paths.shape[2], paths.shape[0]],
        "pixels": pixels.ravel().tolist(),
        "coefficients": digits(paths.transpose(1, 2, 0)),
    }


rng = np.random.default_rng(2021)
OUT.parent.mkdir(parents=True, exist_ok=True)
OUT.write_text(json.dumps([case(rng, *shape) for shape in SHAPES], separators=(",", ":")) + "\n")
print(f"{OUT}: {OUT.stat().st_size} bytes")
