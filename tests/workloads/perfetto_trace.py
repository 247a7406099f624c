"""Reads a trace with Perfetto's own messages (the Python package `perfetto`), follows its tracks as its trace processor does, and
prints slices and instants by name. The trace processor itself is a program that the package downloads, so it is not here."""

import collections
import json
import sys

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

trace = messages.Trace()
trace.ParseFromString(open(sys.argv[1], "rb").read())
again = messages.Trace()
again.CopyFrom(trace)
again.DiscardUnknownFields()
assert again.ByteSize() == trace.ByteSize(), "unknown fields"

tracks, names, categories, annotations = {}, {}, {}, {}
slices, instants = collections.Counter(), collections.Counter()
open_slices, last = collections.defaultdict(list), {}
sequences = set()
clock = None
for packet in trace.packet:
    assert packet.trusted_packet_sequence_id > 0
    if packet.sequence_flags & messages.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
        sequences.add(packet.trusted_packet_sequence_id)
    if packet.HasField("trace_packet_defaults"):
        clock = packet.trace_packet_defaults.timestamp_clock_id
    for one in packet.interned_data.event_names:
        names[one.iid] = one.name
    for one in packet.interned_data.event_categories:
        categories[one.iid] = one.name
    for one in packet.interned_data.debug_annotation_names:
        annotations[one.iid] = one.name
    if packet.HasField("track_descriptor"):
        track = packet.track_descriptor
        assert track.uuid not in tracks and (not track.parent_uuid or track.parent_uuid in tracks), track
        tracks[track.uuid] = track
    if not packet.HasField("track_event"):
        continue
    # State that was never begun is dropped by the trace processor, and the event with it.
    assert packet.sequence_flags & messages.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
    assert packet.trusted_packet_sequence_id in sequences
    event = packet.track_event
    uuid = event.track_uuid
    assert uuid in tracks, event
    assert packet.timestamp >= last.get(uuid, 0), "back in time"
    last[uuid] = packet.timestamp
    for annotation in event.debug_annotations:
        assert annotation.name_iid in annotations and annotation.WhichOneof("value"), annotation
    if event.type == messages.TrackEvent.TYPE_SLICE_END:
        slices[open_slices[uuid].pop()] += 1
        continue
    name = names[event.name_iid]
    assert all(iid in categories for iid in event.category_iids)
    if event.type == messages.TrackEvent.TYPE_SLICE_BEGIN:
        open_slices[uuid].append(name)
    else:
        assert event.type == messages.TrackEvent.TYPE_INSTANT
        instants[name] += 1
assert not any(open_slices.values()), "slices without an end"
assert clock == 3, "CLOCK_MONOTONIC"
threads = [track for track in tracks.values() if track.HasField("thread")]
print(json.dumps({"slices": slices, "instants": instants, "threads": len(threads)}))
