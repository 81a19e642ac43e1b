#!/bin/sh
# Install the front end's build tools into js/node_modules, as js/package-lock.json has them.
set -eu
stamp=js/node_modules/lensview.stamp
fail() {
    echo "front end: $1" >&2
    exit 1
}
command -v npm >/dev/null ||
    fail "npm is missing: the front end's tests need Node 20 or newer (on Debian: apt-get install nodejs npm). Using lensview needs no node."
node -e 'process.exit(parseInt(process.versions.node) >= 20 ? 0 : 1)' ||
    fail "Node $(node --version) is too old: 20 or newer is needed."
digest() { cat js/package.json js/package-lock.json | cksum; }
[ "$(cat "$stamp" 2>/dev/null)" = "$(digest)" ] && exit 0
echo "front end: installing the build tools (npm ci)"
(cd js && npm ci --no-audit --no-fund --loglevel=error) ||
    fail "npm ci failed; the lines above say why. Is the npm registry reachable?"
digest >"$stamp"
