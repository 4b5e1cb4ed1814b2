"""What is drawn of a plan: loads and lanes by their laws, the trace read back, plans compared, slices drawn."""

from __future__ import annotations

import copy
import gzip
import io
import itertools
import json
import math
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from report_plans import spread

from aoizora import InvalidRequest, Plan, _core, cli
from aoizora.cli import main
from aoizora.report import page, view
from aoizora.report.progress import ProgressLine

DATA = Path(__file__).parents[2] / "tests" / "data"
GROUP_HOPS = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def old_plan(recorded_plan: Plan) -> Plan:
    """The recorded plan as format 1 had it."""
    data = copy.deepcopy(recorded_plan.data)
    data["version"] = 1
    del data["links"], data["placements"]["priced"]
    block = data["best"]["predicted"]["block"]
    del block["patterns"], block["timeline"]
    for c in block["collectives"]:
        del c["pattern"]
        c["links"] = [[0, 1]]
    return Plan(data)


def test_loads_are_the_bytes_of_the_collectives_times_their_hops(exchanging_plan: Plan) -> None:
    """On 2x2 every group of two sits on neighbours, and groups of all go round the square: each byte that a member must
    receive crosses one link. So all links together carry, for a group of n: B (n - 1) of a gather, twice that of an
    all-reduce; of an exchange between two, B."""
    collectives = exchanging_plan.data["best"]["predicted"]["block"]["collectives"]
    patterns = view.pattern_loads(exchanging_plan)
    assert {c["kind"] for c in collectives} == {"all-gather", "all-reduce", "all-to-all"}
    for c, loads in zip(collectives, view.collective_loads(exchanging_plan), strict=True):
        dimensions = {view.links(exchanging_plan)[link].dimension for link in patterns[c["pattern"]]}
        members = 4 if len(dimensions) == 2 else 2
        groups = 4 // members
        hops = members / 2 if c["kind"] == "all-to-all" else GROUP_HOPS[c["kind"]] * (members - 1)
        assert sum(loads.values()) == pytest.approx(groups * hops * c["bytes"] * c["runs"], rel=1e-9)


def test_the_blocks_loads_are_those_of_its_collectives(recorded_plan: Plan) -> None:
    whole = sum(sum(loads.values()) for loads in view.collective_loads(recorded_plan))
    assert sum(view.block_loads(recorded_plan).values()) == pytest.approx(whole, rel=1e-12)


def test_links_are_the_slices(recorded_plan: Plan) -> None:
    assert [(link.start, link.end, link.dimension) for link in view.links(recorded_plan)] == [
        (a, b, d) for a, b, d, *_ in _core.slice_links("v5e:2x2")
    ]


def test_the_cores_lane_fills_the_block(exchanging_plan: Plan) -> None:
    predicted = exchanging_plan.data["best"]["predicted"]
    block, compute = predicted["block"], predicted["block"]["compute"]
    core, *links = view.lanes(exchanging_plan)
    slots = core.rows[0]
    assert slots[-1].end_seconds == pytest.approx(predicted["block_seconds"], rel=1e-9)
    assert all(a.end_seconds == b.begin_seconds for a, b in itertools.pairwise(slots))
    for kind in ("matmul", "attention", "relayout", "other"):
        spent = sum(s.end_seconds - s.begin_seconds for s in slots if s.kind == kind)
        assert spent == pytest.approx(compute[f"{kind}_seconds"], rel=1e-6)
    waited = sum(s.end_seconds - s.begin_seconds for s in slots if s.kind == "wait")
    assert waited == pytest.approx(block["exposed_communication_seconds"], rel=1e-6)
    assert [lane.name for lane in links] == ["ICI x", "ICI y"]
    for lane in links:
        for row in lane.rows:
            assert all(a.end_seconds <= b.begin_seconds for a, b in itertools.pairwise(row))
            assert row[-1].end_seconds <= predicted["block_seconds"] * (1 + 1e-9)


def test_every_run_of_a_collective_is_in_the_lanes_of_its_links(recorded_plan: Plan) -> None:
    all_links, patterns = view.links(recorded_plan), view.pattern_loads(recorded_plan)
    block = recorded_plan.data["best"]["predicted"]["block"]
    drawn = [
        (lane.name, slot.collective) for lane in view.lanes(recorded_plan)[1:] for row in lane.rows for slot in row
    ]
    flown = [
        (view.dimension_name(dimension), c)
        for c, _, _ in block["timeline"]["flights"]
        for dimension in {all_links[link].dimension for link in patterns[block["collectives"][c]["pattern"]]}
    ]
    assert sorted(drawn) == sorted(flown)


def test_the_strip_begins_with_the_plans_placement(recorded_plan: Plan) -> None:
    best, placements = recorded_plan.data["best"], recorded_plan.data["placements"]
    priced = placements["priced"]
    assert (priced[0][0], priced[0][2][0]) == (best["predicted"]["block_seconds"], best["placement"]["order"])
    assert [seconds for seconds, *_ in priced] == sorted(seconds for seconds, *_ in priced)
    assert priced[-1][0] == placements["worst_block_seconds"]
    assert sum(count for _, count, _ in priced) == placements["distinct"]


def test_memory_by_part_is_the_whole(recorded_plan: Plan) -> None:
    hbm = recorded_plan.data["hbm"]
    assert 0 < hbm["weights_bytes"] <= hbm["arguments_bytes"] <= hbm["bytes"]
    *parts, whole = page.data(recorded_plan, "plan.json")["memory"]
    assert sum(part["value"] for part in parts) == whole["value"] == hbm["bytes"] + hbm["reserved_bytes"]
    *parts, whole = page.data(recorded_plan, "plan.json")["time"]
    assert sum(p["value"] for p in parts if not p.get("sub")) == pytest.approx(whole["value"], rel=1e-4)


def test_a_plan_of_256_chips_stays_small(recorded_plan: Plan) -> None:
    plan = spread(recorded_plan, "v5e:16x16")
    assert len(view.links(plan)) == 1024
    assert len(plan.dumps()) < 400_000
    assert len(page.render(plan)) < 500_000


# The trace


def tracks_and_slices(data: bytes) -> tuple[dict[int, Any], list[tuple[int, str, int, int, dict[str, Any]]]]:
    """Read back: track descriptors, and (track, name, begin, end, annotations) of each slice."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

    read = proto.Trace.FromString(data)
    tracks, slices = {}, []
    open_slices: dict[int, list[Any]] = {}
    for packet in read.packet:
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
            continue
        event = packet.track_event
        if event.type == proto.TrackEvent.TYPE_SLICE_BEGIN:
            open_slices.setdefault(event.track_uuid, []).append((packet.timestamp, event))
        else:
            assert event.type == proto.TrackEvent.TYPE_SLICE_END
            begin, began = open_slices[event.track_uuid].pop()
            notes = {note.name: note.string_value or note.double_value for note in began.debug_annotations}
            slices.append((event.track_uuid, began.name, begin, packet.timestamp, notes))
    assert not any(open_slices.values())
    return tracks, slices


def test_the_trace_read_back_is_the_plans_schedule(recorded_plan: Plan) -> None:
    pytest.importorskip("perfetto")
    recorded_plan.save("plan.json")
    assert main(["trace", "plan.json", "-o", "block.perfetto-trace"]) == 0
    tracks, slices = tracks_and_slices(Path("block.perfetto-trace").read_bytes())
    lanes = view.lanes(recorded_plan)
    root = next(uuid for uuid, track in tracks.items() if not track.parent_uuid)
    children = [track for track in tracks.values() if track.parent_uuid == root]
    assert len(children) == len(tracks) - 1
    wanted = [
        (lane.name if number == 0 else f"{lane.name} ({number + 1})", slot)
        for lane in lanes for number, row in enumerate(lane.rows) for slot in row
    ]  # fmt: skip
    assert [track.name for track in children] == list(dict.fromkeys(name for name, _ in wanted))
    assert len(slices) == len(wanted)
    for (track, name, begin, end, notes), (lane_name, slot) in zip(slices, wanted, strict=True):
        assert (tracks[track].name, name) == (lane_name, slot.kind)
        assert (begin, end) == (round(slot.begin_seconds * 1e9), round(slot.end_seconds * 1e9))
        assert notes["seconds"] == slot.end_seconds - slot.begin_seconds
        assert ("bytes" in notes) == (slot.collective is not None)


# Damage


@pytest.mark.parametrize("command", ["report", "trace"])
def test_a_plan_of_format_1_says_what_it_lacks(
    old_plan: Plan, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    old_plan.save("plan.json")
    code = main([command, "plan.json", "-o", "out"])
    if command == "report":  # everything else is drawn
        assert code == 0
        assert "plan again" in Path("out").read_text()
        assert main(["explain", "plan.json"]) == 0
    else:
        assert code == 2
        assert "plan again" in capsys.readouterr().err
        assert not Path("out").exists()


def damages(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Plans that pass the reader's first look and lie further in."""

    def with_(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
        damaged: Any = copy.deepcopy(data)
        at = damaged
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        return damaged

    block = ("best", "predicted", "block")
    return [
        with_(("slice", "dims"), [10**9, 10**9]),
        with_(("slice", "dims"), []),
        with_(("slice", "dims"), [2]),
        with_(("slice", "cores_per_chip"), 0),
        with_(("best", "placement", "coordinates", 0), [5, 5]),
        with_(("best", "placement", "coordinates"), [[0, 0]] * 4),
        with_(("best", "placement", "cores", 0), -1),
        with_(("links", 0), [0, 9, 0]),
        with_(("links", 0), [0, 1, 7]),
        with_(("links", 0), 3),
        with_((*block, "patterns", 0, 0), [-1.0, [0]]),
        with_((*block, "patterns", 0, 0), [1.0, [999]]),
        with_((*block, "collectives", 0, "pattern"), 99),
        with_((*block, "collectives", 0, "pattern"), True),
        with_((*block, "timeline", "core", 0), ["matmul", "x"]),
        with_((*block, "timeline", "flights", 0), [99, 0, 1]),
        with_((*block, "timeline"), []),
        with_(("placements", "priced"), [[1]]),
        with_(("placements", "priced"), []),
        with_(("placements", "priced", 0, 1), None),
        with_(("placements", "priced", 0, 2), []),
        with_((*block, "collectives", 0, "seconds"), None),
        with_((*block, "collectives", 0, "name"), 7),
        with_((*block, "exposed_communication_seconds"), []),
        with_(("runners_up", 0, "hbm_bytes"), "much"),
        with_(("comparisons", 0, "name"), {}),
        with_(("slice", "hardware", "ici_bytes_per_second", "value"), 0),
        with_(("lost",), [1]),
        with_(("best", "predicted", "block_seconds"), "long"),
        with_(("hbm", "bytes"), None),
    ]


def test_damaged_plans_are_a_message(recorded_plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("perfetto")
    for damaged in damages(recorded_plan.data):
        Path("plan.json").write_text(json.dumps(damaged))
        codes = [main([command, "plan.json", "-o", "out"]) for command in ("report", "trace")]
        codes.append(main(["compare", "plan.json", "plan.json"]))
        assert set(codes) <= {0, 2}
        assert codes[0] == 2
        error = capsys.readouterr().err
        assert error.startswith("aoizora: plan.json")
        assert "Traceback" not in error


def test_what_a_plan_says_is_no_markup(recorded_plan: Plan) -> None:
    evil = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)> &amp; \u2028 \x00"
    data = copy.deepcopy(recorded_plan.data)
    data["why"] = data["half_rate_winner"] = data["best"]["sharding"] = data["slice"]["name"] = evil
    data["request"]["model"] = evil
    data["best"]["placement"]["order"] = data["versions"][0] = evil
    data["best"]["predicted"]["block"]["collectives"][0]["name"] = evil
    written = page.render(Plan(data), path="<b>.json")
    ours = page.render(recorded_plan)
    for mark in ("<script", "</script", "<img", "<!--", "<b>"):
        assert written.count(mark) == ours.count(mark)
    between = written.split('id="plan">')[1].split("</script>")[0]
    assert json.loads(between)["why"] == evil


def test_the_command_on_the_page_makes_the_plan_again(recorded_plan: Plan) -> None:
    data = copy.deepcopy(recorded_plan.data)
    data["request"] |= {"cfg": False, "steps": 7, "frames": 25, "reserved_hbm_bytes": 3 * 2**29}
    data["settings"] |= {"ulysses": False, "verify": 2, "survivor_fraction": 0.25}
    words = shlex.split(page.plan_command(Plan(data), "my plan.json"))
    options = cli.parser().parse_args(words[1:])
    assert (options.model, options.size, options.frames) == ("wan2.1-1.3b", "480x832", 25)
    assert (options.slice, options.no_cfg, options.steps, options.out) == ("v5e:2x2", True, 7, "my plan.json")
    assert (options.reserve_hbm, options.verify, options.survivors) == (3 * 2**29, 2, 0.25)
    assert (options.no_ulysses, options.no_windowed_einsum_search) == (True, False)


def test_a_programs_plan_is_drawn_too(recorded_plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("perfetto")
    data = copy.deepcopy(recorded_plan.data)
    del data["request"], data["best"]["predicted"]["video_seconds"]
    data |= {"program": {"name": "mine", "axes": []}, "attention": None, "kernel_blocks": None}
    data["best"]["candidate"]["attention"] = None
    plan = Plan(data)
    plan.save("plan.json")
    assert main(["report", "plan.json"]) == 0
    assert main(["trace", "plan.json"]) == 0
    assert main(["compare", "plan.json", "plan.json"]) == 0
    drawn = page.data(plan, "it's.json")
    assert drawn["facts"][0][0] == "one step"
    assert drawn["time"][-1]["name"] == "one step"
    assert not any("export" in command["text"] or "aoizora plan" in command["text"] for command in drawn["commands"])
    assert shlex.split(drawn["commands"][0]["text"])[2] == "it's.json"


# compare, topology, completion


def rows_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for topic, rows in found.items() if topic not in ("a", "b") for row in rows.values()]


def test_a_plan_differs_in_nothing_from_itself(recorded_plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    recorded_plan.save("a.json")
    assert main(["compare", "a.json", "a.json", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = rows_of(found)
    assert len(rows) > 20
    assert all(row["a"] == row["b"] and not row.get("difference") for row in rows)


def test_compare_says_what_differs(recorded_plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    other = spread(recorded_plan, "v5e:4x4")
    other.data["best"]["predicted"]["step_seconds"] += 0.5
    recorded_plan.save("a.json")
    other.save("b.json")
    assert main(["compare", "a.json", "b.json", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["time, ms"]["step"]["difference"] == pytest.approx(500)
    assert found["over links a block, MB"]["all links"]["b"] == pytest.approx(
        sum(view.block_loads(other).values()) / 1e6
    )
    assert main(["compare", "a.json", "b.json"]) == 0
    out = capsys.readouterr().out
    assert "v5e:4x4" in out
    assert "+500.00" in out
    assert max(map(len, out.splitlines())) <= 80
    packed = DATA / "hlo" / "flash_d2c4.hlo.txt.gz"
    assert main(["compare", "a.json", str(packed)]) == 2
    assert "one kind" in capsys.readouterr().err


def test_compare_takes_programs_packed_or_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = DATA / "hlo" / "flash_d2c4.hlo.txt.gz"
    Path("plain.txt").write_bytes(gzip.decompress(packed.read_bytes()))
    ring = DATA / "hlo" / "ring_d2c4.hlo.txt.gz"
    assert main(["compare", str(packed), "plain.txt", "--json"]) == 0
    assert not any(row.get("difference") for row in rows_of(json.loads(capsys.readouterr().out)))
    assert main(["compare", str(packed), str(ring), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["collectives, all runs"]["collective-permute"]["difference"] > 0
    assert main(["rank", str(ring), "--slice", "v5e:2x4", "--json"]) == 0
    now = json.loads(capsys.readouterr().out)["now"]["step_seconds"]
    assert main(["compare", str(packed), str(ring), "--slice", "v5e:2x4", "--json"]) == 0
    times = json.loads(capsys.readouterr().out)["time, ms"]  # the order that `rank` assumes
    assert times["in the order of jax.devices()"]["b"] == pytest.approx(now * 1e3)
    assert main(["compare", str(packed), str(ring)]) == 0
    counts = next(row for row in capsys.readouterr().out.splitlines() if row.startswith("instructions"))
    assert all(number.lstrip("+-").isdigit() for number in counts.split()[1:])
    Path("bad.txt").write_text("HloModule broken\n\nENTRY e {")
    assert main(["compare", str(packed), "bad.txt"]) == 2
    assert "bad.txt, line 3" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["v5e:1x1", "v5e:2x2", "v5e:2x4", "v5e:4x4", "v5e:8x16", "v5e:16x16"])
def test_a_slice_is_drawn_whole_in_80_columns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", name]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert main(shlex.split(out.splitlines()[-1])[1:]) == 0  # the last line says how all of it is printed
    found = json.loads(capsys.readouterr().out)
    width, height = found["dims"]
    drawing = out.split("\n\n")[1]
    numbers = [int(word) for row in drawing.splitlines() if row.startswith("y")
               for word in row[6:].replace("~", " ").replace("-", " ").split()]  # fmt: skip
    assert numbers == list(range(width * height))
    # one line a wire, those round the ends by a mark at both of them
    across, down = drawing.count("-") > 0, drawing.count("|")
    assert across == (width > 1)
    assert down == width * (height - 1)
    rings = sum(size for size, other in ((height, 0), (width, 1)) if found["wraps"][other] and found["dims"][other] > 2)
    assert drawing.split("numbers")[0].count("~") == 2 * rings
    wires = height * (width - 1) + down + rings
    assert len(found["links"]) == 2 * wires
    assert found["diameter_hops"] == max(len(_core.slice_route(name, 0, end)) for end in range(len(found["devices"])))


def test_slices_of_other_shapes_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    base = json.loads(_core.slice_json("v5e:4x4"))
    base["hardware"]["core_bytes_per_second"] = {"value": 1e12, "source": "test"}
    for dims, wraps, cores in (([4], [True], 1), ([2, 2, 3], [False] * 3, 2), ([100, 2], [False] * 2, 1)):
        Path("slice.json").write_text(json.dumps({**base, "name": "other", "dims": dims, "wraps": wraps,
                                                  "cores_per_chip": cores}))  # fmt: skip
        assert main(["topology", "slice.json"]) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 80
        assert f"{math.prod(dims)} chips" in out
    assert main(["topology", "v9:4x4"]) == 2
    assert "known: v5e" in capsys.readouterr().err


def commands() -> list[str]:
    return next(list(a.choices) for a in cli.parser()._actions if a.dest == "==SUPPRESS==" or a.choices)


@pytest.mark.parametrize("command", commands())
def test_every_command_has_help_with_an_example_that_reads(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    example = capsys.readouterr().out.split("example:\n")[1].strip()
    words = shlex.split(example)
    assert words[:2] == ["aoizora", command]
    options = cli.parser().parse_args(words[1:])
    assert callable(options.run)
    assert options.json is False


def test_bash_completes_every_command_and_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert main(["completion", "bash", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"shell": "bash", "script": script.removesuffix("\n")}
    Path("completion.sh").write_text(script)
    Path("plan.json").touch()

    def completed(line: str) -> set[str]:
        """What bash offers for the last word of a line, by the function that the script registers."""
        words = line.split(" ")
        script = (
            "source ./completion.sh; function=$(complete -p aoizora | sed 's/.*-F \\([^ ]*\\).*/\\1/'); "
            f"COMP_WORDS=({' '.join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}; "
            '$function aoizora "${COMP_WORDS[COMP_CWORD]}"; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        answer = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=20, check=True)
        return {word.strip() for word in answer.stdout.split("\n") if word.strip()}

    assert completed("aoizora ") >= set(commands())
    assert completed("aoizora top") == {"topology"}
    assert completed("aoizora cache ") >= {"list", "show", "clear"}
    for command in commands():
        assert "--help" in completed(f"aoizora {command} --he")
    assert "plan.json" in completed("aoizora explain pl")
    assert completed("aoizora plan --model wan2.1-") == {"wan2.1-14b", "wan2.1-1.3b"}
    assert completed("aoizora plan --source m") == {"maxdiffusion"}
    for shell in ("zsh", "tcsh"):
        assert main(["completion", shell]) == 0
        script = capsys.readouterr().out
        assert all(command in script for command in commands())


# Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(written: str) -> list[str]:
    """What a terminal shows after the control sequences that the live view uses."""
    rows, row, column = [""], 0, 0
    text = written
    while text:
        if text.startswith("\x1b["):
            end = next(i for i, c in enumerate(text[2:], 2) if c.isalpha())
            count, what = text[2:end] or "1", text[end]
            if what == "A":
                row -= int(count)
            elif what == "K":
                rows[row] = rows[row][:column]
            else:
                assert what == "J"
                rows[row] = rows[row][:column]
                del rows[row + 1 :]
            text = text[end + 1 :]
            continue
        c, text = text[0], text[1:]
        if c == "\r":
            column = 0
        elif c == "\n":
            row, column = row + 1, 0
            rows += [""] * (row + 1 - len(rows))
        else:
            rows[row] = rows[row][:column].ljust(column) + c + rows[row][column + 1 :]
            column += 1
    return rows


def test_a_terminal_shows_stage_count_time_left_and_the_best() -> None:
    stream = Terminal()
    progress = ProgressLine(stream)
    progress("stage 1: propagate", 3, 10, 3.0, 70.0, "8.73 ms a block, data 2 \x1b[31m" + "x" * 200)
    shown = screen(stream.getvalue())
    assert "stage 1: propagate 3/10, 1:10 left" in shown[0]
    assert shown[1].startswith("best so far: 8.73 ms a block, data 2 \\x1b[31mxx")
    assert max(map(len, shown)) <= 79
    progress("stage 1: propagate", 10, 10, 9.0, 0.0, "8 ms")
    progress("stage 2: HLO passes", 0, 4, 0.0, 0.0, "8 ms")
    progress.close()
    shown = [line for line in screen(stream.getvalue()) if line]
    assert [line.split("] ")[-1] for line in shown] == [
        "stage 1: propagate 10/10", "stage 2: HLO passes 0/4", "best so far: 8 ms",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stream", "told", "shown"),
    [
        (Terminal(), (0, 1, 0.0, 0.0), "[....................] code generation 0/1, 0:02 so far"),
        (Terminal(), (2, 4, 10.0, 10.0), "[##########..........] code generation 2/4, 0:07 left"),
        (Terminal(), (2, 4, 10.0, 1.0), "[##########..........] code generation 2/4, 0:12 so far"),
        (io.StringIO(), (0, 1, 20.0, 0.0), "code generation: 0 of 1, 0:22 so far; best so far: 8 ms"),
    ],
)
def test_the_time_goes_on_while_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, told: tuple[int, int, float, float], shown: str
) -> None:
    """One compile may take minutes. A clock of the test's own: it stands still but for what the test adds."""
    clock = 1000.0
    monkeypatch.setattr("aoizora.report.progress.monotonic", lambda: clock)
    monkeypatch.setattr("aoizora.report.progress._TICK_SECONDS", 0.001)
    monkeypatch.setattr("aoizora.report.progress._PLAIN_SECONDS", 1.0)
    progress = ProgressLine(stream)
    progress("code generation", *told, "8 ms")
    assert shown not in screen(stream.getvalue())
    clock += 2.25
    ended = time.time() + 20
    while shown not in screen(stream.getvalue()) and time.time() < ended:
        time.sleep(0.01)
    assert shown in screen(stream.getvalue())
    progress.close()
    written = stream.getvalue()
    clock += 10
    time.sleep(0.05)
    assert stream.getvalue() == written


def test_plain_lines_fit_79_columns() -> None:
    stream = io.StringIO()
    ProgressLine(stream)("stage 1", 1, 1, 1.0, 0.0, "x" * 200)
    shown = stream.getvalue().splitlines()
    assert [len(line) for line in shown] == [79]
    assert shown[0].endswith("x...")


def test_elsewhere_there_are_plain_lines_and_with_quiet_nothing() -> None:
    stream, silent = io.StringIO(), Terminal()
    for progress in (ProgressLine(stream), ProgressLine(silent, quiet=True)):
        for done in range(5):
            progress("stage 1", done, 4, float(done), 4.0 - done, "best")
        progress.close()
    assert stream.getvalue() == "stage 1: 4 to do\nstage 1: 4 done in 4.0 s; best so far: best\n"
    assert silent.getvalue() == ""


def test_commands_that_draw_need_no_jax(recorded_plan: Plan) -> None:
    """They are for any machine, and quick."""
    recorded_plan.save("plan.json")
    script = (
        "import sys; from aoizora.cli import main; code = main(['report', 'plan.json', '-o', 'r.html']); "
        "code |= main(['topology', 'v5e:2x2']); assert 'jax' not in sys.modules; sys.exit(code)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, env=dict(os.environ), timeout=60)


def test_a_page_is_refused_where_it_cannot_be_written(recorded_plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    recorded_plan.save("plan.json")
    assert main(["report", "plan.json", "-o", "absent/r.html"]) == 2
    assert "absent" in capsys.readouterr().err
    assert main(["report", "absent.json"]) == 2
    with pytest.raises(InvalidRequest):
        page.render(Plan({**recorded_plan.data, "best": {}}))
