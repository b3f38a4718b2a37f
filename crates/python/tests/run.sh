#!/usr/bin/env bash
# Tests of the Python module, in a virtual environment of their own with numpy and dp-accounting.
#
# Tests that need PyTorch are skipped, and say so; peers/python.py runs them all.
set -euo pipefail
cd "$(dirname "$0")/../../.."

target="${CARGO_TARGET_DIR:-$PWD/target}"
environment="$target/python-environment"
if ! python3 -c 'import ensurepip, venv' 2> /dev/null; then
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends python3-venv > /dev/null
fi
[ -x "$environment/bin/pytest" ] || {
    python3 -m venv "$environment"
    "$environment/bin/pip" install -q numpy dp-accounting "pytest>=8"
}

# As `cargo test --workspace` builds it: with the same features, dependencies are not built again.
cargo build --locked --workspace --all-targets
site="$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
rm -rf "$site/muffle"
cp -r crates/python/python/muffle "$site/muffle"
case "$(uname)" in
    Darwin) library=lib_muffle.dylib ;;
    *) library=lib_muffle.so ;;
esac
cp "$target/debug/$library" "$site/muffle/_muffle.abi3.so"
"$environment/bin/pytest" -q -rs "$@"
