"""A plan's schedule as a Perfetto trace: one block, a track for the core and one for each dimension of links."""

from __future__ import annotations

from typing import Any

from aoizora.errors import InvalidRequest
from aoizora.plan_file import Plan
from aoizora.report import terminal, view

# Perfetto counts whole nanoseconds; what a slot takes exactly stands in its annotations.
NANOSECONDS = 1e9
_SEQUENCE = 1
_WHOLE_TRACK = 1


@view.reads_plan
def trace(plan: Plan) -> bytes:
    """The trace, as the protobuf that ui.perfetto.dev opens. Raises InvalidRequest where the plan holds no schedule, or
    the `perfetto` package is missing."""
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder
    except ImportError:
        raise InvalidRequest("traces are written with the package perfetto: pip install 'aoizora[trace]'") from None
    builder = TraceProtoBuilder()
    collectives = plan.data["best"]["predicted"]["block"]["collectives"]

    def track(number: int, name: str, parent: int | None, rank: int) -> None:
        described = _packet(builder).track_descriptor
        described.uuid = number
        described.name = name
        if parent is None:
            described.child_ordering = proto.TrackDescriptor.EXPLICIT
        else:
            described.parent_uuid = parent
            described.sibling_order_rank = rank

    track(_WHOLE_TRACK, f"one {terminal.unit(plan)}: {terminal.title(plan)}", None, 0)
    number = _WHOLE_TRACK
    for lane in view.lanes(plan):
        for at, row in enumerate(lane.rows):
            number += 1
            track(number, lane.name if at == 0 else f"{lane.name} ({at + 1})", _WHOLE_TRACK, number)
            for slot in row:
                packet = _packet(builder)
                packet.timestamp = _nanoseconds(slot.begin_seconds)
                event = packet.track_event
                event.type = proto.TrackEvent.TYPE_SLICE_BEGIN
                event.track_uuid = number
                event.name = slot.kind
                event.categories.append("core" if lane.name == "core" else "link")
                _annotate(event, "begin_seconds", slot.begin_seconds)
                _annotate(event, "seconds", slot.end_seconds - slot.begin_seconds)
                if slot.collective is not None:
                    of = collectives[slot.collective]
                    _annotate(event, "collective", f"{of['kind']} {of['name']}")
                    _annotate(event, "bytes", float(of["bytes"]))
                packet = _packet(builder)
                packet.timestamp = _nanoseconds(slot.end_seconds)
                packet.track_event.type = proto.TrackEvent.TYPE_SLICE_END
                packet.track_event.track_uuid = number
    data: bytes = builder.serialize()
    return data


def _nanoseconds(seconds: float) -> int:
    return round(seconds * NANOSECONDS)


def _packet(builder: Any) -> Any:
    packet = builder.add_packet()
    packet.trusted_packet_sequence_id = _SEQUENCE
    return packet


def _annotate(event: Any, name: str, value: float | str) -> None:
    annotation = event.debug_annotations.add()
    annotation.name = name
    if isinstance(value, str):
        annotation.string_value = value
    else:
        annotation.double_value = value
