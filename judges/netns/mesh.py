"""A mesh of chips as network namespaces: a veth pair a link, static routes (x first), each direction shaped by tc htb.

No interface outside the namespaces is touched and none leads out of them: nothing sent inside can leave the mesh.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

PREFIX = "aoizora"
MTU = 9000
FRAME_BYTES = MTU + 14
PAYLOAD_BYTES = MTU - 20 - 20 - 12
"""Of a full frame: less IP, TCP and its timestamps."""


def _run(command: Sequence[str], batch: Sequence[str] = ()) -> None:
    done = subprocess.run(command, input="\n".join(batch) + "\n", capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[:300]}")


def _spaces() -> list[str]:
    folder = Path("/run/netns")
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def remove_left_over() -> None:
    """Removes namespaces of runs whose process is gone (killed before it could)."""
    for name in _spaces():
        parts = name.split("-")
        if len(parts) == 3 and parts[0] == PREFIX and parts[1].isdigit() and not Path(f"/proc/{parts[1]}").exists():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


class NamespaceMesh:
    """A mesh of this shape, there while the context is open."""

    def __init__(self, dims: tuple[int, int], megabits: int = 40) -> None:
        self.dims = dims
        self.megabits = megabits
        self.places = list(itertools.product(*map(range, dims)))
        self.names = [f"{PREFIX}-{os.getpid()}-{k}" for k in range(len(self.places))]
        self.addresses = [f"10.77.0.{k + 1}" for k in range(len(self.places))]
        self._handlers: dict[int, Any] = {}

    @property
    def link_bytes_per_second(self) -> float:
        """Payload a link carries in a second: what htb lets through, less the frames' headers."""
        return self.megabits * 1e6 / 8 * PAYLOAD_BYTES / FRAME_BYTES

    def next_hop(self, at: int, to: int) -> int:
        """The neighbour towards a chip: x first."""
        (x, y), (goal_x, goal_y) = self.places[at], self.places[to]
        if x != goal_x:
            x += 1 if goal_x > x else -1
        else:
            y += 1 if goal_y > y else -1
        return self.places.index((x, y))

    def neighbours(self, chip: int) -> Iterator[int]:
        """Chips one link away."""
        x, y = self.places[chip]
        for place in ((x - 1, y), (x + 1, y), (x, y - 1), (x, y + 1)):
            if place in self.places:
                yield self.places.index(place)

    def pairs_over(self, at: int, to: int) -> list[tuple[int, int]]:
        """Sources and destinations whose route takes the link."""
        result = []
        for source, goal in itertools.permutations(range(len(self.places)), 2):
            chip = source
            while chip != goal:
                following = self.next_hop(chip, goal)
                if (chip, following) == (at, to):
                    result.append((source, goal))
                chip = following
        return result

    def _links(self) -> list[str]:
        ends = f"mtu {MTU} gso_max_segs 1"
        return [
            f"link add to{b} netns {self.names[a]} {ends} type veth peer name to{a} netns {self.names[b]} {ends}"
            for a in range(len(self.places))
            for b in self.neighbours(a)
            if a < b
        ]

    def _routes(self, chip: int) -> list[str]:
        own = self.addresses[chip]
        lines = ["link set lo up", f"addr add {own}/32 dev lo"]
        lines += [f"link set to{neighbour} up" for neighbour in self.neighbours(chip)]
        for goal in range(len(self.places)):
            if goal != chip:
                hop = self.next_hop(chip, goal)
                lines.append(
                    f"route add {self.addresses[goal]}/32 via {self.addresses[hop]} dev to{hop} onlink src {own}"
                )
        return lines

    def _shaping(self, chip: int) -> list[str]:
        """One class a pair of chips, all equal, and one before them for packets without payload."""
        lines = []
        for neighbour in self.neighbours(chip):
            device = f"dev to{neighbour}"
            pairs = self.pairs_over(chip, neighbour)
            whole = f"{self.megabits}mbit"
            share = f"{self.megabits * 1000 // (len(pairs) + 2)}kbit"
            burst = "burst 18k cburst 18k"
            lines += [
                f"qdisc add {device} root handle 1: htb default 3",
                f"class add {device} parent 1: classid 1:1 htb rate {whole} ceil {whole} {burst}",
                f"class add {device} parent 1:1 classid 1:2 htb rate {share} ceil {whole} prio 0 quantum 9100 {burst}",
                f"class add {device} parent 1:1 classid 1:3 htb rate {share} ceil {whole} prio 1 quantum 9100 {burst}",
                f"filter add {device} parent 1: protocol ip prio 1 u32 match u16 0x0000 0xff80 at 2 flowid 1:2",
            ]
            for number, (source, goal) in enumerate(pairs, start=16):
                lines.append(
                    f"class add {device} parent 1:1 classid 1:{number:x} htb "
                    f"rate {share} ceil {whole} prio 1 quantum 9100 {burst}"
                )
                lines.append(
                    f"filter add {device} parent 1: protocol ip prio 2 u32 match ip src {self.addresses[source]}/32 "
                    f"match ip dst {self.addresses[goal]}/32 flowid 1:{number:x}"
                )
        return lines

    def _settings(self) -> str:
        wanted = {
            "ipv4/ip_forward": "1",
            "ipv4/conf/all/rp_filter": "0",
            "ipv4/conf/default/rp_filter": "0",
            "ipv4/tcp_congestion_control": "reno",
            "ipv4/tcp_slow_start_after_idle": "0",
            "ipv4/tcp_no_metrics_save": "1",
            "ipv4/tcp_rmem": "4096 65536 131072",
            "ipv6/conf/all/disable_ipv6": "1",
        }
        return "".join(
            f"[ -w /proc/sys/net/{name} ] && echo '{value}' > /proc/sys/net/{name}\n" for name, value in wanted.items()
        )

    def _build(self) -> None:
        for name in self.names:
            _run(["ip", "netns", "add", name])
            _run(["ip", "netns", "exec", name, "sh", "-s"], [self._settings() + "true"])
        _run(["ip", "-batch", "-"], self._links())
        for chip, name in enumerate(self.names):
            _run(["ip", "-netns", name, "-batch", "-"], self._routes(chip))
            _run(["tc", "-netns", name, "-batch", "-"], self._shaping(chip))

    def remove(self) -> None:
        """Removes the namespaces, and with them links, routes and classes."""
        for name in set(self.names) & set(_spaces()):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(f"signal {number}")

    def __enter__(self) -> NamespaceMesh:
        remove_left_over()
        atexit.register(self.remove)
        for number in (signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(ValueError):  # not the main thread
                self._handlers[number] = signal.signal(number, self._interrupted)
        try:
            self._build()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()
        atexit.unregister(self.remove)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()


def reason_to_skip() -> str | None:
    """What this machine lacks for a mesh of namespaces; None where it can have one."""
    if os.geteuid() != 0:
        return "not root: network namespaces cannot be made"
    for program in ("ip", "tc", "unshare", "hostname"):
        if shutil.which(program) is None:
            return f"no {program}"
    trial: Callable[[], NamespaceMesh] = lambda: NamespaceMesh((1, 2))  # noqa: E731
    try:
        with trial():
            return None
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return f"no namespaces with htb and u32 here: {error}"
