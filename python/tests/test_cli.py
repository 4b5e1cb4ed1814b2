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

import aoizora
from aoizora import InvalidRequest, Plan, _core, cache
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
        (["--model", "wan2.1", "--frames", "22"], 2, ["frames is 22"]),
        (["--size", "480"], 2, ["480x832"]),
        (["--size", "481x832"], 2, ["481", "480"]),
        (["--size", "0x0"], 2, ["--size 0x0", "16 or more"]),
        (["--dtype", "fp8"], 2, ["fp8", "bf16, f16, f32"]),
        (["--steps", "0"], 2, ["--steps is 0", "1 or more"]),
        (["--videos", "0"], 2, ["--videos is 0", "1 or more"]),
        (["--finalists", "0"], 2, ["finalists"]),
        (["--slice", "v5e:1x1", "--size", "720x1280", "--frames", "81"], 3, ["GiB", "1 devices"]),
        (["--reserve-hbm", "15.7"], 3, ["GiB"]),
        (["--reserve-hbm", "15.75"], 3, ["15.75 GiB", "reserve less"]),
        (["--reserve-hbm", "1000"], 3, ["1000.00 GiB", "reserve less"]),
        (["--min-weight-sharding", "1000000000"], 3, ["lower minimum_weight_sharding"]),
        (["--size", "999984x999984"], 2, ["tokens"]),
        (["--frames", "2147483645"], 2, ["tokens"]),
        (["--videos", "2147483647"], 2, ["batch"]),
        (["--workers", "0"], 2, ["workers", "at least 1"]),
        (["--verify", "0"], 2, ["verify"]),
        (["--record", "/dev/null"], 2, ["/dev/null", "folder"]),
        (["--model", "wan" * 5000], 2, ["did you mean"]),
        (["--model", "wan2.1-14b\x1b[31m"], 2, ["--model", "not printable"]),
        (["--model", "\udcff"], 2, ["--model", "not printable"]),
        (["--slice", "v5e:-2x2"], 2, ["v5e:-2x2"]),
        (["--slice", "v5e:99999999999999999999x1"], 2, ["at most 16"]),
        (["--slice", "/"], 2, ["directory"]),
        (["--out", ""], 2, ["folder"]),
        (["--out", "."], 2, ["folder"]),
        (["--out", "absent/plan.json"], 2, ["absent"]),
        (["--out", "x" * 300], 2, ["cannot be written"]),
        (["--out", "/dev/null/plan.json"], 2, ["/dev/null"]),
    ],
)
def test_bad_requests_are_refused_before_anything_starts(
    arguments: list[str], code: int, said: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["plan", *arguments, "--quiet"]) == code
    error = capsys.readouterr().err
    for word in said:
        assert word in error
    assert "Traceback" not in error
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["nonsense"], ["explain"], ["plan", "extra"], ["plan", "--size", "-480x832"],
        *(["plan", "--frames", text] for text in ("x", "", "-1", "1e3", "nan", "2_1", "\u0662\u0661", "9" * 5000)),
        *(["plan", "--survivors", text] for text in ("2", "0", "-0.1", "nan", "inf")),
        *(["plan", "--reserve-hbm", text] for text in ("nan", "inf", "-1", "1e9")),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize("size", [(480,), 480, "480x832", (480.5, 832), (480, 832, 1), (0, 0), (-480, 832)])
def test_sizes_that_are_none_are_refused_from_python(size: object) -> None:
    with pytest.raises(InvalidRequest):
        aoizora.plan(size=size)  # type: ignore[arg-type]


def test_a_plan_from_the_cache_says_so(recorded_plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    given = [_core.request_json(json.dumps({"model": "wan2.1-1.3b"})), _core.slice_json("v5e:2x2")]
    cache.store(cache.key_of(*map(json.loads, [*given, _core.settings_json("{}")])), recorded_plan)
    assert main(["plan", "--model", "wan2.1-1.3b", "--slice", "v5e:2x2", "--quiet"]) == 0
    assert "Written to plan.json from the cache;" in capsys.readouterr().out
    assert Plan.load("plan.json").data == recorded_plan.data


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
        {**recorded_plan.data, "comparisons": [{}]},
        {**recorded_plan.data, "versions": [1]},
        {**recorded_plan.data, "layers": float("nan")},
        {**recorded_plan.data, "tokens": float("inf")},
        {**recorded_plan.data, "why": "\ud800"},
        {**recorded_plan.data, "attention": "none"},
    ]
    texts = [json.dumps(damage).encode() for damage in damages]
    texts += [b"", b"null", b"[" * 200000, b"\xff\xfe", b'{"a":' + b"9" * 5000 + b"}", texts[0][:-20]]
    for text in texts:
        Path("plan.json").write_bytes(text)
        assert main(["explain", "plan.json"]) == 2
        error = capsys.readouterr().err
        assert "plan.json" in error
        assert "aoizora plan --out" in error
        assert "Traceback" not in error
    assert main(["explain", "."]) == 2
    assert main(["explain", "a\0b"]) == 2
    capsys.readouterr()
    assert main(["explain", "absent.json"]) == 2
    assert "absent.json" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["flash_d2c4.hlo.txt.gz", "flash_d2c4.mlir.gz"])
def test_files_of_another_kind_are_named_as_such(
    name: str, recorded_plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = (DATA / "hlo" / name).read_bytes()
    for content, kind in ((packed, "gzip"), (gzip.decompress(packed), "HLO text" if "hlo" in name else "MLIR text")):
        Path("file").write_bytes(content)
        for command in ("explain", "report", "trace", "export"):
            assert main([command, "file"]) == 2
            error = capsys.readouterr().err
            assert error.startswith(f"aoizora: file is no plan.json but {kind}: aoizora inspect")
    recorded_plan.save("file")
    for arguments in (["inspect", "file"], ["rank", "file", "--slice", "v5e:2x2"]):
        assert main(arguments) == 2
        assert '"aoizora explain file" shows it' in capsys.readouterr().err
    Path("file").write_text("garbage")
    assert main(["compare", "file", "file"]) == 2
    error = capsys.readouterr().err
    assert "file, line 1, column 1: neither HLO" in error
    assert "nor a plan.json" in error


def test_what_a_file_says_cannot_steer_the_terminal(recorded_plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    Plan({**recorded_plan.data, "why": "evil \x1b]0;title\x07 \x9b31m"}).save("plan.json")
    assert main(["explain", "plan.json"]) == 0
    out = capsys.readouterr().out
    assert "evil" in out
    assert not set(out) & set("\x1b\x07\x9b")


@pytest.mark.parametrize(
    "arguments", [["explain", "plan.json"], ["cache", "list"], ["--help"], ["plan", "--help"], ["--version"]]
)
def test_a_reader_that_goes_away_is_no_error(recorded_plan: Plan, arguments: list[str]) -> None:
    recorded_plan.save("plan.json")
    command = [sys.executable, "-m", "aoizora.cli", *arguments]
    gone, pipe = os.pipe()
    os.close(gone)
    try:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(pipe)
    assert (done.returncode, done.stderr) == (0, "")
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, timeout=60
    )
    assert (closed.returncode, closed.stderr) == (0, "")


def test_a_full_disk_is_said(recorded_plan: Plan) -> None:
    recorded_plan.save("plan.json")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "aoizora.cli", "explain", "plan.json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


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


def test_inspect_reads_compressed_programs_as_plain_ones(capsys: pytest.CaptureFixture[str]) -> None:
    packed = (DATA / "hlo" / "flash_d2c4.hlo.txt.gz").read_bytes()
    plain = gzip.decompress(packed)
    half = len(plain) // 2
    said = []
    for content in (plain, packed, gzip.compress(plain[:half]) + gzip.compress(plain[half:]) + b"\0" * 512):
        Path("program").write_bytes(content)
        assert main(["inspect", "program", "--json"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] == said[2]


@pytest.mark.parametrize("fault", ["cut", "flipped", "header", "behind"])
def test_inspect_refuses_damaged_gzip(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    packed = (DATA / "hlo" / "flash_d2c4.hlo.txt.gz").read_bytes()
    middle = len(packed) // 2
    content = {
        "cut": packed[:middle],
        "flipped": packed[:middle] + bytes([packed[middle] ^ 255]) + packed[middle + 1 :],
        "header": packed[:2],
        "behind": packed + b"x",
    }[fault]
    Path("program").write_bytes(content)
    assert main(["inspect", "program"]) == 2
    error = capsys.readouterr().err
    assert "program" in error
    assert "gzip" in error


def test_inspect_bounds_what_a_file_unpacks_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("aoizora.program_text.MOST_BYTES", 1 << 20)
    Path("program").write_bytes(gzip.compress(b" " * (1 << 20)) + gzip.compress(b"HloModule m"))
    assert main(["inspect", "program"]) == 2
    assert str(1 << 20) in capsys.readouterr().err


@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff\xfe", b"HloModule x\n\nENTRY %m {\n  %a = f32[2] parameter(0)\n", b"module {"]
)
def test_inspect_says_where_a_text_breaks(content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    Path("program").write_bytes(content)
    assert main(["inspect", "program"]) == 2
    error = capsys.readouterr().err
    assert "program, line" in error
    assert "column" in error


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
