"""One compile of a sharding serves all its placements: what the compiler makes does not depend on the device order."""

import itertools
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("libtpu")

from aoizora.compiler.queue import WorkerQueue

KINDS = {
    "psum": "all-reduce",
    "all_gather": "all-gather",
    "psum_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "ppermute": "collective-permute",
}
MESH = [{"name": name, "size": 2} for name in ("a", "b", "c")]


def axis_orders() -> list[list[int]]:
    """Device ids of the six ways to lay a 2x2x2 mesh on 2x4: device = 4 x + y, y = 2 y1 + y0."""
    digits = {"x": 4, "y1": 2, "y0": 1}
    return [
        [i * digits[p] + j * digits[q] + k * digits[r] for i, j, k in itertools.product(range(2), repeat=3)]
        for p, q, r in itertools.permutations(digits)
    ]


def any_order(seed: int) -> list[int]:
    order = list(range(8))
    random.Random(seed).shuffle(order)
    return order


@pytest.fixture(scope="module")
def queue() -> Iterator[WorkerQueue]:
    coordinates = [([x, y], 0) for x in range(2) for y in range(4)]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent)
        with WorkerQueue({}, "v5e:2x4", coordinates, 2, builder="compiler_builders:collective") as opened:
            yield opened


def texts(queue: WorkerQueue, rung: str, kind: str, over: str, orders: list[list[int]]) -> list[str]:
    candidate = {"mesh": MESH, "kind": kind, "over": list(over)}
    for id, order in enumerate(orders):
        queue.submit(json.dumps({"id": id, "candidate": candidate, "rung": rung, "placement": order}))
    answers = sorted((queue.next() for _ in orders), key=lambda answer: int(answer["id"]))
    assert [answer["failure"] for answer in answers] == [""] * len(orders)
    return [without_algorithm(answer["text"]) for answer in answers]


def without_algorithm(text: str) -> str:
    """The text without collective_algorithm_config, which is how a collective runs on the links of its placement."""
    key = '"collective_algorithm_config":'
    while key in text:
        start = text.index(key)
        _, end = json.JSONDecoder().raw_decode(text, start + len(key))
        text = text[:start] + text[end:].removeprefix(",")
    return text


@pytest.mark.parametrize("kind", KINDS)
def test_passes_do_not_depend_on_the_device_order(queue: WorkerQueue, kind: str) -> None:
    found = texts(queue, "passes", kind, "bc", [axis_orders()[0], axis_orders()[3], any_order(1)])
    assert re.search(rf" {KINDS[kind]}(-start)?\(", found[0]), "the collective is in the program"
    assert len(set(found)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("over", ["a", "bc", "abc"])
@pytest.mark.parametrize("kind", KINDS)
def test_code_does_not_depend_on_the_device_order(queue: WorkerQueue, kind: str, over: str) -> None:
    found = texts(queue, "code", kind, over, [*axis_orders()[::2], any_order(2)])
    assert re.search(rf" {KINDS[kind]}(-start)?\(", found[0]), "the collective is in the program"
    assert "estimated_cycles" in found[0]
    assert len(set(found)) == 1


def test_the_device_order_does_reach_the_compiler(queue: WorkerQueue) -> None:
    # Else the tests above would compare a program with itself.
    candidate: dict[str, Any] = {"mesh": MESH, "kind": "psum", "over": ["a"]}
    wrong = [*range(7), 6]
    queue.submit(json.dumps({"id": 1, "candidate": candidate, "rung": "passes", "placement": wrong}))
    assert queue.next()["outcome"] == "refused"
