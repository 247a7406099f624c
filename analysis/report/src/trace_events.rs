//! The fields of `dcpi trace FILE --to json`, which the crate of traces writes.

use super::schema::Schema;

/// Version of the fields, as the crate of traces writes it.
const VERSION: u32 = 1;

/// The schema of the events of a trace.
pub fn schema() -> Schema {
    Schema::of_fields::<TraceEvents>("trace-events", VERSION)
}

crate::fields! {
    /// What `dcpi trace FILE --to json` writes: an object a line. The first has `schema` and
    /// `facts`; each other line is one of `events[]` here.
    pub struct TraceEvents {
        facts: Facts;
        /// why the trace is not whole; null where it is
        cut: Option<String>;
        events: Vec<Event>;
    }

    /// Facts of a trace.
    pub struct Facts {
        /// words of the command
        command (maybe): Vec<String>;
        host (maybe): String;
        /// clock of all times
        clock (maybe): String;
        /// when tracing began, on that clock
        begun_ns: u64, "ns";
        /// when tracing ended; 0: not known
        ended_ns: u64, "ns";
        /// when tracing began, since 1970; 0: not known
        begun_unix_ns: u64, "ns";
        /// program that captured the events
        source (maybe): String;
        /// as in `dcpi trace`
        lost (maybe): Vec<crate::TraceLost>;
        costs (maybe): Vec<Cost>;
        /// absent without `--in-situ`
        untraced (maybe): Option<Untraced>;
        /// as in `dcpi trace`
        sampled (maybe): Option<crate::TraceSampled>;
        /// remarks
        notes (maybe): Vec<String>;
    }

    /// A cost.
    pub struct Cost {
        /// kind of event whose cost was measured
        kind: String;
        /// time that an event adds
        alpha_ns: measure::Interval, "ns";
        /// standard deviation of single events
        spread_ns (maybe): Option<f64>, "ns";
        /// how it was measured, for people
        how: String;
        /// true: in loops of nothing else; absent: not so
        in_vitro (maybe): bool;
        /// true: of probes whose instruction the kernel executes out of line; missing: of all
        stepped (maybe): Option<bool>;
        /// true: where returns are traced, too; missing: of all
        with_return (maybe): Option<bool>;
    }

    /// Runs without events.
    pub struct Untraced {
        /// CPU time of the traced run and its children, from its first instruction on
        traced_cpu_ns: f64, "ns";
        /// the same of each run without events
        cpu_ns: Vec<f64>, "ns";
    }

    /// An event.
    pub struct Event {
        time_ns: Times, "ns";
        /// CPU; null where it is not known
        cpu: Option<u32>;
        /// process
        pid: u32;
        /// thread
        tid: u32;
        /// command of the thread
        command: String;
        /// `enter`, `exit`, `instant`, `syscall_enter`, `syscall_exit`, `switch_out`, `switch_in`,
        /// `wake`, `block`, `lock_request`, `lock_acquire`, `lock_release`, `barrier_arrive`,
        /// `barrier_leave`, `advance`, `await_begin`, `await_end`, `thread_start`, `thread_end`
        kind: String;
        /// of a system call the first argument, with its sign where it is an `int` (-100 is
        /// `AT_FDCWD`), or the result; of `switch_out` 1: preempted; of `wake` the woken thread; of
        /// locks their identity
        argument: u64;
        /// what the event is of
        name: String;
        /// `procedure`, `line`, `syscall`, `sched`, `block`, `sync`, `other`
        name_kind: String;
        /// file with the code; null where there is none
        image: Option<String>;
    }

    /// Times of an event. Corrected ones are null where nothing was corrected.
    pub struct Times {
        /// time of the event
        measured: u64;
        /// corrected time, lower end of its interval
        low: Option<u64>;
        /// corrected time
        value: Option<u64>;
        /// upper end
        high: Option<u64>;
    }
}
