"""Numbers of a slice from times: that they are those the times came from, and that real devices give some."""

from __future__ import annotations

import copy
import json
import os
import random
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from judges import calibration_checks
from judges.netns import mesh

from aoizora import InvalidRequest, Plan, _core, cli
from aoizora.calibrating import (
    COLLECTIVES,
    KERNELS,
    Calibration,
    calibrate,
    collective_cases,
    fitting,
    in_slice_order,
    kernel_cases,
)
from aoizora.calibrating.cases import Case, planned_seconds
from aoizora.commands.calibrate import lines, sizes_bytes

SIZES = [64_000, 1_000_000, 8_000_000]


def slice_of(name: str) -> dict[str, Any]:
    return dict(json.loads(_core.slice_json(name)))


def cases_of(base: dict[str, Any]) -> list[Case]:
    return collective_cases(base, COLLECTIVES, SIZES) + kernel_cases(KERNELS, on_tpu=True)


def drawn(draw: random.Random, base: dict[str, Any]) -> dict[str, Any]:
    """A slice with other numbers, of a size that a microbenchmark of SIZES shows."""
    true = copy.deepcopy(base)
    hardware = true["hardware"]
    hardware["ici_bytes_per_second"] = draw.uniform(1e9, 100e9)
    hardware["hop_seconds"] = draw.uniform(1e-7, 5e-6)
    hardware["matmul_efficiency"] = draw.uniform(0.05, 1)
    slower = draw.uniform(0.5, 4)
    for name in ("attention_product_cycles", "attention_step_cycles", "attention_row_cycles"):
        hardware[name] = hardware[name]["value"] * slower
    for kind in COLLECTIVES:
        rates = hardware["collectives"][kind]
        rates["alpha_seconds"] = draw.uniform(1e-6, 2e-5)
        rates["rate_fraction"] = draw.uniform(0.3, 1)
    hardware["collectives"][draw.choice(COLLECTIVES)]["rate_fraction"] = 1.0
    for kind in ("all-gather", "all-reduce", "reduce-scatter"):
        hardware["collectives"][kind]["ring_directions"] = draw.choice([1, 2])
    permute = hardware["collectives"]["collective-permute"]
    link = hardware["ici_bytes_per_second"] * permute["rate_fraction"]
    permute["flow_bytes_per_second"] = draw.choice([0.0, draw.uniform(0.55, 0.85) * link])
    return true


def number(descriptor: dict[str, Any], name: str, kind: str = "") -> float:
    place = descriptor["hardware"]["collectives"][kind] if kind else descriptor["hardware"]
    value = place[name]
    return float(value["value"] if isinstance(value, dict) else value)


def rates(descriptor: dict[str, Any]) -> dict[str, float]:
    link = number(descriptor, "ici_bytes_per_second")
    return {kind: link * number(descriptor, "rate_fraction", kind) for kind in COLLECTIVES}


TWO_CORES = {"name": "two cores", "dims": [2, 4], "wraps": [False, False], "cores_per_chip": 2}


@pytest.mark.parametrize("name", ["v5e:2x4", "v5e:4x4", "two cores"])
def test_times_of_the_planners_own_costs_give_back_the_numbers_they_came_from(name: str) -> None:
    draw = random.Random(name)
    base = slice_of(name if name != "two cores" else "v5e:2x4")
    if name == "two cores":
        base = {**base, **TWO_CORES}
        base["hardware"]["core_bytes_per_second"] = {"value": 200e9, "source": "test"}
    cases = cases_of(base)
    for _ in range(3):
        true = drawn(draw, base)
        seconds = planned_seconds(cases, true)
        found = fitting.fit(cases, seconds, base, "test")
        assert found.predicted_seconds == pytest.approx(seconds, rel=1e-5)
        assert rates(found.descriptor) == pytest.approx(rates(true), rel=1e-5)
        for wanted in ("ici_bytes_per_second", "hop_seconds", "matmul_efficiency", "attention_product_cycles"):
            assert number(found.descriptor, wanted) == pytest.approx(number(true, wanted), rel=1e-4), wanted
        for kind in COLLECTIVES:
            for wanted in ("alpha_seconds", "ring_directions"):
                there = number(found.descriptor, wanted, kind)
                assert there == pytest.approx(number(true, wanted, kind), rel=1e-3), (kind, wanted)
        limit, there = (number(of, "flow_bytes_per_second", "collective-permute") for of in (true, found.descriptor))
        # Where no limit shows, the one before may stay above what a link carries.
        assert there == pytest.approx(limit, rel=1e-3) if limit else there == 0 or there >= rates(true)[COLLECTIVES[0]]


def test_noise_of_three_percent_moves_no_rate_by_more_than_ten() -> None:
    draw = random.Random(5)
    base = slice_of("v5e:2x4")
    cases = cases_of(base)
    for _ in range(3):
        true = drawn(draw, base)
        noise = np.exp([draw.gauss(0, 0.03) for _ in cases])
        found = fitting.fit(cases, planned_seconds(cases, true) * noise, base, "test")
        assert rates(found.descriptor) == pytest.approx(rates(true), rel=0.1)


def test_one_time_far_off_among_many_moves_little() -> None:
    draw = random.Random(6)
    base = slice_of("v5e:2x4")
    cases = cases_of(base)
    seconds = planned_seconds(cases, drawn(draw, base))
    right = rates(fitting.fit(cases, seconds, base, "test").descriptor)
    for kind in ("all-gather", "all-reduce"):
        busy = seconds.copy()
        busy[draw.choice([k for k, case in enumerate(cases) if case.kind == kind])] *= 5
        assert rates(fitting.fit(cases, busy, base, "test").descriptor) == pytest.approx(right, rel=0.05)


def test_twice_the_times_are_half_the_rates_and_twice_the_latencies() -> None:
    base = slice_of("v5e:2x4")
    cases = cases_of(base)
    seconds = planned_seconds(cases, drawn(random.Random(2), base))
    once, twice = (fitting.fit(cases, factor * seconds, base, "test").descriptor for factor in (1, 2))
    assert rates(twice) == pytest.approx({kind: rate / 2 for kind, rate in rates(once).items()}, rel=1e-5)
    assert number(twice, "hop_seconds") == pytest.approx(2 * number(once, "hop_seconds"), rel=1e-4)
    assert number(twice, "matmul_efficiency") == pytest.approx(number(once, "matmul_efficiency") / 2, rel=1e-5)


def test_where_no_two_permutes_share_a_link_the_lone_rate_is_all_that_is_said() -> None:
    base = slice_of("v5e:2x2")
    true = copy.deepcopy(base)
    true["hardware"]["collectives"]["collective-permute"].update(rate_fraction=0.9, flow_bytes_per_second=20e9)
    cases = cases_of(base)
    assert not [case for case in cases if case.what == "two on a link"]
    seconds = planned_seconds(cases, true)
    assert fitting.fit(cases, seconds, base, "test").predicted_seconds == pytest.approx(seconds, rel=1e-4)


def test_a_start_that_is_free_does_not_make_links_look_faster() -> None:
    """Buffers take the first bytes at once: T = (B - b) / rate."""
    base = slice_of("v5e:2x4")
    cases = collective_cases(base, ("collective-permute",), [100_000, 400_000])
    true = copy.deepcopy(base)
    true["hardware"].update(ici_bytes_per_second=2.5e6, hop_seconds=0)
    true["hardware"]["collectives"]["collective-permute"].update(
        alpha_seconds=0, rate_fraction=1, flow_bytes_per_second=0
    )
    found = fitting.fit(cases, planned_seconds(cases, true) - 18_000 / 2.5e6, base, "test")
    assert number(found.descriptor, "ici_bytes_per_second") == pytest.approx(2.5e6, rel=0.02)
    assert number(found.descriptor, "alpha_seconds", "collective-permute") == 0


def test_what_was_not_measured_keeps_its_value_and_is_named() -> None:
    base = slice_of("v5e:2x4")
    cases = collective_cases(base, ("all-gather",), SIZES)
    found = fitting.fit(cases, planned_seconds(cases, base) * 2, base, "test")
    kept = {kept.number for kept in found.kept}
    assert {"collective-permute", "all-reduce", "matmul_efficiency", "attention_product_cycles"} <= kept
    for kind in ("collective-permute", "all-reduce"):
        assert found.descriptor["hardware"]["collectives"][kind] == base["hardware"]["collectives"][kind]
    assert found.descriptor["hardware"]["matmul_efficiency"] == base["hardware"]["matmul_efficiency"]


def test_a_kind_whose_times_do_not_grow_with_the_bytes_is_kept_and_alone_refused() -> None:
    base = slice_of("v5e:2x4")
    cases = collective_cases(base, ("all-gather", "all-reduce"), SIZES)
    seconds = planned_seconds(cases, base)
    flat = np.array([case.kind == "all-reduce" for case in cases])
    seconds[flat] = 1e-3
    found = fitting.fit(cases, seconds, base, "test")
    assert "all-reduce" in {kept.number for kept in found.kept}
    assert found.descriptor["hardware"]["collectives"]["all-reduce"] == base["hardware"]["collectives"]["all-reduce"]
    alone = [case for case, is_flat in zip(cases, flat, strict=True) if is_flat]
    with pytest.raises(InvalidRequest, match="do not grow with the bytes"):
        fitting.fit(alone, [1e-3] * len(alone), base, "test")


def test_sizes_that_whole_tiles_make_one_tell_no_rate() -> None:
    base = slice_of("v5e:2x4")
    cases = collective_cases(base, ("all-reduce",), [100, 1000])
    only = [case for case in cases if case.what == "all 8 chips"]
    assert len({case.size for case in only}) == 1
    with pytest.raises(InvalidRequest, match="one size"):
        fitting.fit(only, planned_seconds(only, base), base, "test")


def test_a_matmul_faster_than_whole_programs_allow_leaves_the_efficiency() -> None:
    base = slice_of("v5e:2x4")
    cases = kernel_cases(KERNELS, on_tpu=True)
    found = fitting.fit(cases, planned_seconds(cases, base) * 0.8, base, "test")
    assert number(found.descriptor, "matmul_efficiency") == number(base, "matmul_efficiency")
    assert any(kept.number == "matmul_efficiency" and "core_efficiency" in kept.reason for kept in found.kept)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 0.0, -1.0])
def test_times_that_are_none_are_refused(wrong: float) -> None:
    base = slice_of("v5e:2x2")
    cases = collective_cases(base, ("all-gather",), SIZES)
    with pytest.raises(InvalidRequest, match="took no time"):
        fitting.fit(cases, [wrong] + [1e-3] * (len(cases) - 1), base, "test")


def test_a_plan_takes_the_descriptor_and_its_numbers_decide(recording: Path, tmp_path: Path) -> None:
    base = slice_of("v5e:2x2")
    cases = collective_cases(base, COLLECTIVES, SIZES)
    request = json.dumps({"model": "wan2.1-1.3b"})
    settings = json.dumps({"survivor_floor": 8, "survivor_fraction": 0.05})
    steps = []
    for slower in (1.0, 8.0):
        found = fitting.fit(cases, planned_seconds(cases, base) * slower, base, f"test, {slower:g} times")
        path = tmp_path / f"slower{slower:g}.json"
        path.write_text(json.dumps(found.descriptor))
        assert json.loads(_core.slice_json(str(path)))["hardware"] == found.descriptor["hardware"]
        plan = json.loads(_core.replay_plan(str(recording), request, str(path), settings, 0, ["jax=recorded"]))
        link = plan["slice"]["hardware"]["ici_bytes_per_second"]
        assert link == {"value": number(found.descriptor, "ici_bytes_per_second"), "source": f"test, {slower:g} times"}
        steps.append(plan["best"]["passes_step_seconds"])
    as_named = json.loads(_core.replay_plan(str(recording), request, "v5e:2x2", settings, 0, ["jax=recorded"]))
    assert steps[0] == pytest.approx(as_named["best"]["passes_step_seconds"], rel=1e-3)
    assert steps[1] > 1.2 * steps[0]


def test_devices_stand_where_the_slice_has_them(recorded_plan: Plan) -> None:
    places = [tuple(at) for at, _ in _core.slice_devices("v5e:2x4")]
    chips = [SimpleNamespace(coords=(*at, 0), core_on_chip=0) for at in places]
    shuffled = random.Random(1).sample(chips, len(chips))
    assert in_slice_order(shuffled, "v5e:2x4") == chips
    # Devices without coordinates stand where a plan puts them.
    ids = [SimpleNamespace(id=k, platform="cpu", device_kind="cpu") for k in range(4)]
    ordered = in_slice_order(ids, "v5e:2x2")
    place = recorded_plan.data["best"]["placement"]
    number_of = {tuple(at): k for k, (at, _) in enumerate(_core.slice_devices("v5e:2x2"))}
    for at, device_id in zip(place["coordinates"], place["device_ids"], strict=True):
        assert ordered[number_of[tuple(at)]].id == device_id
    with pytest.raises(InvalidRequest, match="has 8 devices; here are 4"):
        in_slice_order(ids, "v5e:2x4")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"kinds": ["all-sorts"]}, "unknown microbenchmark"),
        ({"kinds": []}, "no microbenchmark named"),
        ({"sizes_bytes": [1000]}, "two sizes or more"),
        ({"sizes_bytes": [1000, 2000]}, "four times"),
        ({"sizes_bytes": [0, 2000]}, "allowed: 64"),
        ({"repeats": 0}, "repeats 0"),
        ({"seconds": float("nan")}, "seconds nan"),
        ({"slice": "v5e:2x4"}, "has 8 devices; here are 1 of cpu; .* XLA_FLAGS=.*device_count=8"),
        ({"kinds": ["all-gather"], "slice": "v5e:1x1"}, "need two chips"),
        ({"kinds": ["attention"], "slice": "v5e:1x1"}, "attention kernel a TPU"),
    ],
)
def test_nonsense_is_refused_before_anything_runs(arguments: dict[str, Any], said: str) -> None:
    one = [SimpleNamespace(id=0, platform="cpu", device_kind="cpu")]
    with pytest.raises(InvalidRequest, match=said):
        calibrate(**{"devices": one, **arguments})


def test_the_report_fits_a_terminal_and_names_what_is_far_off() -> None:
    base = slice_of("v5e:2x4")
    cases = cases_of(base)
    for draw, spread, poor in ((random.Random(1), 0.01, False), (random.Random(2), 1.0, True)):
        seconds = planned_seconds(cases, drawn(draw, base)) * np.exp([draw.gauss(0, spread) for _ in cases])
        found = Calibration("v5e:2x4", "8 x cpu", cases, list(seconds), fitting.fit(cases, seconds, base, "test"))
        printed = lines(found)
        assert max(map(len, printed)) <= 80
        assert any("do not describe these devices well" in line for line in printed) == poor


def test_sizes_are_read_with_their_units() -> None:
    assert sizes_bytes("64,2k,3M,1G") == [64, 2000, 3_000_000, 10**9]
    for wrong in ("", "k", "1,", "-4", "4.5M", "1 k", "９", "1" * 30):
        with pytest.raises(InvalidRequest, match="separated by commas"):
            sizes_bytes(wrong)


def test_processes_are_named_in_full_or_not_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    for given in (["--processes", "2"], ["--coordinator", "here", "--processes", "2", "--process", "0"],
                  ["--coordinator", "a:1", "--processes", "2", "--process", "2"]):  # fmt: skip
        assert cli.main(["calibrate", *given]) == 2
        assert "HOST:PORT" in capsys.readouterr().err


# On real devices

QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def started(arguments: list[str], folder: Path, devices: int) -> subprocess.Popen[str]:
    flags = f"--xla_force_host_platform_device_count={devices} {QUICK}"
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


COMPILES = """
import json, sys
import jax, jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec
from aoizora import _core
from aoizora.calibrating import COLLECTIVES, collective_cases, in_slice_order, kernel_cases, timing

devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices
ordered = in_slice_order(list(devices), "v5e:2x4")
cases = collective_cases(json.loads(_core.slice_json("v5e:2x4")), COLLECTIVES, [64000])
cases = [case for case in cases if case.what in ("two on a link", "every other along y", "all 8 chips")]
seen = []
for case in [*cases, *kernel_cases(["attention"], on_tpu=True)[:1]]:
    program = timing.program(case, ordered, lambda *of: jax.ShapeDtypeStruct(of[0], of[1], sharding=of[2]))
    mesh = program.arguments[0].sharding.mesh
    count = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec()))
    text = program.looped.lower(count, *program.arguments).compile().as_text()
    order = [ordered.index(device) for device in mesh.devices.flat]
    found = json.loads(_core.inspect(text))
    name = found["loops"][0]["body"]
    body = text[text.index(f"%{name} (") :]
    seen.append([case._asdict(), order, found["collectives"], body[: body.index("\\n}")]])
print(json.dumps(seen))
"""


@pytest.mark.slow
def test_of_each_microbenchmark_the_tpu_compiler_makes_what_the_planner_is_asked_for(tmp_path: Path) -> None:
    """Nothing else is in the loop: no other collective in its place, no copy of what it moves."""
    process = started(["-c", COMPILES], tmp_path, 1)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    seen = json.loads(out.splitlines()[-1])
    assert {case["kind"] for case, *_ in seen} == {*COLLECTIVES, "attention"}
    for case, order, collectives, body in seen:
        if case["kind"] == "attention":
            assert body.count("tpu_custom_call") == 1
            continue
        there, back = collectives  # a round is two
        for run, swap in ((there, False), (back, case["kind"] == "collective-permute")):
            ranks = run.get("replica_groups") or run["pairs"]
            groups = [[order[rank] for rank in group] for group in ranks]
            assert groups == [group[::-1] if swap else group for group in case["groups"]], case
            assert (run["kind"], run["payload_bytes"]) == (case["kind"], case["size"]), case
        assert not re.search(r" copy(-start|-done)?\(", body), case


@pytest.mark.slow
def test_on_cpu_devices_a_descriptor_comes_out_and_what_has_no_kernel_is_kept(tmp_path: Path) -> None:
    only = [word for kind in ("all-gather", "matmul", "attention") for word in ("--only", kind)]
    timed = ["--sizes", "64k,2M", "--repeats", "3", "--warm-up", "1", "--json"]
    process = started(["-m", "aoizora.cli", "calibrate", *timed, *only], tmp_path, 4)
    out, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    report = json.loads(out)
    assert report["descriptor"] == json.loads((tmp_path / "descriptor.json").read_text())
    assert {case["kind"] for case in report["microbenchmarks"]} == {"all-gather", "matmul"}
    assert {"attention_product_cycles", "all-reduce"} <= {kept["number"] for kept in report["kept"]}
    assert json.loads(_core.slice_json(str(tmp_path / "descriptor.json")))["name"] == "v5e:2x2"
    assert "no slice named: 4 cpu devices stand for v5e:2x2" in errors
    assert "calibrate: 8 done" in errors
    assert all(case["measured_seconds"] > 0 for case in report["microbenchmarks"])


@pytest.mark.slow
def test_across_processes_the_first_writes_what_the_slowest_took(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    common = ["-m", "aoizora.cli", "calibrate", "--slice", "v5e:1x2", "--sizes", "64k,2M", "--repeats", "3", "--json"]
    # A matmul's rate is found on any machine, however busy; a gather's only where its times grow with the bytes.
    common += ["--quiet", "--only", "all-gather", "--only", "matmul", "--coordinator", address, "--processes", "2"]
    running = [
        started([*common, "--process", str(k), "--out", str(tmp_path / f"{k}.json")], tmp_path, 1) for k in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], outputs
    report = json.loads(outputs[0][0])  # nothing of gloo's in it
    assert report["devices"] == "2 x cpu in 2 processes"
    assert report["descriptor"] == json.loads((tmp_path / "0.json").read_text())
    assert outputs[1][0] == ""
    assert not (tmp_path / "1.json").exists()


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.usefixtures("namespaces")
def test_between_namespaces_the_configured_link_rate_is_found(tmp_path: Path) -> None:
    kinds = ("collective-permute",)
    with mesh.NamespaceMesh((1, 4), calibration_checks.MEGABITS) as chips:
        report = calibration_checks.calibrated(chips, tmp_path / "found.json", kinds, "100k,400k")
        found = calibration_checks.link_rate(report)
        print(f"{found:.0f} of {chips.link_bytes_per_second:.0f} bytes a second")
        assert found == pytest.approx(chips.link_bytes_per_second, rel=0.05)
    assert report["devices"] == "4 x cpu in 4 processes"
    # Two that share a link get half of it each, over any number of hops, and no limit of one flow shows.
    seconds = {case["what"]: case["measured_seconds"] for case in report["microbenchmarks"]}  # of the largest size
    assert seconds["two on a link"] == pytest.approx(2 * seconds["alone, 1 hop"], rel=0.1)
    assert number(report["descriptor"], "flow_bytes_per_second", "collective-permute") in (0.0, 23e9)
