#!/bin/sh
# Make sure that a Chromium is there for the browser tests, with a font to draw text in.
set -eu
fail() {
    echo "browser: $1" >&2
    exit 1
}
have_browser() {
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        command -v "$name" >/dev/null && return 0
    done
    [ -x "${LENSVIEW_CHROMIUM:-}" ]
}
have_font() { command -v fc-list >/dev/null && [ -n "$(fc-list : family 2>/dev/null)" ]; }

missing=$(
    have_browser || echo chromium
    have_font || echo fonts-dejavu-core fontconfig
)
missing=$(echo $missing) # in one line
[ -n "$missing" ] || exit 0

remedy="install one, or name it: LENSVIEW_CHROMIUM=/path/to/chromium make test"
command -v apt-get >/dev/null || fail "the browser tests need $missing, and there is no apt-get: $remedy."
root=
if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || fail "the browser tests need $missing. Type: sudo apt-get install $missing (or $remedy)."
    root=sudo
fi
echo "browser: installing $missing"
export DEBIAN_FRONTEND=noninteractive
{ $root apt-get -qq update && $root apt-get -qq install -y --no-install-recommends $missing >/dev/null; } ||
    fail "apt-get could not install: $missing. The lines above say why; or $remedy."
have_browser || fail "apt-get ran, but no chromium is on the PATH: $remedy."
