"""The process that plans for a serving process: `python -m aoizora.serving.planning_process FD PARENT`.

Reads the request from standard input; writes to FD, one JSON object a line, progress, then the plan or what went wrong.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from aoizora.compiler.processes import die_with_parent
from aoizora.errors import Error
from aoizora.planning import plan


def main(descriptor: int, parent: int) -> None:
    die_with_parent(parent)
    asked = json.loads(sys.stdin.buffer.read())
    with os.fdopen(descriptor, "wb", buffering=0) as answers:
        lock = threading.Lock()

        def send(message: dict[str, Any]) -> None:
            with lock:
                answers.write(json.dumps(message).encode() + b"\n")

        def progress(*event: Any) -> bool:
            send({"progress": event})
            return True

        try:
            planned = plan(
                asked["model"],
                (asked["height"], asked["width"]),
                asked["frames"],
                asked["slice"],
                videos=asked["videos"],
                cfg=asked["cfg"],
                steps=asked["steps"],
                dtype=asked["dtype"],
                reserved_hbm_bytes=asked["reserved_hbm_bytes"],
                settings=json.loads(asked["settings"]),
                progress=progress,
            )
            send({"plan": planned.dumps()})
        except Error as error:
            send({"error": type(error).__name__, "message": str(error)})
        except Exception as error:
            send({"error": "CompilerFailed", "message": f"planning failed: {type(error).__name__}: {error}"})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
