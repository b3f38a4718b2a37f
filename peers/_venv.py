"""Gives a peer script the Python packages it needs, without touching the system Python.

A peer script calls `ensure(...)` before it imports anything foreign. If an import is missing, a virtual
environment of the given name is made beside this file, the packages are installed into it (this needs the
network once), and the script starts over inside it.
"""

import importlib.util
import os
import pathlib
import subprocess
import sys
import venv


def ensure(packages, name):
    """`packages` maps each imported name to the pip requirement that provides it; `name` is the environment's."""
    home = pathlib.Path(__file__).resolve().parent / f".venv-{name}"
    missing = [module for module in packages if importlib.util.find_spec(module) is None]
    if not missing:
        return
    python = home / "bin" / "python"
    inside = pathlib.Path(sys.prefix).resolve() == home
    if not python.exists():
        print(f"making {home}", file=sys.stderr)
        venv.create(home, with_pip=True)
        # The environment is not source: let git overlook it without a rule elsewhere.
        (home / ".gitignore").write_text("*\n")
    if not inside:
        # An environment made for one script may lack what another needs: start over inside, and look again there.
        os.execv(python, [str(python), *sys.argv])
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages.values()], check=True)
    importlib.invalidate_caches()
    still = [module for module in packages if importlib.util.find_spec(module) is None]
    if still:
        sys.exit(f"installed {list(packages.values())}, and still cannot import {still}")
