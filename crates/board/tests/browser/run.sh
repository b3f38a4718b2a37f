#!/usr/bin/env bash
# Tests the board in Chromium: ./run.sh [FOLDER FOR SCREENSHOTS]
#
# Needs node, npm and Chromium (Debian: apt-get install chromium), found as $CHROMIUM or
# /usr/bin/chromium. $MUFFLE is the program; by default it is built.
set -euo pipefail
shots="$(realpath -m "${1:-$(mktemp -d)}")"
cd "$(dirname "$0")"

export CHROMIUM="${CHROMIUM:-/usr/bin/chromium}"
missing=""
[ -x "$CHROMIUM" ] || missing="$CHROMIUM"
command -v node > /dev/null && command -v npm > /dev/null || missing="$missing node and npm"
if [ -n "$missing" ]; then
    echo "############################################################" >&2
    echo "## SKIPPED: the board was NOT tested in a browser." >&2
    echo "## Missing: $missing" >&2
    echo "############################################################" >&2
    # In CI a browser is required.
    [ "${MUFFLE_REQUIRE_BROWSER:-0}" = 0 ] || exit 1
    exit 0
fi
npm ci --silent --no-audit --no-fund
if [ -z "${MUFFLE:-}" ]; then
    cargo build --quiet --locked -p muffle-cli
    MUFFLE="$(cargo metadata --no-deps --format-version 1 | node -e \
        'process.stdin.on("data", (d) => (globalThis.t = (globalThis.t ?? "") + d)).on("end", () => console.log(JSON.parse(t).target_directory))')/debug/muffle"
fi
export MUFFLE
mkdir -p "$shots"
node board.mjs "$shots"
