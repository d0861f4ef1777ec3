#!/usr/bin/env bash
#
# Installs the Autobahn WebSocket test suite into a private prefix and runs its
# fuzzing client against a WebSocket echo endpoint.
#
#   autobahn.sh install          install the suite, do nothing when it is there
#   autobahn.sh run URL OUTDIR   install, test URL, write the reports to OUTDIR
#
# The suite is Python 2 code, so the prefix carries its own Python 2.7, taken
# from Debian bullseye on the Debian mirror this machine already uses. The
# system's apt sources, apt state and packages are left alone.
#
# Environment:
#   PREFIX            where to install
#                     (default: ${XDG_CACHE_HOME:-$HOME/.cache}/tenure-autobahn)
#   BULLSEYE_MIRROR   base URL of a Debian archive that holds bullseye
#                     (default: the mirror of the running Debian release)
#   AUTOBAHN_TIMEOUT  seconds a run may take (default: 600)
#
# `run` exits 0 when every case passed, 1 when a case failed or when fewer than
# 240 cases were reported, 2 on wrong usage or a failed installation step.

set -euo pipefail

PREFIX=${PREFIX:-${XDG_CACHE_HOME:-$HOME/.cache}/tenure-autobahn}
RUN_TIMEOUT=${AUTOBAHN_TIMEOUT:-600}
MIN_CASES=240

DEB_PACKAGES=(
    python2.7 python2.7-minimal libpython2.7-stdlib libpython2.7-minimal
    libssl1.1 libffi7
)

# The last pip and setuptools that run on Python 2.7.
BOOTSTRAP=(pip==20.3.4 setuptools==44.1.1)

# Installed without dependency resolution: the list is complete. The optional
# wsaccel is left out, it only makes the suite faster.
REQUIREMENTS=(
    autobahntestsuite==0.8.2
    autobahn==0.10.9
    txaio==2.1.0
    Twisted==20.3.0
    zope.interface==5.5.2
    pyOpenSSL==19.1.0
    cryptography==3.3.2
    klein==20.6.0
    werkzeug==1.0.1
    jinja2==2.11.3
    MarkupSafe==1.1.1
    Tubes==0.2.0
    Automat==20.2.0
    PyHamcrest==1.10.1
    attrs==21.4.0
    cffi==1.15.1
    constantly==15.1.0
    enum34==1.1.10
    hyperlink==21.0.0
    idna==2.10
    incremental==21.3.0
    ipaddress==1.0.23
    linecache2==1.0.0
    pyasn1-modules==0.2.8
    pyasn1==0.4.8
    pycparser==2.21
    service_identity==18.1.0
    six==1.16.0
    traceback2==1.4.0
    typing==3.10.0.0
    unittest2==1.1.0
)

say() {
    printf 'autobahn: %s\n' "$*"
}

die() {
    printf 'autobahn: error: %s\n' "$*" >&2
    exit 2
}

usage() {
    printf 'usage: %s install | run URL OUTDIR\n' "${0##*/}" >&2
    exit 2
}

# quiet NAME COMMAND...: keeps the output in $PREFIX/log/NAME.log and shows its
# end only when the command fails.
quiet() {
    local log=$PREFIX/log/$1.log
    shift
    if ! "$@" >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        die "failed: $* (full output in $log)"
    fi
}

# apt-get on a private source list, state and cache.
private_apt() {
    apt-get -q \
        -c "$PREFIX/apt/apt.conf" \
        -o Dir::Etc::sourcelist="$PREFIX/apt/sources.list" \
        -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::Etc::preferences=/dev/null \
        -o Dir::Etc::preferencesparts=/dev/null \
        -o Dir::State="$PREFIX/apt/state" \
        -o Dir::Cache="$PREFIX/apt/cache" \
        "$@"
}

# Runs a command with the libraries and modules of the prefix, blind to the
# caller's Python settings.
in_prefix() {
    local libs
    libs=$(printf '%s:' "$PREFIX"/root/usr/lib/*-linux-gnu "$PREFIX"/root/lib/*-linux-gnu)
    env -u PYTHONHOME \
        PYTHONNOUSERSITE=1 \
        PYTHONWARNINGS=ignore \
        PYTHONPATH="$PREFIX/site:$PREFIX/bootstrap" \
        LD_LIBRARY_PATH="${libs%:}" \
        "$@"
}

python2() {
    in_prefix "$PREFIX/root/usr/bin/python2.7" "$@"
}

# The archive that serves the running Debian release, as apt itself resolves it;
# --print-uris reads the sources and fetches nothing.
debian_mirror() {
    local codename
    # shellcheck source=/dev/null
    codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
    apt-get -c "$PREFIX/apt/apt.conf" -o Dir::State="$PREFIX/apt/state" \
        update --print-uris |
        awk -F"'" -v tail="/dists/$codename/InRelease" '
            !found && (at = index($2, tail)) { found = substr($2, 1, at - 1) }
            END { print found }'
}

have_debs() {
    local package
    for package in "${DEB_PACKAGES[@]}"; do
        compgen -G "$PREFIX/packages/deb/${package}_*.deb" >/dev/null || return 1
    done
}

fetch_debs() {
    local keyring=/usr/share/keyrings/debian-archive-keyring.gpg options='' mirror
    mkdir -p "$PREFIX"/apt/state/lists/partial "$PREFIX"/apt/cache/archives/partial
    # No hooks of the system, no indexes but the package list, and a release
    # that is no longer updated may carry an expired date. The prefix can lie
    # where apt's sandbox user may not write.
    cat >"$PREFIX/apt/apt.conf" <<'CONF'
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear Acquire::IndexTargets;
Acquire::IndexTargets::deb::Packages {
    MetaKey "$(COMPONENT)/binary-$(ARCHITECTURE)/Packages";
    ShortDescription "Packages";
    Description "$(RELEASE)/$(COMPONENT) $(ARCHITECTURE) Packages";
};
Acquire::Languages "none";
Acquire::Check-Valid-Until "false";
APT::Sandbox::User "root";
CONF
    mirror=${BULLSEYE_MIRROR:-}
    [ -n "$mirror" ] || mirror=$(debian_mirror) || true
    [ -n "$mirror" ] || die "no Debian mirror among the apt sources, set BULLSEYE_MIRROR"
    [ ! -e "$keyring" ] || options="[signed-by=$keyring] "
    printf 'deb %s%s bullseye main\n' "$options" "$mirror" >"$PREFIX/apt/sources.list"
    quiet apt-update private_apt -o APT::Update::Error-Mode=any update
    # apt-get download writes to the working directory.
    rm -rf "$PREFIX/packages/deb.new"
    mkdir -p "$PREFIX/packages/deb.new"
    pushd "$PREFIX/packages/deb.new" >/dev/null
    quiet apt-download private_apt download "${DEB_PACKAGES[@]}"
    popd >/dev/null
    rm -rf "$PREFIX/packages/deb"
    mv "$PREFIX/packages/deb.new" "$PREFIX/packages/deb"
}

unpack_debs() {
    local deb
    rm -rf "$PREFIX/root" "$PREFIX/root.new"
    mkdir -p "$PREFIX/root.new"
    for deb in "$PREFIX"/packages/deb/*.deb; do
        dpkg -x "$deb" "$PREFIX/root.new"
    done
    mv "$PREFIX/root.new" "$PREFIX/root"
}

unpack_bootstrap() {
    local wheel
    rm -rf "$PREFIX/bootstrap" "$PREFIX/bootstrap.new"
    mkdir -p "$PREFIX/bootstrap.new"
    for wheel in "$PREFIX"/packages/bootstrap/*.whl; do
        python3 -m zipfile -e "$wheel" "$PREFIX/bootstrap.new"
    done
    cp "$PREFIX/packages/bootstrap/requirements.txt" "$PREFIX/bootstrap.new/"
    mv "$PREFIX/bootstrap.new" "$PREFIX/bootstrap"
}

install_site() {
    rm -rf "$PREFIX/site" "$PREFIX/site.new"
    quiet pip-install python2 -m pip install --no-deps --no-index --no-build-isolation \
        --find-links "$PREFIX/packages/pypi" --target "$PREFIX/site.new" \
        -r "$PREFIX/packages/pypi/requirements.txt"
    # Packages outside a site directory get no .pth namespace handling.
    touch "$PREFIX/site.new/zope/__init__.py"
    cp "$PREFIX/packages/pypi/requirements.txt" "$PREFIX/site.new/"
    mv "$PREFIX/site.new" "$PREFIX/site"
}

# holds DIR REQUIREMENT...: DIR was completed with exactly these requirements.
holds() {
    local dir=$1
    shift
    [ -f "$dir/requirements.txt" ] && printf '%s\n' "$@" | cmp -s - "$dir/requirements.txt"
}

install_suite() {
    local tool
    for tool in apt-get dpkg python3 flock timeout; do
        command -v "$tool" >/dev/null || die "$tool is needed"
    done
    mkdir -p "$PREFIX/log" "$PREFIX/packages"
    PREFIX=$(cd "$PREFIX" && pwd)
    exec 9>"$PREFIX/.lock"
    flock 9

    if have_debs; then
        say "python 2.7 packages: cached"
    else
        say "python 2.7 packages: fetching ${DEB_PACKAGES[*]} from Debian bullseye"
        fetch_debs
    fi

    if [ -x "$PREFIX/root/usr/bin/python2.7" ]; then
        say "python 2.7: installed"
    else
        say "python 2.7: unpacking into $PREFIX/root"
        unpack_debs
    fi

    if holds "$PREFIX/packages/bootstrap" "${BOOTSTRAP[@]}"; then
        say "pip packages: cached"
    else
        say "pip packages: fetching ${BOOTSTRAP[*]}"
        rm -rf "$PREFIX/packages/bootstrap"
        quiet bootstrap-download python3 -m pip download --no-deps --python-version 2.7 \
            --only-binary=:all: -d "$PREFIX/packages/bootstrap" "${BOOTSTRAP[@]}"
        printf '%s\n' "${BOOTSTRAP[@]}" >"$PREFIX/packages/bootstrap/requirements.txt"
    fi

    if holds "$PREFIX/bootstrap" "${BOOTSTRAP[@]}"; then
        say "pip: installed"
    else
        say "pip: unpacking into $PREFIX/bootstrap"
        unpack_bootstrap
    fi

    if holds "$PREFIX/packages/pypi" "${REQUIREMENTS[@]}"; then
        say "suite packages: cached"
    else
        say "suite packages: fetching ${REQUIREMENTS[0]} and ${#REQUIREMENTS[@]} packages in all"
        rm -rf "$PREFIX/packages/pypi"
        quiet pip-download python2 -m pip download --no-deps \
            -d "$PREFIX/packages/pypi" "${REQUIREMENTS[@]}"
        printf '%s\n' "${REQUIREMENTS[@]}" >"$PREFIX/packages/pypi/requirements.txt"
    fi

    if holds "$PREFIX/site" "${REQUIREMENTS[@]}"; then
        say "suite: installed"
    else
        say "suite: installing ${REQUIREMENTS[0]} into $PREFIX/site"
        install_site
    fi

    quiet check python2 -m autobahntestsuite.wstest --help
    exec 9>&-
}

# Prints the table of behaviours; fails as the header of this file says.
summarise() {
    python3 - "$1/index.json" "$MIN_CASES" <<'PYTHON'
import collections
import json
import os
import sys

path, least = sys.argv[1], int(sys.argv[2])
accepted = {"OK", "NON-STRICT", "INFORMATIONAL", "UNIMPLEMENTED"}
order = ["OK", "NON-STRICT", "INFORMATIONAL", "UNIMPLEMENTED", "WRONG CODE",
         "UNCLEAN", "FAILED BY CLIENT", "FAILED"]

agents = {}
if os.path.exists(path):
    with open(path) as f:
        agents = json.load(f)
cases = {(a, i): c for a, found in agents.items() for i, c in found.items()}
behavior = collections.Counter(c["behavior"] for c in cases.values())
close = collections.Counter(c["behaviorClose"] for c in cases.values())
failed = {k: c for k, c in cases.items()
          if c["behavior"] not in accepted or c["behaviorClose"] not in accepted}

print("%-18s %9s %14s" % ("", "behavior", "behaviorClose"))
for name in order + sorted((set(behavior) | set(close)) - set(order)):
    if name in ("OK", "FAILED") or behavior[name] or close[name]:
        print("%-18s %9d %14d" % (name, behavior[name], close[name]))
for (_, case), c in sorted(failed.items(), key=lambda e: [int(n) for n in e[0][1].split(".")]):
    print("case %s: behavior %s, behaviorClose %s" % (case, c["behavior"], c["behaviorClose"]))
if len(cases) < least:
    print("expected at least %d cases" % least)
print("autobahn: %d cases, %d failed" % (len(cases), len(failed)))
sys.exit(1 if failed or len(cases) < least else 0)
PYTHON
}

run_suite() {
    local url=$1 outdir spec log status=0
    mkdir -p "$2"
    outdir=$(cd "$2" && pwd)
    spec=$outdir/fuzzingclient.json
    log=$outdir/wstest.log
    rm -f "$outdir"/index.html "$outdir"/index.json "$outdir"/server_case_*
    python3 - "$url" "$outdir" >"$spec" <<'PYTHON'
import json
import sys

json.dump({
    "outdir": sys.argv[2],
    "servers": [{"agent": "server", "url": sys.argv[1]}],
    "cases": ["*"],
    "exclude-cases": ["9.*", "12.*", "13.*"],
    "exclude-agent-cases": {},
}, sys.stdout, indent=2)
PYTHON
    say "running the fuzzing client against $url, reports in $outdir"
    in_prefix timeout --foreground "$RUN_TIMEOUT" "$PREFIX/root/usr/bin/python2.7" \
        -m autobahntestsuite.wstest -m fuzzingclient -s "$spec" >"$log" 2>&1 || status=$?
    if [ "$status" -eq 124 ]; then
        printf 'autobahn: stopped after %s seconds\n' "$RUN_TIMEOUT" >&2
    fi
    if [ "$status" -ne 0 ] || [ ! -f "$outdir/index.json" ]; then
        tail -n 5 "$log" >&2
    else
        grep -a '^Connection to .* failed' "$log" >&2 || true
    fi
    summarise "$outdir"
}

case ${1:-} in
    install)
        [ $# -eq 1 ] || usage
        install_suite
        ;;
    run)
        [ $# -eq 3 ] || usage
        install_suite
        run_suite "$2" "$3"
        ;;
    *)
        usage
        ;;
esac
