#!/usr/bin/env python3
"""Checks the includes against the walk of the data and draws them.

A room of aoizora/ may include only rooms before it in the walk (AOIZORA_ROOMS in CMakeLists.txt); what stands directly
in aoizora/ may include no room; no header shows Boost, for it is no part of the interface. On the Python side only
aoizora.compiler may know jax's private modules. Prints the drawing; exits 1 on an arrow against the walk.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]aoizora/(?:(\w+)/)?[\w.]+[">]', re.MULTILINE)
BOOST = re.compile(r'^\s*#\s*include\s+["<]boost/', re.MULTILINE)
PRIVATE_JAX = re.compile(r"^\s*(?:from|import)\s+(jax\._src\S*|jaxlib\S*)", re.MULTILINE)


def rooms_in_order() -> list[str]:
    found = re.search(r"set\(AOIZORA_ROOMS ([\w ]+)\)", (ROOT / "CMakeLists.txt").read_text())
    if found is None:
        sys.exit("tools/check_walk.py: CMakeLists.txt sets no AOIZORA_ROOMS")
    return found[1].split()


def faults_and_arrows(rooms: list[str]) -> tuple[list[str], dict[str, set[str]]]:
    faults: list[str] = []
    arrows: dict[str, set[str]] = {room: set() for room in rooms}
    for path in sorted([*ROOT.glob("aoizora/**/*.h"), *ROOT.glob("aoizora/**/*.cpp")]):
        name = path.relative_to(ROOT)
        text = path.read_text()
        room = name.parts[1] if len(name.parts) > 2 else None
        if room is not None and room not in rooms:
            faults.append(f"{name}: {room} is no room of AOIZORA_ROOMS in CMakeLists.txt")
            continue
        if path.suffix == ".h" and BOOST.search(text):
            faults.append(f"{name}: a header includes Boost; keep it in the .cpp file")
        for used in INCLUDE.findall(text):
            if not used or used == room:
                continue
            if room is None:
                faults.append(f"{name}: stands before every room but includes {used}")
            elif used not in rooms or rooms.index(used) > rooms.index(room):
                faults.append(f"{name}: {room} includes {used}, an arrow against the walk")
            else:
                arrows[room].add(used)
    for path in sorted(ROOT.glob("python/aoizora/**/*.py")):
        name = path.relative_to(ROOT)
        if "compiler" in name.parts:
            continue
        for module in PRIVATE_JAX.findall(path.read_text()):
            faults.append(f"{name}: imports {module}; only aoizora.compiler may")
    return faults, arrows


def drawing(rooms: list[str], arrows: dict[str, set[str]]) -> str:
    """One row a room: what it includes, under the rooms' columns."""
    width = max(map(len, rooms))
    head = " " * width + " includes " + " ".join(rooms)
    rows = []
    for i, room in enumerate(rooms):
        marks = [("x" if used in arrows[room] else "·").center(len(used)) for used in rooms[:i]]
        rows.append(f"{room:>{width}}          " + " ".join(marks))
    return "\n".join(row.rstrip() for row in [head, *rows])


def main() -> int:
    rooms = rooms_in_order()
    faults, arrows = faults_and_arrows(rooms)
    print(drawing(rooms, arrows))
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
