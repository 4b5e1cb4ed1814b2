"""When a dumped HLO text counts as whole, and that the passes rung never gives another."""

import gzip
import json
import re
from pathlib import Path

import pytest

from aoizora.compiler import dump

RECORDED = sorted((Path(__file__).resolve().parents[2] / "tests" / "data" / "hlo").glob("*.hlo*.txt.gz"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_a_recorded_text_is_whole_and_no_beginning_of_it_is(path: Path) -> None:
    text = gzip.decompress(path.read_bytes()).decode()
    assert dump.is_whole(text)
    end = len(text.rstrip("\n"))
    # Every cut near the end, after each closing brace at the start of a line, and some in between.
    cuts = {*range(end - 500, end), *range(0, end, 50021)}
    cuts |= {found.end() for found in re.finditer(r"\n\}+\n?", text) if found.end() <= end}
    for cut in cuts:
        assert not dump.is_whole(text[:cut]), text[max(0, cut - 80) : cut]


def test_sparse_core_computations_may_end_a_module() -> None:
    text = 'HloModule m\n\nENTRY %e {\n  ROOT %c = s32[] constant(1)\n}, execution_thread="sparsecore"\n'
    assert dump.is_whole(text)
    assert not dump.is_whole(text.removesuffix("\n"))


@pytest.mark.parametrize("text", ["", "\n}\n", "HloModule m\n", "HloModule m\n\n%f {\n}\n", "module @m {\n}\n"])
def test_what_is_no_module_is_not_whole(text: str) -> None:
    assert not dump.is_whole(text)


def test_files_count_only_after_the_next_one_exists(tmp_path: Path) -> None:
    whole = "HloModule m\n\nENTRY %e {\n  ROOT %c = s32[] constant(1)\n}\n"
    (tmp_path / f"module_0000.m{dump.PASSES_TEXT}").write_text(whole)
    (tmp_path / f"module_0000.m{dump.MEMORY_REPORT}").write_text("Total bytes: 4\n")
    assert not dump.passes_done(tmp_path)
    (tmp_path / f"module_0000.m{dump.PASSES_DONE}").write_text("Hlo")
    assert dump.passes_done(tmp_path)
    assert dump.read(tmp_path, dump.PASSES_TEXT) == dump.Dumped(whole, "Total bytes: 4\n")
    assert dump.read(tmp_path, dump.CODE_TEXT) is None
    (tmp_path / f"module_0000.m{dump.CODE_TEXT}").write_text(whole[:-4])
    assert dump.read(tmp_path, dump.CODE_TEXT) is None


@pytest.mark.slow
def test_passes_text_is_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("libtpu")
    from aoizora.compiler.queue import WorkerQueue

    monkeypatch.syspath_prepend(Path(__file__).parent)
    coordinates = [([x, y], 0) for x in range(2) for y in range(4)]
    candidate = {"mesh": [{"name": "data", "size": 8}], "kind": "psum", "over": ["data"]}
    with WorkerQueue({}, "v5e:2x4", coordinates, 2, builder="compiler_builders:collective") as queue:
        for id in range(40):
            queue.submit(json.dumps({"id": id, "candidate": candidate, "rung": "passes", "layers": 3}))
        answers = [queue.next() for _ in range(40)]
    assert {answer["outcome"] for answer in answers} == {"ok"}
    assert all(dump.is_whole(answer["text"]) for answer in answers)
    assert len({(answer["text"], answer["memory_report"]) for answer in answers}) == 1
