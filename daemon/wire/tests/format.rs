//! The bytes of the control protocol. dcpictl, dcpi and dcpid of different versions run side by
//! side while a package is replaced, so a request or a reply of today must stay what it is: a new
//! field has a default, and no field is renamed, moved or removed.

use std::collections::BTreeMap;
use wire::{
    ApartStatus, ChangeStatus, CodeStoreStatus, CostStatus, Counts, CpuStatus, DaemonStatus,
    DbStatus, EdgesStatus, EventCounts, EventStatus, GeneratedStatus, HandlerStatus, ImageCounts,
    InspectorsStatus, LoaderStatus, OverheadStatus, ProgramStacksStatus, RateStatus, Registration,
    Reply, Request, RestraintStatus, Samples, StackCounts, StacksStatus, Status, TableStatus,
    WaitStatus, WaitsStatus,
};

fn reasons(reasons: &[(&str, u64)]) -> BTreeMap<String, u64> {
    reasons.iter().map(|(reason, samples)| ((*reason).to_owned(), *samples)).collect()
}

#[test]
fn requests_have_these_bytes() {
    let region =
        Registration { pid: 7, start: 4096, len: 64, name: "f".into(), ..Registration::default() };
    let copied = Registration {
        image: Some("jit".into()),
        file: Some("/usr/lib/libx.so".into()),
        offset: 512,
        ..region.clone()
    };
    for (request, text) in [
        (Request::Status, r#"{"command":"status"}"#),
        (Request::Flush, r#"{"command":"flush"}"#),
        (Request::Quit, r#"{"command":"quit"}"#),
        (Request::Epoch { label: None }, r#"{"command":"epoch","label":null}"#),
        (Request::Epoch { label: Some("b 2".into()) }, r#"{"command":"epoch","label":"b 2"}"#),
        (
            Request::Label { pid: None, start_time: None, label: "x".into() },
            r#"{"command":"label","pid":null,"start_time":null,"label":"x"}"#,
        ),
        (
            Request::Label { pid: Some(7), start_time: Some(99), label: "x".into() },
            r#"{"command":"label","pid":7,"start_time":99,"label":"x"}"#,
        ),
        (
            Request::Counts { watch: u64::MAX, user: Some(1000) },
            r#"{"command":"counts","watch":18446744073709551615,"user":1000}"#,
        ),
        // As dcpi top asks: a client does not say who its user is.
        (Request::Counts { watch: 7, user: None }, r#"{"command":"counts","watch":7}"#),
        (
            Request::Register(region),
            r#"{"command":"register","pid":7,"start":4096,"len":64,"name":"f",
"image":null,"file":null,"offset":0}"#,
        ),
        (
            Request::Register(copied),
            r#"{"command":"register","pid":7,"start":4096,"len":64,"name":"f",
"image":"jit","file":"/usr/lib/libx.so","offset":512}"#,
        ),
        (
            Request::Unregister { pid: 7, start: 4096 },
            r#"{"command":"unregister","pid":7,"start":4096}"#,
        ),
    ] {
        let text = joined(text);
        assert_eq!(request.encode().unwrap(), format!("{text}\n").as_bytes());
        assert_eq!(Request::decode(text.as_bytes()).unwrap(), request);
    }
}

/// Fields that a client may leave out, and fields that a later client may add.
#[test]
fn requests_of_other_versions_are_understood() {
    for (text, request) in [
        (r#"{"command":"epoch"}"#, Request::Epoch { label: None }),
        (
            r#"{"label":"x","command":"label"}"#,
            Request::Label { pid: None, start_time: None, label: "x".into() },
        ),
        (r#"{"command":"counts","watch":7,"user":null}"#, Request::Counts { watch: 7, user: None }),
        (
            r#"{"command":"register","pid":7,"start":1,"len":2,"name":"f"}"#,
            Request::Register(Registration {
                pid: 7,
                start: 1,
                len: 2,
                name: "f".into(),
                ..Registration::default()
            }),
        ),
        (
            r#"{"command":"unregister","pid":7,"start":4096,"later":[1]}"#,
            Request::Unregister { pid: 7, start: 4096 },
        ),
    ] {
        assert_eq!(Request::decode(text.as_bytes()).unwrap(), request, "{text}");
    }
    for text in [
        r#"{"command":"Status"}"#,
        r#"{"command":"later"}"#,
        r#"{"command":"counts"}"#,
        "{}",
        "[]",
        "",
    ] {
        let line = format!("{text}\n");
        let error = Request::decode(line.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("not a request of this version of dcpictl: "), "{text}: {error}");
    }
}

#[test]
fn replies_have_these_bytes() {
    let counts = Counts {
        since_ms: 2000,
        events: vec![EventCounts {
            name: "cpu-clock".into(),
            unit: "ns".into(),
            period: 500_000,
            taken: 9,
            unresolved: reasons(&[("no_mapping", 2)]),
            lost: reasons(&[("spill_full", 1)]),
        }],
        images: vec![ImageCounts {
            id: "i".into(),
            kind: "kernel".into(),
            name: "[kernel]".into(),
            path: String::new(),
            places: vec![vec![(16, 3), (32, 3)]],
            symbols: vec![(0, 48, "f".into())],
        }],
        beyond: 4,
        stacks: vec![StackCounts {
            images: vec!["i".into(), "[truncated]".into()],
            frames: vec![(0, 1, 0), (1, 0, 16)],
            processes: vec![("app".into(), 7)],
            times: vec![(1, 0, 2, 4_000_000)],
            loops: vec![1],
        }],
    };
    for (reply, text) in [
        (Reply::default(), "{}"),
        (Reply::error("a \"b\""), r#"{"error":"a \"b\""}"#),
        (
            Reply {
                epoch: Some("20260101-000000".into()),
                taken: Some(9),
                merged: Some(8),
                ..Reply::default()
            },
            r#"{"epoch":"20260101-000000","taken":9,"merged":8}"#,
        ),
        (Reply { regions: Some(2), ..Reply::default() }, r#"{"regions":2}"#),
        (
            Reply { counts: Some(Box::new(counts)), ..Reply::default() },
            r#"{"counts":{"since_ms":2000,"events":[{"name":"cpu-clock","unit":"ns","period":500000,
"taken":9,"unresolved":{"no_mapping":2},"lost":{"spill_full":1}}],
"images":[{"id":"i","kind":"kernel","name":"[kernel]","path":"",
"places":[[[16,3],[32,3]]],"symbols":[[0,48,"f"]]}],"beyond":4,
"stacks":[{"images":["i","[truncated]"],"frames":[[0,1,0],[1,0,16]],"processes":[["app",7]],
"times":[[1,0,2,4000000]],"loops":[1]}]}}"#,
        ),
        (Reply { status: Some(Box::default()), ..Reply::default() }, EMPTY_STATUS),
        (Reply { status: Some(Box::new(full_status())), ..Reply::default() }, FULL_STATUS),
    ] {
        let text = joined(text);
        assert_eq!(reply.encode().unwrap(), format!("{text}\n").as_bytes());
        assert_eq!(serde_json::from_str::<Reply>(&text).unwrap(), reply);
    }
}

/// The reply with a status of defaults, in lines without their newlines.
const EMPTY_STATUS: &str = r#"
{"status":{"version":"","host":"","uptime_s":0,"epoch":"","events":[],"samples":{"taken":0,
"merged":0,"pending":0,"unresolved":{},"lost":{}},"cpus":[],"table":{"hits":0,"misses":0,
"places":0,"bytes_per_cpu":0},"handler":{"ns_per_sample":null,"calls":0},"daemon":{"cpu_s":0.0,
"rss_bytes":0,"start_cpu_s":0.0,"ns_per_sample":null},"overhead":{"budget":null,"share":null,
"sampling_share":null,"daemon_share":null,"items":{},
"ns_per_sample":null,"measured":null,"rate":null},
"apart":{"labels":[],"units_refused":0,"samples_widened":0},"processes":0,"images":0,
"lost_records":0,"refused":0,"generated":{"processes":0,"pieces":0,"bytes":0,"regions":0,
"refused":0},"edges":null,"stacks":null,"waits":null,"code_store":null,
"loader":{"received":0,"known":0,"learnt":0,
"refused":0},"inspectors":{"started":0,"asked":0,"unanswered":0,"withheld":0,"peak_bytes":0,
"reachable":false,"users":[]},"restraint":{"doing":"","why":null,"changes":0},"last_merge":null,
"merge_error":null,"db":{"path":"","bytes":0}}}
"#;

/// The reply with [`full_status`], in lines without their newlines.
const FULL_STATUS: &str = r#"
{"status":{"version":"0.1.0","host":"node-7","uptime_s":61,"epoch":"20260101-000000",
"events":[{"name":"cpu-clock","period":500000,"unit":"ns","samples":11,"enabled_ns":12,
"running_ns":13,"note":"a timer"}],"samples":{"taken":14,"merged":15,"pending":16,
"unresolved":{"anonymous_memory":17,"no_mapping":18},"lost":{"spill_full":19}},"cpus":[{"cpu":1,
"taken":20,"implied":21,"missed":{"late":22},"offline":23,"offline_s":24.5}],"table":{"hits":25,
"misses":26,"places":27,"bytes_per_cpu":28},"handler":{"ns_per_sample":29.5,"calls":30},
"daemon":{"cpu_s":31.5,"rss_bytes":32,"start_cpu_s":33.5,"ns_per_sample":34.5},
"overhead":{"budget":0.01,"share":0.0625,"sampling_share":0.05,"daemon_share":0.0125,
"items":{"rest":0.0125,"samples":0.05},
"ns_per_sample":35.5,"measured":{"unix_s":36,"windows":37,"quiet":38,"low_ns":39.5,
"high_ns":40.5},"rate":{"per_s":41,"allowed_per_s":42,"last_change":{"unix_s":43,
"from_per_s":44,"to_per_s":45,"why":"46"}}},"apart":{"labels":["mine"],"units_refused":47,
"samples_widened":48},"processes":49,"images":50,"lost_records":51,"refused":52,
"generated":{"processes":53,"pieces":54,"bytes":55,"regions":56,"refused":57},
"edges":{"rate_per_s":58.5,"taken":59,"dropped":60,"unresolved":61,"fruitful":62,"edges":63,
"cpu_s":64.25,"ns_per_snapshot":64.5},
"stacks":{"rate_per_s":101.5,"taken":102,"dropped":103,"excluded":104,"whole":105,
"cut":{"truncated":106},"frames":107,"bytes":108,"cpu_s":109.5,"ns_per_stack":110.5,
"programs":[{"program":"bash","whole":111,"cut":{"refused":112}}],
"named":121,"named_differs":122,"named_without":124,"thinned":125,
"by_sampler":126,"by_inspector":128,"differing":127},
"waits":{"scale_s":0.03125,"pass_s":0.25,"seen":123,
"switches_per_s":113.5,"taken":114,"lost":115,"threads":116,
"wall_s":117.5,"on_s":118.5,"blocked_s":119.5,"runnable_s":120.5},
"code_store":{"images":65,"bytes":66,"limit_bytes":67,"kept":68,
"removed":69,"refused":70,"private":82,"gone":71,"put_off":72,"waiting":73,"cpu_s":74.5},
"loader":{"received":75,"known":76,"learnt":77,"refused":78},"inspectors":{"started":83,"asked":84,
"unanswered":85,"withheld":86,"peak_bytes":126,
"reachable":true,"users":[{"uid":87,"unanswered":88,"pid":89,
"program":"90"}]},"restraint":{"doing":"counts only",
"why":"pressure","changes":79},"last_merge":80,"merge_error":"no space",
"db":{"path":"/var/lib/dcpi","bytes":81}}}
"#;

/// Pinned JSON without the newlines that it is broken into here.
fn joined(text: &str) -> String {
    text.lines().collect()
}

/// A status in which every field has a value of its own, none of them its default.
fn full_status() -> Status {
    Status {
        version: "0.1.0".into(),
        host: "node-7".into(),
        uptime_s: 61,
        epoch: "20260101-000000".into(),
        events: vec![EventStatus {
            name: "cpu-clock".into(),
            period: 500_000,
            unit: "ns".into(),
            samples: 11,
            enabled_ns: 12,
            running_ns: 13,
            note: Some("a timer".into()),
        }],
        samples: Samples {
            taken: 14,
            merged: 15,
            pending: 16,
            unresolved: reasons(&[("anonymous_memory", 17), ("no_mapping", 18)]),
            lost: reasons(&[("spill_full", 19)]),
        },
        cpus: vec![CpuStatus {
            cpu: 1,
            taken: 20,
            implied: 21,
            missed: reasons(&[("late", 22)]),
            offline: 23,
            offline_s: 24.5,
        }],
        table: TableStatus { hits: 25, misses: 26, places: 27, bytes_per_cpu: 28 },
        handler: HandlerStatus { ns_per_sample: Some(29.5), calls: 30 },
        daemon: DaemonStatus {
            cpu_s: 31.5,
            rss_bytes: 32,
            start_cpu_s: 33.5,
            ns_per_sample: Some(34.5),
        },
        overhead: overhead(),
        apart: ApartStatus { labels: vec!["mine".into()], units_refused: 47, samples_widened: 48 },
        processes: 49,
        images: 50,
        lost_records: 51,
        refused: 52,
        generated: GeneratedStatus {
            processes: 53,
            pieces: 54,
            bytes: 55,
            regions: 56,
            refused: 57,
        },
        edges: Some(edges()),
        stacks: Some(stacks()),
        waits: Some(waits()),
        code_store: Some(code_store()),
        inspectors: InspectorsStatus {
            started: 83,
            asked: 84,
            unanswered: 85,
            withheld: 86,
            peak_bytes: 126,
            reachable: true,
            users: vec![WaitStatus { uid: 87, unanswered: 88, pid: 89, program: "90".into() }],
        },
        loader: LoaderStatus { received: 75, known: 76, learnt: 77, refused: 78 },
        restraint: RestraintStatus {
            doing: "counts only".into(),
            why: Some("pressure".into()),
            changes: 79,
        },
        last_merge: Some(80),
        merge_error: Some("no space".into()),
        db: DbStatus { path: "/var/lib/dcpi".into(), bytes: 81 },
    }
}

fn edges() -> EdgesStatus {
    EdgesStatus {
        rate_per_s: 58.5,
        taken: 59,
        dropped: 60,
        unresolved: 61,
        fruitful: 62,
        edges: 63,
        cpu_s: 64.25,
        ns_per_snapshot: Some(64.5),
    }
}

fn stacks() -> StacksStatus {
    StacksStatus {
        rate_per_s: 101.5,
        taken: 102,
        dropped: 103,
        excluded: 104,
        whole: 105,
        cut: BTreeMap::from([("truncated".into(), 106)]),
        frames: 107,
        bytes: 108,
        cpu_s: 109.5,
        ns_per_stack: Some(110.5),
        programs: vec![ProgramStacksStatus {
            program: "bash".into(),
            whole: 111,
            cut: BTreeMap::from([("refused".into(), 112)]),
        }],
        named: 121,
        named_differs: 122,
        named_without: 124,
        thinned: 125,
        by_sampler: 126,
        by_inspector: 128,
        differing: 127,
    }
}

fn waits() -> WaitsStatus {
    WaitsStatus {
        pass_s: Some(0.25),
        seen: 123,
        scale_s: Some(0.03125),
        switches_per_s: 113.5,
        taken: 114,
        lost: 115,
        threads: 116,
        wall_s: 117.5,
        on_s: 118.5,
        blocked_s: 119.5,
        runnable_s: 120.5,
    }
}

fn code_store() -> CodeStoreStatus {
    CodeStoreStatus {
        images: 65,
        bytes: 66,
        limit_bytes: 67,
        kept: 68,
        removed: 69,
        refused: 70,
        private: 82,
        gone: 71,
        put_off: 72,
        waiting: 73,
        cpu_s: 74.5,
    }
}

fn overhead() -> OverheadStatus {
    OverheadStatus {
        budget: Some(0.01),
        share: Some(0.0625),
        sampling_share: Some(0.05),
        daemon_share: Some(0.0125),
        items: [("samples", 0.05), ("rest", 0.0125)]
            .map(|(item, part)| (item.to_owned(), part))
            .into(),
        ns_per_sample: Some(35.5),
        measured: Some(CostStatus {
            unix_s: 36,
            windows: 37,
            quiet: 38,
            low_ns: 39.5,
            high_ns: 40.5,
        }),
        rate: Some(RateStatus {
            per_s: 41,
            allowed_per_s: 42,
            last_change: Some(ChangeStatus {
                unix_s: 43,
                from_per_s: 44,
                to_per_s: 45,
                why: "46".into(),
            }),
        }),
    }
}

/// The first daemons had not all of today's fields.
#[test]
fn a_status_without_later_fields_is_understood() {
    let mut text = joined(EMPTY_STATUS);
    for later in LATER_FIELDS {
        assert!(text.contains(later), "{later} in {text}");
        text = text.replacen(later, "", 1);
    }
    let reply: Reply = serde_json::from_str(&text).unwrap();
    assert_eq!(reply.status, Some(Box::default()));
}

const LATER_FIELDS: [&str; 14] = [
    r#""items":{},"#,
    r#""sampling_share":null,"#,
    r#""daemon_share":null,"#,
    r#","measured":null"#,
    r#","rate":null"#,
    r#""apart":{"labels":[],"units_refused":0,"samples_widened":0},"#,
    r#""generated":{"processes":0,"pieces":0,"bytes":0,"regions":0,"refused":0},"#,
    r#""edges":null,"#,
    r#""stacks":null,"#,
    r#""waits":null,"#,
    r#""code_store":null,"#,
    r#""loader":{"received":0,"known":0,"learnt":0,"refused":0},"#,
    r#""inspectors":{"started":0,"asked":0,"unanswered":0,"withheld":0,"peak_bytes":0,"reachable":false,"users":[]},"#,
    r#""restraint":{"doing":"","why":null,"changes":0},"#,
];

/// dcpid reads no further than the limit, so the rest of a longer line is missing.
#[test]
fn a_request_beyond_the_limit_is_refused() {
    let request = Request::Epoch { label: Some("x".repeat(wire::REQUEST_BYTES_MAX)) };
    let line = request.encode().unwrap();
    let error = Request::decode(&line[..wire::REQUEST_BYTES_MAX]).unwrap_err();
    assert_eq!(error.to_string(), "a request is one line of at most 16384 bytes");
}
