"""Reads a message ProfilesData with OpenTelemetry's own classes, holds it against the rules of profiles.proto, and prints samples by
build and event."""

import collections
import json
import sys

from opentelemetry.proto.profiles.v1development.profiles_pb2 import ProfilesData

data = ProfilesData()
data.MergeFromString(open(sys.argv[1], "rb").read())
tables = data.dictionary

# No field that these classes do not have: none is of another version.
again = ProfilesData()
again.CopyFrom(data)
again.DiscardUnknownFields()
assert again.ByteSize() == data.ByteSize(), "unknown fields"
for name in "mapping", "location", "function", "link", "string", "attribute", "stack":
    table = getattr(tables, name + "_table")
    first = table[0] if name == "string" else table[0].SerializeToString(deterministic=True)
    assert not first, f"{name}_table begins with {table[0]}"
    entries = [entry if name == "string" else entry.SerializeToString(deterministic=True) for entry in table]
    assert len(entries) == len(set(entries)), f"{name}_table has duplicates"


def attributes(indices):
    found = [tables.attribute_table[index] for index in indices]
    assert all(index > 0 for index in indices)
    keys = [tables.string_table[one.key_strindex] for one in found]
    assert len(keys) == len(set(keys)), keys
    return dict(zip(keys, (one.value for one in found)))


samples = collections.defaultdict(lambda: collections.Counter())
functions = collections.defaultdict(lambda: collections.Counter())
comments, used, hosts = set(), set(), set()
for resource in data.resource_profiles:
    hosts.update(one.value.string_value for one in resource.resource.attributes if one.key == "host.name")
    for profile in (profile for scope in resource.scope_profiles for profile in scope.profiles):
        about = attributes(profile.attribute_indices)
        comments.update(comment.string_value for comment in about["pprof.profile.comment"].array_value.values)
        event = about["dcpi.event"].string_value
        unit = tables.string_table[profile.sample_type.unit_strindex]
        is_wait = event in ("off-cpu", "runnable")  # their values are times, and they have no period
        expected = "nanoseconds" if is_wait else "count"
        assert unit == expected and (profile.period > 0) != is_wait, (event, unit)
        assert profile.time_unix_nano > 10**18 and profile.duration_nano < 10**15
        for sample in profile.samples:
            assert len(sample.values) == 1 and not sample.timestamps_unix_nano and sample.values[0] > 0
            used.add(sample.stack_index)
            if is_wait:
                continue
            index = tables.stack_table[sample.stack_index].location_indices[0]  # the innermost
            location = tables.location_table[index]
            attributes(location.attribute_indices)
            build = "unknown code"
            if location.mapping_index:
                mapping = tables.mapping_table[location.mapping_index]
                assert mapping.memory_start <= location.address < mapping.memory_limit, (mapping, location)
                about = attributes(mapping.attribute_indices)
                build = (about.get("process.executable.build_id.gnu") or about["dcpi.image_id"]).string_value
            samples[build][event] += sample.values[0]
            for line in location.lines[-1:]:
                function = tables.function_table[line.function_index]
                functions[tables.string_table[function.name_strindex]][event] += sample.values[0]
assert len(used) == len(tables.stack_table) - 1, "stacks that no sample has"
print(json.dumps({"samples": samples, "functions": functions, "comments": sorted(comments), "hosts": sorted(hosts)}))
