"""Provides the Python packages of a peer script, without changing the system Python.

A peer script calls `ensure(...)` before it imports a third-party package. If an import is missing,
a virtual environment of the given name is created beside this file, the packages are installed into
it (this needs the network once), and the script restarts inside it.
"""

import importlib.util
import os
import pathlib
import subprocess
import sys
import venv


def ensure(packages, name):
    """Restarts the script in the environment `name` if an import is missing.

    `packages` maps each imported name to the pip requirement that provides it.
    """
    home = pathlib.Path(__file__).resolve().parent / f".venv-{name}"
    missing = [module for module in packages if importlib.util.find_spec(module) is None]
    if not missing:
        return
    python = home / "bin" / "python"
    inside = pathlib.Path(sys.prefix).resolve() == home
    if not python.exists():
        print(f"creating {home}", file=sys.stderr)
        venv.create(home, with_pip=True)
        # Git ignores the environment without a rule elsewhere.
        (home / ".gitignore").write_text("*\n")
    if not inside:
        # An environment of one script may lack packages of another: restart inside, check again.
        os.execv(python, [str(python), *sys.argv])
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages.values()], check=True)
    importlib.invalidate_caches()
    still = [module for module in packages if importlib.util.find_spec(module) is None]
    if still:
        sys.exit(f"installed {list(packages.values())}, but cannot import {still}")
