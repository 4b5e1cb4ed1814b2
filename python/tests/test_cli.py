"""The command line: exit codes, messages, output for people and machines."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aoizora import Plan, cache
from aoizora.cli import main

DATA = Path(__file__).parents[2] / "tests" / "data"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOIZORA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--model", "wan2.1-14"], 2, ["wan2.1-14b"]),
        (["--slice", "v5e:3x4"], 2, ["v5e:3x4"]),
        (["--slice", "v9:4x4"], 2, ["v5e"]),
        (["--slice", "absent.json"], 2, ["absent.json"]),
        (["--frames", "22"], 2, ["22", "21", "25"]),
        (["--size", "480"], 2, ["480x832"]),
        (["--size", "481x832"], 2, ["481", "480"]),
        (["--size", "0x0"], 2, ["0"]),
        (["--dtype", "int3"], 2, ["int3"]),
        (["--steps", "0"], 2, ["step"]),
        (["--videos", "0"], 2, ["video"]),
        (["--finalists", "0"], 2, ["finalists"]),
        (["--slice", "v5e:1x1", "--size", "720x1280", "--frames", "81"], 3, ["GiB", "1 devices"]),
        (["--reserve-hbm", "15.7"], 3, ["GiB"]),
    ],
)
def test_bad_requests_are_refused_before_anything_starts(
    arguments: list[str], code: int, said: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    started = time.monotonic()
    assert main(["plan", *arguments, "--quiet"]) == code
    error = capsys.readouterr().err
    for word in said:
        assert word in error
    assert "Traceback" not in error
    assert time.monotonic() - started < 20
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["plan", "--frames", "x"], ["plan", "--survivors", "2"], ["explain"]]
)
def test_wrong_usage_exits_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["plan", "explain", "inspect", "cache"])
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert "example:" in capsys.readouterr().out


def test_explain_prints_the_plan_and_its_json(recorded_plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    recorded_plan.save("plan.json")
    assert main(["explain", "plan.json"]) == 0
    assert "Gain over" in capsys.readouterr().out
    assert main(["explain", "plan.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == recorded_plan.data


def test_explain_of_damaged_plans_is_a_message(recorded_plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    damages = [
        {**recorded_plan.data, "best": {}},
        {**recorded_plan.data, "counts": [1]},
        {**recorded_plan.data, "mesh": {}},
    ]
    for damage in damages:
        Path("plan.json").write_text(json.dumps(damage))
        assert main(["explain", "plan.json"]) == 2
        assert "Traceback" not in capsys.readouterr().err
    assert main(["explain", "absent.json"]) == 2
    assert "absent.json" in capsys.readouterr().err


def test_cache_lists_shows_and_clears(recorded_plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache"]) == 0
    assert "no plans" in capsys.readouterr().out
    path = cache.store(cache.key_of({}, {}, {}), recorded_plan)
    assert main(["cache", "list"]) == 0
    assert path.stem[:12] in capsys.readouterr().out
    assert main(["cache", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == path.stem
    assert main(["cache", "show", path.stem[:6]]) == 0
    assert "Gain over" in capsys.readouterr().out
    assert main(["cache", "show"]) == 2
    assert main(["cache", "show", "zzz"]) == 2
    assert main(["cache", "clear"]) == 0
    assert not path.exists()


@pytest.mark.parametrize("name", ["flash_d2c4.hlo.txt.gz", "flash_c8.hlo.txt.gz", "flash_d2c4.mlir.gz"])
def test_inspect_reads_recorded_programs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("program").write_bytes(gzip.decompress((DATA / "hlo" / name).read_bytes()))
    assert main(["inspect", "program"]) == 0
    assert "instructions" in capsys.readouterr().out
    assert main(["inspect", "program", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["opcodes"]


@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff\xfe", b"HloModule x\n\nENTRY %m {\n  %a = f32[2] parameter(0)\n", b"module {"]
)
def test_inspect_says_where_a_text_breaks(content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    Path("program").write_bytes(content)
    assert main(["inspect", "program"]) == 2
    error = capsys.readouterr().err
    assert "line" in error
    assert "column" in error


def test_output_that_cannot_be_written_is_said_before_planning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--out", "absent/plan.json", "--quiet"]) == 2
    assert "absent" in capsys.readouterr().err


def test_a_missing_compiler_is_exit_4_with_what_to_install(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'libtpu' else find(name, package)\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{hidden}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-m", "aoizora.cli", "plan", "--slice", "v5e:2x2", "--quiet"],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 4
    assert "pip install" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_interrupt_is_exit_130_and_leaves_no_process(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "aoizora.cli", "plan", "--slice", "v5e:2x2", "--no-cache"],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    first = process.stderr.readline()
    assert "stage 1" in first
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in error
    assert not (tmp_path / "plan.json").exists()
    time.sleep(0.5)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
            except OSError:
                continue
            assert parent != str(process.pid)
