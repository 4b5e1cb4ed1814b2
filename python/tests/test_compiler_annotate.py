"""One trace re-annotated is the program that a trace of its own gives."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from aoizora import _core
from aoizora.compiler import annotate

REQUEST = json.dumps({"model": "wan2.1-1.3b", "height": 480, "width": 832, "frames": 21})


def candidates(slice_name: str) -> list[dict]:
    found = json.loads(_core.enumerate(_core.make_workload(REQUEST), slice_name, "{}"))["candidates"]
    return [c.get("candidate", c) for c in found]


def compare(slice_name: str, chosen: list[dict]) -> None:
    """Runs in a process of its own, with the real Shardy."""
    import jax

    from aoizora.compiler import private, worker
    from aoizora.models import build_step

    private.quiet_locations()
    dims = json.loads(_core.slice_json(slice_name))["dims"]
    devices = worker._devices(slice_name, [(list(c), 0) for c in itertools.product(*map(range, dims))])

    def lowered(candidate: dict) -> jax.stages.Lowered:
        mesh = worker.make_mesh(worker.mesh_axes(candidate), devices, None)
        step, arguments = build_step(json.loads(REQUEST), candidate, mesh, 3, "opaque")
        return jax.jit(step).trace(*arguments).lower(lowering_platforms=("tpu",))

    traces: dict[str, str] = {}
    for candidate in chosen:
        key = annotate.trace_key(candidate, build_step.annotation_axes, 3)
        if key not in traces:
            traces[key] = lowered(annotate.stand_in(candidate, build_step.annotation_axes)).as_text()
        text = annotate.annotate(traces[key], candidate, build_step.annotation_axes)
        assert text == lowered(candidate).as_text(), candidate
    print(f"{len(chosen)} programs equal, {len(traces)} traces")


@pytest.mark.parametrize(
    ("slice_name", "count"),
    [("v5e:2x2", 12), ("v5e:4x4", 12), pytest.param("v5e:2x2", 0, marks=pytest.mark.slow)],
)
def test_reannotated_trace_equals_a_fresh_one(slice_name: str, count: int) -> None:
    environment = {**os.environ, "TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    done = subprocess.run(
        [sys.executable, __file__, slice_name, str(count)], env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "programs equal" in done.stdout


def test_a_mesh_axis_stays_with_the_dimension_further_left() -> None:
    candidate = {"mesh": [{"name": n, "size": 2} for n in ("data", "context")], "rules": {"mlp": ["context", "data"]}}
    text = f'<@mesh, [{{"data"}}, {{}}, {{"{annotate.STAND_IN}mlp"}}]> manual_axes={{"data", "{annotate.STAND_IN}mlp"}}'
    assert annotate.annotate(text, candidate, ["mlp"]) == '<@mesh, [{"data"}, {}, {"context"}]> manual_axes={"data"}'


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    everything = candidates(sys.argv[1])
    wanted = int(sys.argv[2])
    compare(sys.argv[1], random.Random(7).sample(everything, wanted) if wanted else everything)
