#!/bin/sh
# Names everything that the set-up needs and that is missing, with the line that installs it. Prints the Python to use.
# PYTHON and CXX choose other ones.
set -u

missing=""
install=""
need() {  # what is missing, Debian's packages for it
  missing="$missing
  - $1"
  install="$install $2"
}

# usable PYTHON: 3.11 or later, with venv, pip for it, and headers
usable() {
  "$1" -c '
import os, sys, sysconfig
import ensurepip, venv
sys.exit(not (sys.version_info >= (3, 11) and os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))))
' >/dev/null 2>&1
}

system="$(uname -s) $(uname -m)"
if [ "$system" != "Linux x86_64" ]; then
  echo "AoiZora plans with the real TPU compiler, and libtpu exists for x86-64 Linux only; this is $system." >&2
  exit 1
fi

compiler=${CXX:-}
for candidate in c++ g++ clang++; do
  [ -n "$compiler" ] || ! command -v "$candidate" >/dev/null 2>&1 || compiler=$candidate
done
if [ -z "$compiler" ] || ! printf '%s\n' '#include <version>' \
  '#if defined(__clang__) ? __clang_major__ < 15 : __GNUC__ < 12' '#error too old' '#endif' |
  "$compiler" -std=c++20 -x c++ -fsyntax-only - >/dev/null 2>&1; then
  need "a C++20 compiler: g++ 12 or later, or clang 15 or later (found: ${compiler:-none}; CXX=... chooses another)" g++
fi

command -v make >/dev/null 2>&1 || need "make" make

python=""
for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
  if [ -z "$python" ] && usable "$candidate"; then python=$candidate; fi
done
if [ -z "$python" ]; then
  name=python3
  command -v python3.11 >/dev/null 2>&1 && name=python3.11
  need "Python 3.11 or later with its headers and venv (looked at: ${PYTHON:-python3.11 python3.12 python3.13 python3})" \
    "$name $name-dev $name-venv"
fi

if [ -n "$missing" ]; then
  printf 'Missing:%s\n\nOn Debian and Ubuntu:\n  sudo apt-get install%s\n' "$missing" "$install" >&2
  exit 1
fi
echo "$python"
