//! Reloads the configuration while the daemon runs (SIGHUP). Settings that can change do; the log
//! names those that wait for a restart.

use super::{Pipeline, limits};
use persistence::database_thread::Job;
use persistence::measured_machine;
use sampling::sample_source::SampleSource;
use settings::config::Config;

impl<Source: SampleSource> Pipeline<Source> {
    /// Takes over the settings that can change. The loop has its intervals already.
    pub(super) fn reload(&mut self, new: Config) {
        let old = &mut self.parts.config;
        let waiting = [
            ("db", new.db != old.db),
            ("control", new.control != old.control),
            ("control-mode, control-group, clients-may", new.access != old.access),
            ("loader-socket", new.loader_socket != old.loader_socket),
            ("event, mux", new.events != old.events),
            ("host", new.host != old.host),
            ("code-store", new.code_store != old.code_store),
            ("metrics", new.metrics != old.metrics),
            ("spill-entries, table-entries", new.table != old.table),
            ("per-process, by-unit, exclude-*", new.rules != old.rules),
            ("kernel-by-process", new.kernel_by_process != old.kernel_by_process),
            // The sampler is loaded with snapshots or without.
            ("edges", new.edges.is_some() != old.edges.is_some()),
            ("stacks", new.stacks.is_some() != old.stacks.is_some()),
            ("waits", new.waits != old.waits),
        ];
        let waiting: Vec<_> =
            waiting.iter().filter(|(_, differs)| *differs).map(|(name, _)| *name).collect();
        (old.drain_interval, old.merge_interval, old.epoch_length) =
            (new.drain_interval, new.merge_interval, new.epoch_length);
        (old.memory_limit, old.pause_file, old.budget) =
            (new.memory_limit, new.pause_file, new.budget);
        if new.edges.is_some() == old.edges.is_some() {
            old.edges = new.edges;
        }
        if new.stacks.is_some() == old.stacks.is_some() {
            old.stacks = new.stacks;
        }
        if new.retention != old.retention {
            old.retention = new.retention;
            // Without that thread nothing is written either, which is reported elsewhere.
            let _ = self.parts.flusher.send(Job::Retain(new.retention));
        }
        let old = &mut self.parts.config;
        old.machine = new.machine;
        let cpuid = self.parts.machine.cpuid.as_ref();
        self.measured = measured_machine::read(old.machine.as_deref(), cpuid);
        self.rates.set_limits(limits(&self.parts.config));
        self.look_at_pause_file();
        self.pace_snapshots();
        if waiting.is_empty() {
            tracing::info!("the configuration is read again");
        } else {
            tracing::warn!(
                "the configuration is read again; these wait for a restart: {}",
                waiting.join("; ")
            );
        }
    }
}
