#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Make the virtual environment that the Makefile works in: torch, and what builds the package.
# Where the Python at hand already has a torch that is new enough (a machine with CUDA, as a rule),
# the environment borrows it, and nothing that is there already is downloaded again.
#
# Usage: PYTHON=python3 tools/venv.sh FOLDER TORCH_REQUIREMENT
set -euo pipefail

folder=$1
torch=$2
python=${PYTHON:-python3}

fail() {
  printf 'error: %s\n  try: %s\n' "$1" "$2" >&2
  exit 3
}

command -v "$python" >/dev/null || fail "no $python" "install Python 3.10 or newer, or set PYTHON"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  fail "$("$python" --version) is too old" "set PYTHON to Python 3.10 or newer"
command -v "${CXX:-g++}" >/dev/null || fail "no C++ compiler" "apt-get install g++"
command -v make >/dev/null || fail "no make" "apt-get install make"

# True when the Python given has a torch that serves.
has_torch() {
  "$1" - <<'PYTHON' 2>/dev/null
import importlib.metadata, re, sys
version = re.match(r"(\d+)\.(\d+)", importlib.metadata.version("torch"))
sys.exit(tuple(map(int, version.groups())) < (2, 11))
PYTHON
}

options=()
has_torch "$python" && options+=(--system-site-packages)
"$python" -m venv "${options[@]}" "$folder" ||
  fail "could not make a virtual environment in $folder" "apt-get install python3-venv"
inside=$folder/bin/python

# What borrows must not shadow: the setuptools that comes with an environment is older than torch's.
[[ ${#options[@]} -eq 0 ]] || "$inside" -m pip uninstall --quiet --yes setuptools 2>/dev/null || true

# A virtual environment made from another one does not see that one's packages, only its base's.
if [[ ${#options[@]} -gt 0 ]] && ! has_torch "$inside"; then
  "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    >"$("$inside" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/borrowed.pth"
fi

pip() { "$inside" -m pip --disable-pip-version-check "$@"; }

# Requirements that are met already cost no look-up, so this works without a network too.
needs=("scikit-build-core>=0.11")
command -v cmake >/dev/null || needs+=("cmake>=3.22")
command -v ninja >/dev/null || needs+=("ninja>=1.10")
pip install --quiet "${needs[@]}"
# Compiling every module of torch takes longer than installing it; imports compile what they need.
has_torch "$inside" || pip install --no-compile "$torch" numpy
