"""The processes of one run, where a command is started on several hosts or several times on one."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from aoizora.errors import CompilerFailed, InvalidRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("several processes", "start the command in every process; process 0 writes")
    group.add_argument(
        "--coordinator", metavar="ADDRESS", help="host:port of process 0; auto: what jax.distributed finds out itself"
    )
    group.add_argument("--processes", type=int, metavar="N", help="how many there are")
    group.add_argument("--process", type=int, metavar="K", help="which one this is, from 0")


@contextmanager
def joined(options: argparse.Namespace) -> Iterator[bool]:
    """Among the other processes, if there are any. Whether this is the one that writes.

    What libraries print meanwhile goes to standard error: gloo says on standard output who is connected.
    """
    if not _wanted(options):
        yield True
        return
    import jax

    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield _join(options)
        jax.distributed.shutdown()
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _wanted(options: argparse.Namespace) -> bool:
    if options.coordinator is None and (options.processes, options.process) != (None, None):
        raise InvalidRequest("--processes and --process need --coordinator HOST:PORT")
    return options.coordinator is not None


def _join(options: argparse.Namespace) -> bool:
    import jax

    numbers = (options.processes, options.process)

    if options.coordinator == "auto":
        known = {} if numbers == (None, None) else {"num_processes": numbers[0], "process_id": numbers[1]}
    elif None in numbers or ":" not in options.coordinator or not 0 <= options.process < options.processes:
        raise InvalidRequest(
            f"--coordinator {options.coordinator[:80]}: give HOST:PORT with --processes N and --process K below N, "
            "or auto"
        )
    else:
        known = {"coordinator_address": options.coordinator, "num_processes": numbers[0], "process_id": numbers[1]}
    try:
        jax.distributed.initialize(**known)
    except (RuntimeError, ValueError) as error:
        raise CompilerFailed(f"the processes did not find each other: {error}") from None
    return bool(jax.process_index() == 0)
