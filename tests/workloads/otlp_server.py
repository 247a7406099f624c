"""A receiver of OTLP profiles by HTTP that reads a request with OpenTelemetry's own classes, and prints the sums of its samples' values
by sample type, the depth of its deepest stack, and its threads."""

import collections
import gzip
import http.server
import json

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
    ExportProfilesServiceResponse,
)


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        packed = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == "/v1development/profiles", self.path
        assert self.headers["Content-Type"] == "application/x-protobuf"
        request = ExportProfilesServiceRequest()
        body = gzip.decompress(packed)
        request.MergeFromString(body)
        # No field that these classes do not have: none is of another version.
        known = ExportProfilesServiceRequest()
        known.CopyFrom(request)
        known.DiscardUnknownFields()
        assert known.ByteSize() == request.ByteSize(), "unknown fields"
        tables = request.dictionary
        sums, depth, threads = collections.Counter(), 0, set()
        for resource in request.resource_profiles:
            for profile in (profile for scope in resource.scope_profiles for profile in scope.profiles):
                kind = tables.string_table[profile.sample_type.type_strindex]
                assert profile.time_unix_nano > 10**18 and profile.duration_nano < 10**15
                for sample in profile.samples:
                    sums[kind] += sample.values[0]
                    locations = tables.stack_table[sample.stack_index].location_indices
                    depth = max(depth, len(locations))
                    for attribute in (tables.attribute_table[at] for at in sample.attribute_indices):
                        if tables.string_table[attribute.key_strindex] == "dcpi.command":
                            threads.add(attribute.value.string_value)
        print(json.dumps({"sums": sums, "depth": depth, "commands": sorted(threads), "bytes": [len(packed), len(body)]}), flush=True)
        answer = ExportProfilesServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
print(server.server_port, flush=True)
server.handle_request()
