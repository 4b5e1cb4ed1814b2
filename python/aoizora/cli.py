"""The command line. Exit codes: 0 done, 2 bad request, 3 infeasible, 4 compiler missing or failed, 130 interrupted."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aoizora.errors import Error, InvalidRequest, ParseError
from aoizora.report.printable import people as _people

if TYPE_CHECKING:
    from aoizora.plan_file import Plan


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code. Prints no stack trace without --debug."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    debug = False
    try:
        try:
            options = parser().parse_args(arguments)
            debug = options.debug
            return int(options.run(options))
        finally:
            sys.stdout.flush()
    except Error as error:
        if debug:
            raise
        _say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        if debug:
            raise
        _say("interrupted; nothing was changed")
        return 130
    except BrokenPipeError:  # who reads has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as error:
        if debug:
            raise
        _say(f"cannot read or write: {error}")
        return 2
    except Exception as error:  # a fault of ours: still no stack trace for people, but say how to get one
        if debug:
            raise
        _say(f"internal error: {type(error).__name__}: {error}; --debug shows the trace")
        return 1


def _say(message: str) -> None:
    print(f"aoizora: {_people(message)}", file=sys.stderr)


def parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--debug", action="store_true", help="show stack traces")
    parser = argparse.ArgumentParser(
        prog="aoizora",
        description="Plans how a video diffusion transformer is sharded over a TPU slice and where\n"
        "each rank sits; needs no TPU.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, text: str, example: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=text,
            description=text,
            parents=[common],
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    plan = command(
        "plan",
        "plan one request on one slice",
        "aoizora plan --model wan2.1-14b --size 480x832 --frames 21 --slice v5e:4x4",
    )
    plan.add_argument("--model", default="wan2.1-14b", metavar="NAME", help="wan2.1-14b (default), wan2.1-1.3b")
    plan.add_argument("--size", default="480x832", metavar="HxW", help="video height x width in pixels (480x832)")
    plan.add_argument("--frames", type=_whole, default=21, metavar="N", help="video frames, 4k+1 (21)")
    plan.add_argument("--slice", default="v5e:4x4", metavar="NAME", help="slice, or a descriptor file (v5e:4x4)")
    plan.add_argument("--videos", type=_whole, default=1, metavar="N", help="videos at once (1)")
    plan.add_argument("--no-cfg", action="store_true", help="no classifier-free guidance: model batch = videos")
    plan.add_argument("--steps", type=_whole, default=50, metavar="N", help="denoising steps (50)")
    plan.add_argument("--dtype", default="bf16", metavar="TYPE", help="weights and activations (bf16)")
    plan.add_argument("--reserve-hbm", type=_gib, default=0, metavar="GIB", help="GiB of HBM left free a device (0)")
    plan.add_argument("--out", default="plan.json", metavar="FILE", help="where the plan goes (plan.json)")
    plan.add_argument("--json", action="store_true", help="print the plan as JSON instead of the table")
    plan.add_argument("--verify", type=_whole, default=1, metavar="N", help="plans compiled to the end (1)")
    plan.add_argument("--survivors", type=_fraction, default=0.15, metavar="FRACTION", help="kept by stage 1 (0.15)")
    plan.add_argument(
        "--finalists", type=_whole, default=2, metavar="N", help="at most so many compiled with code generation (2)"
    )
    plan.add_argument("--min-weight-sharding", type=_whole, default=0, metavar="N", help="0: from HBM (default)")
    plan.add_argument(
        "--source", default="aoizora", metavar="NAME", help="whose transformer is compiled: aoizora or maxdiffusion"
    )
    plan.add_argument("--no-ulysses", action="store_true", help="gathered keys and values only")
    plan.add_argument("--no-windowed-einsum-search", action="store_true", help="the compiler's default only")
    plan.add_argument("--workers", type=_whole, default=None, metavar="N", help="compiler processes (one a core)")
    plan.add_argument("--no-cache", action="store_true", help="neither read nor write the plan cache")
    plan.add_argument("--record", default="", metavar="DIR", help="keep every answer of the compiler for a replay")
    plan.add_argument("--quiet", action="store_true", help="no progress")
    plan.set_defaults(run=_plan)

    explain = command("explain", "print a plan for people", "aoizora explain plan.json")
    explain.add_argument("plan", metavar="FILE", help="plan.json")
    explain.add_argument("--json", action="store_true", help="print it as JSON")
    explain.set_defaults(run=_explain)

    inspect = command(
        "inspect", "list collectives, loops and memory of an HLO or StableHLO text", "aoizora inspect module.hlo.txt"
    )
    inspect.add_argument("file", metavar="FILE", help="HLO or StableHLO text, gzip or plain; - for standard input")
    inspect.add_argument("--json", action="store_true", help="print it as JSON")
    inspect.set_defaults(run=_inspect)

    from aoizora.commands import calibrate, maxdiffusion, measure, rank, sweep

    maxdiffusion.add_export_arguments(
        command("export", "the lines to paste into MaxDiffusion", "aoizora export plan.json --to maxdiffusion")
    )
    maxdiffusion.add_check_arguments(
        command(
            "check",
            "price what MaxDiffusion runs today beside the plan",
            "aoizora check plan.json ici_data_parallelism=2 allow_split_physical_axes=True",
        )
    )
    calibrate.add_arguments(
        command(
            "calibrate",
            "a slice's numbers from microbenchmarks on the devices that are here",
            "aoizora calibrate --out descriptor.json",
        )
    )
    measure.add_arguments(
        command("measure", "run the best plans on the devices that are here", "aoizora measure plan.json --top 3")
    )
    rank.add_arguments(
        command(
            "rank", "the best device order for a compiled program as it is", "aoizora rank module.txt --slice v5e:2x4"
        )
    )

    sweep.add_arguments(command("sweep", "many plans from one file; goes on where it was", "aoizora sweep sweep.toml"))

    reproduce = command(
        "reproduce",
        "the paper's figures and tables by our planner and simulation, beside its numbers",
        "aoizora reproduce --only table4",
    )
    reproduce.add_argument("--out", default="docs/evaluation.md", metavar="FILE", help="docs/evaluation.md (default)")
    reproduce.add_argument("--store", default="", metavar="FILE", help="compiler's answers (in the cache folder)")
    reproduce.add_argument("--only", action="append", default=[], metavar="NAME", help="one figure or table: table3")
    reproduce.add_argument("--no-compile", action="store_true", help="use what is stored (all of it takes hours)")
    reproduce.add_argument("--judge", default="build/judges/simgrid_judge", metavar="FILE", help="SimGrid's, if built")
    reproduce.add_argument("--json", action="store_true", help="print the tables written, each row by its columns")
    reproduce.add_argument("--quiet", action="store_true", help="no progress")
    reproduce.set_defaults(run=_reproduce)

    from aoizora.commands import compare, completion, report, topology

    report.add_report_arguments(
        command("report", "draw a plan as one HTML page", "aoizora report plan.json -o report.html")
    )
    report.add_trace_arguments(
        command("trace", "a plan's schedule for Perfetto", "aoizora trace plan.json -o plan.perfetto-trace")
    )
    compare.add_arguments(
        command("compare", "two plans or two programs side by side", "aoizora compare plan.json other.json")
    )
    topology.add_arguments(command("topology", "draw a slice with its links and numbers", "aoizora topology v5e:4x4"))
    completion.add_arguments(
        command("completion", "print a script that completes commands", "aoizora completion bash"), parser
    )

    cache = command("cache", "list, show or clear the plan cache", "aoizora cache list")
    cache.add_argument("action", choices=("list", "show", "clear"), nargs="?", default="list")
    cache.add_argument("name", nargs="?", default="", metavar="NAME", help="show: the start of an entry's name")
    cache.add_argument("--json", action="store_true", help="print it as JSON")
    cache.set_defaults(run=_cache)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from aoizora.cache import version_of

        print(f"aoizora {version_of('aoizora')}")
        parser.exit()


def _whole(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number")
    if digits != text or len(digits) > 10 or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"{text[:40]} is out of range; allowed: 0 to {2**31 - 1}")
    return int(text)


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a fraction above 0 and at most 1")
    return value


def _gib(text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of GiB from 0 to 1024")
    return int(value * 2**30)


def _size(text: str) -> tuple[int, int]:
    height, cross, width = text.lower().partition("x")
    if not cross or not (height.isascii() and height.isdigit() and width.isascii() and width.isdigit()):
        raise InvalidRequest(f"--size {text}: give height x width in pixels, for example 480x832")
    if len(height) > 6 or len(width) > 6:
        raise InvalidRequest(f"--size {text}: that is larger than any model takes")
    if not (int(height) and int(width)):
        raise InvalidRequest(f"--size {text}: height and width must be 16 or more, for example 480x832")
    return int(height), int(width)


def _plan(options: argparse.Namespace) -> int:
    from aoizora.plan_file import check_writable, write_whole
    from aoizora.planning import plan
    from aoizora.report import terminal
    from aoizora.report.progress import ProgressLine

    started = time.monotonic()
    for name in ("model", "slice", "dtype", "record"):
        given: str = getattr(options, name)
        if not given.isprintable():
            raise InvalidRequest(f"--{name} {given[:64]!r}: not printable text")
    for name in ("steps", "videos", "frames"):
        if getattr(options, name) < 1:
            raise InvalidRequest(f"--{name} is {getattr(options, name)}; it must be 1 or more")
    out = Path(options.out)
    check_writable(out)
    progress = ProgressLine(quiet=options.quiet)
    warnings.showwarning = lambda message, *_, **__: _say(str(message))
    settings = {
        "verify": options.verify,
        "survivor_fraction": options.survivors,
        "finalists": options.finalists,
        "minimum_weight_sharding": options.min_weight_sharding,
        "ulysses": not options.no_ulysses,
        "windowed_einsum": not options.no_windowed_einsum_search,
    }
    try:
        result = plan(
            options.model,
            _size(options.size),
            options.frames,
            options.slice,
            videos=options.videos,
            cfg=not options.no_cfg,
            steps=options.steps,
            dtype=options.dtype,
            reserved_hbm_bytes=options.reserve_hbm,
            settings=settings,
            workers=options.workers,
            use_cache=not options.no_cache,
            progress=progress,
            record_folder=options.record,
            source=options.source,
        )
    finally:
        progress.close()
    write_whole(out, result.dumps())
    if options.json:
        sys.stdout.write(result.dumps())
        return 0
    when = "from the cache" if result.from_cache else f"after {time.monotonic() - started:.1f} s"
    sys.stdout.write(_people(terminal.summary(result)))
    _say_lost(result)
    print(f'\nWritten to {options.out} {when}; "aoizora explain {options.out}" says why.')
    return 0


def _say_lost(plan: Plan) -> None:
    if plan.data["lost"]:
        _say(
            f"{len(plan.data['lost'])} candidates were lost to a crash or a limit: this plan is not cached; "
            "the plan names them"
        )


def _explain(options: argparse.Namespace) -> int:
    from aoizora.plan_file import Plan, of_file
    from aoizora.report import terminal

    plan = Plan.load(options.plan)
    with of_file(options.plan):
        text = plan.dumps() if options.json else _people(terminal.explain(plan))
    sys.stdout.write(text)
    return 0


def _inspect(options: argparse.Namespace) -> int:
    from aoizora import _core, program_text
    from aoizora.report import terminal

    text = program_text.read(options.file)
    program_text.refuse_plan(text, "" if options.file == "-" else options.file)
    try:
        result = _core.inspect(text)
    except ParseError as error:
        raise ParseError(f"{options.file}, {error}", error.line, error.column) from None
    if options.json:
        sys.stdout.write(result + "\n")
    else:
        sys.stdout.write(_people(terminal.inspect(json.loads(result))))
    return 0


def _reproduce(options: argparse.Namespace) -> int:
    from pathlib import Path

    from aoizora import cache
    from aoizora.evaluation import reproduce, tables
    from aoizora.report.progress import ProgressLine

    progress = ProgressLine(quiet=options.quiet)
    judge = Path(options.judge)
    store = Path(options.store) if options.store else cache.folder() / "evaluation.sqlite"
    try:
        written = reproduce.run(
            Path(options.out),
            store,
            options.only,
            compile=not options.no_compile,
            judge=judge if judge.is_file() else None,
            progress=progress,
        )
    finally:
        progress.close()
    if options.json:
        read = {name: tables.rows_of(text) for name, text in written.items()}
        print(json.dumps({"document": options.out, "sections": read}, indent=2))
    else:
        print(f"{', '.join(written)} written to {options.out}")
    return 0


def _cache(options: argparse.Namespace) -> int:
    from aoizora import cache
    from aoizora.report import terminal

    if options.name and options.action != "show":
        raise InvalidRequest(f'"aoizora cache {options.action}" takes no name')
    if options.action == "clear":
        count = cache.clear()
        print(json.dumps({"removed": count}) if options.json else f"{count} plans removed from {cache.folder()}")
        return 0
    if options.action == "show":
        if not options.name:
            raise InvalidRequest('say which entry: "aoizora cache show NAME"; "aoizora cache list" names them all')
        entry = cache.find(options.name)
        if entry.plan is None:
            raise InvalidRequest(f"{entry.path} is {entry.problem}; it will be replaced by the next plan")
        sys.stdout.write(entry.plan.dumps() if options.json else _people(terminal.explain(entry.plan)))
        return 0
    found = cache.entries()
    if options.json:
        rows = [
            {
                "name": entry.name,
                "path": str(entry.path),
                "bytes": entry.size_bytes,
                "plan": terminal.title(entry.plan) if entry.plan else None,
                "problem": entry.problem,
            }
            for entry in found
        ]
        print(json.dumps(rows, indent=1))
        return 0
    if not found:
        print(f"no plans in {cache.folder()}")
        return 0
    header = ["plan", "name", "ms"]
    body = [
        [
            terminal.title(entry.plan) if entry.plan else entry.problem,
            entry.name[:12],
            terminal.ms(entry.plan.data["best"]["predicted"]["block_seconds"]) if entry.plan else "",
        ]
        for entry in found
    ]
    print("\n".join(terminal.table(header, body)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
