"""A plan: the answer of the planner, as plan.json holds it (docs/plan-format.md)."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aoizora import program_text
from aoizora.errors import InvalidRequest, ParseError

if TYPE_CHECKING:
    from jax import Device
    from jax.sharding import Mesh, PartitionSpec

FORMAT = "aoizora plan"
NO_PLAN = "no plan.json, or a damaged one"
WRITTEN_BY = '"aoizora plan --out plan.json" writes one'
VERSION = 2
READABLE = (1, VERSION)  # what a version lacks, its readers say
ATTENTION_KINDS = ("gathered", "ulysses")
# What every reader of a plan relies on; a file without one of them is refused at once.
_REQUIRED: dict[str, type | tuple[type, ...]] = {
    "slice": dict, "layers": int, "tokens": int, "mesh": dict, "axis_rules": list,
    "attention": (str, type(None)), "kernel_blocks": (dict, type(None)),
    "compiler_options": dict, "parameters": dict, "best": dict, "hbm": dict, "placements": dict,
    "comparisons": list, "why": str, "half_rate_winner": str, "searched": list, "counts": list, "runners_up": list,
    "versions": list, "lost": list, "refused": list, "settings": dict,
}  # fmt: skip
_REQUIRED_OF_BEST: dict[str, type | tuple[type, ...]] = {
    "sharding": str, "candidate": dict, "placement": dict, "predicted": dict, "hbm_bytes": (int, float),
    "passes_block_seconds": (int, float), "passes_step_seconds": (int, float),
}  # fmt: skip


def _unread(reason: str, line: int = 1, column: int = 1) -> ParseError:
    return ParseError(f"line {line}, column {column}: {NO_PLAN} ({reason}); {WRITTEN_BY}", line, column)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number")
    return number


DAMAGES = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError)
"""What reading a value raises that is none of a plan's."""


@contextmanager
def of_file(name: str) -> Iterator[None]:
    """Errors raised within say which file they are of, and a value that is none of a plan's is one."""
    try:
        yield
    except ParseError as error:
        raise ParseError(f"{name}, {error}", error.line, error.column) from None
    except InvalidRequest as error:
        raise InvalidRequest(f"{name}: {error}") from None
    except DAMAGES as error:
        raise InvalidRequest(f"{name}: {damage(error)}") from None


def damage(error: Exception) -> str:
    """What a reader's failure says of the plan it read."""
    what = (
        f'"{error.args[0]}" is missing'
        if isinstance(error, KeyError)
        else f"a value in it is none of a plan's ({error})"
    )
    return f"{NO_PLAN}: {what}; {WRITTEN_BY}"


class Plan:
    """One plan. `data` is plan.json as Python values; the properties below are what serving needs."""

    from_cache = False
    """Whether it was not made now but found in the plan cache."""

    def __init__(self, data: dict[str, Any]) -> None:
        if data.get("format") != FORMAT:
            given = f'"format" is {str(data["format"])[:64]!r}' if "format" in data else 'it has no "format"'
            raise InvalidRequest(f"{NO_PLAN}: {given}, expected {FORMAT!r}; {WRITTEN_BY}")
        version = data.get("version")
        if isinstance(version, bool) or version not in READABLE:
            raise InvalidRequest(
                f"the plan's format is version {version!r}; this AoiZora reads {READABLE[0]} to {VERSION}: plan again"
            )
        required: list[tuple[Any, str, Any]] = [(data, key, kind) for key, kind in _REQUIRED.items()]
        required += [(data.get("best"), key, kind) for key, kind in _REQUIRED_OF_BEST.items()]
        for part, key, kind in required:
            if not isinstance(part, dict) or not isinstance(part.get(key), kind):
                raise InvalidRequest(f'{NO_PLAN}: "{key}" is missing or of the wrong type; {WRITTEN_BY}')
        subjects = [key for key in ("request", "program") if isinstance(data.get(key), dict)]
        if len(subjects) != 1 or (
            subjects == ["request"] and (data["attention"] not in ATTENTION_KINDS or data["kernel_blocks"] is None)
        ):
            raise InvalidRequest(f'{NO_PLAN}: it must have a "request" with attention or a "program"; {WRITTEN_BY}')
        self.data = data

    @classmethod
    def loads(cls, text: str) -> Plan:
        """From plan.json's text. Raises ParseError, InvalidRequest."""
        try:
            data = json.loads(text, parse_float=_finite, parse_constant=_finite)
        except json.JSONDecodeError as error:
            raise _unread(error.msg, error.lineno, error.colno) from None
        except RecursionError:
            raise _unread("nested too deeply") from None
        except ValueError as error:  # a number that is none, or of thousands of digits
            raise _unread(str(error)) from None
        if "\\u" in text:
            try:
                json.dumps(data, ensure_ascii=False).encode()
            except UnicodeEncodeError:
                raise _unread("half of a surrogate pair in a text") from None
        if not isinstance(data, dict):
            raise InvalidRequest(f"{NO_PLAN}: it holds no JSON object; {WRITTEN_BY}")
        return cls(data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """From a file. Raises InvalidRequest where it cannot be read."""
        name = os.fspath(path)
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise InvalidRequest(f"cannot read the plan {name}: {error.strerror or error}") from None
        except ValueError as error:  # a path with a null
            raise InvalidRequest(f"cannot read the plan {name!r}: {error}") from None
        other = program_text.looks_like(content)
        if other:
            raise InvalidRequest(
                f"{name} is no plan.json but {other}: aoizora inspect and aoizora rank read programs; {WRITTEN_BY}"
            )
        with of_file(name):
            try:
                text = content.decode()
            except UnicodeDecodeError:
                raise _unread("not UTF-8 text") from None
            return cls.loads(text)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes plan.json whole or not at all."""
        write_whole(Path(path), self.dumps())

    def dumps(self) -> str:
        """plan.json's text, one line a key: `indent` would leave the encoder's fast path."""
        lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in self.data.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @property
    def mesh_shape(self) -> dict[str, int]:
        """Mesh axis -> size, in mesh order, axes of size 1 included."""
        mesh = self.data["mesh"]
        return dict(zip(mesh["axis_names"], mesh["axis_sizes"], strict=True))

    @property
    def axis_rules(self) -> dict[str, tuple[str, ...]]:
        """Logical axis -> mesh axes that divide it, major first."""
        return {axis: tuple(mesh_axes) for axis, mesh_axes in self.data["axis_rules"]}

    @property
    def candidate(self) -> dict[str, Any]:
        """The sharding as the model's `build_step` takes it."""
        candidate: dict[str, Any] = self.data["best"]["candidate"]
        return candidate

    @property
    def is_of_program(self) -> bool:
        """Whether a program of the user's own was planned (plan_program), not a video model's request."""
        return "program" in self.data

    @property
    def request(self) -> dict[str, Any]:
        """The video request. Raises InvalidRequest where a program was planned."""
        if self.is_of_program:
            raise InvalidRequest(
                f"this plan is of the program {self.data['program'].get('name')!r}, not of a video model: use its "
                "mesh(), shardings() and logical_axis_rules(); docs/programs.md says how"
            )
        request: dict[str, Any] = self.data["request"]
        return request

    def logical_axis_rules(self) -> list[tuple[str, Any]]:
        """The rules as flax takes them (flax.linen.logical_axis_rules): logical axis, mesh axes or None."""
        if self.is_of_program:
            from aoizora.logical_axes import flax_rules

            return flax_rules(self.data["program"], self.axis_rules)
        return [(axis, mesh_axes or None) for axis, mesh_axes in self.axis_rules.items()]

    def shardings(self, tree: Any, mesh: Mesh | None = None) -> Any:
        """A NamedSharding for each array of a program's arguments, in their structure: `tree` is the tuple of them, or
        the dict of those by keyword. Arrays that the plan does not know are whole. mesh: Plan.mesh() by default."""
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        mesh = self.mesh() if mesh is None else mesh
        specs = self.partition_specs()
        return jax.tree_util.tree_map_with_path(
            lambda path, _: NamedSharding(mesh, specs.get(jax.tree_util.keystr(path), PartitionSpec())), tree
        )

    def partition_specs(self) -> dict[str, PartitionSpec]:
        """Parameter name -> PartitionSpec; block parameters carry the stacked layer dimension first. Of a program: the
        path of each array in its args or kwargs, as jax.tree_util.keystr writes it."""
        from jax.sharding import PartitionSpec

        return {
            name: PartitionSpec(*[tuple(axes) if axes else None for axes in spec])
            for name, spec in self.data["parameters"].items()
        }

    def mesh(self, devices: Sequence[Device] | None = None) -> Mesh:
        """The jax Mesh of this plan, each rank on the chip and core the plan names.

        devices: the devices to use, in any order; all that JAX has by default. They are matched by coordinate, never
        by position or id. Raises InvalidRequest where they are not the slice the plan was made for.
        """
        import jax
        import numpy as np
        from jax.sharding import Mesh

        present = list(jax.devices() if devices is None else devices)
        placement = self.data["best"]["placement"]
        wanted = [(tuple(c), core) for c, core in zip(placement["coordinates"], placement["cores"], strict=True)]
        found: dict[tuple[tuple[int, ...], int], Device] = {}
        for device in present:
            where = _where(device, len(wanted[0][0]))
            if where is None:
                raise InvalidRequest(
                    f"device {device} has no chip coordinates; the plan is for {self.data['slice']['name']}, "
                    "whose ranks are placed by coordinate: call this on a TPU host, or pass its devices; under "
                    "@aoizora.auto_shard(plan=...) CPU devices stand for them"
                )
            if where in found:
                raise InvalidRequest(f"two devices claim {where[0]} core {where[1]}: {found[where]}, {device}")
            found[where] = device
        kind = self.data["slice"]["hardware"]["device_kind"]
        missing = [w for w in wanted if w not in found]
        extra = len(found) - (len(wanted) - len(missing))
        if missing or extra:
            raise InvalidRequest(
                f"the devices do not match the plan's slice {self.data['slice']['name']} ({len(wanted)} devices): "
                f"{len(missing)} of its places have no device"
                + (f" (first: coordinates {missing[0][0]} core {missing[0][1]})" if missing else "")
                + f", {extra} devices have no place. Pass exactly that slice's devices, or plan for the one you have."
            )
        kinds = {device.device_kind for device in found.values()}
        if not all(same_kind(kind, given) for given in kinds):
            raise InvalidRequest(f"the plan is for {kind} chips; the devices are {', '.join(sorted(kinds))}")
        shape = tuple(self.data["mesh"]["axis_sizes"])
        grid = np.empty(len(wanted), dtype=object)
        grid[:] = [found[w] for w in wanted]
        return Mesh(grid.reshape(shape), tuple(self.data["mesh"]["axis_names"]))


# JAX's device_kind for each generation: what a TPU host and libtpu's topology description print.
_DEVICE_KINDS = {"v5e": ("v5 lite", "v5e"), "v6e": ("v6 lite", "v6e"), "v5p": ("v5", "v5p"), "tpu7x": ("tpu7x",)}


def same_kind(kind: str, device_kind: str) -> bool:
    names = _DEVICE_KINDS.get(kind, (kind,))
    given = device_kind.lower().removeprefix("tpu ").strip()
    return given in names or any(given.startswith(name) for name in names[1:])


def _where(device: Device, dimensions: int) -> tuple[tuple[int, ...], int] | None:
    coordinates = getattr(device, "coords", None)
    if coordinates is None:
        return None
    coordinates = tuple(int(c) for c in coordinates)
    if any(coordinates[dimensions:]):
        return None
    return coordinates[:dimensions], int(getattr(device, "core_on_chip", 0) or 0)


def check_writable(path: Path) -> None:
    """Raises InvalidRequest where write_whole could not write."""
    reason = ""
    try:
        if path.is_dir():
            reason = "is a folder; name a file in it"
        elif not _is_stream(path):
            probe = _temporary(Path(os.path.realpath(path)))
            probe.touch()
            probe.unlink()
    except (OSError, ValueError) as error:
        reason = f"cannot be written: {getattr(error, 'strerror', None) or error}"
    if reason:
        raise InvalidRequest(f"{str(path)!r} {reason}")


def _is_stream(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file so that a reader, or a crash at any moment, sees the old content or the new, never a part.

    What a link names is replaced, not the link; a pipe or a terminal is written to as it is.
    """
    data = content.encode() if isinstance(content, str) else content
    if _is_stream(path):
        try:
            with open(path, "wb") as stream:
                stream.write(data)
        except OSError as error:
            raise InvalidRequest(f"cannot write {path}: {error.strerror or error}") from None
        return
    path = Path(os.path.realpath(path))
    temporary = _temporary(path)
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise InvalidRequest(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)
