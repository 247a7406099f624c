//! Gives up the capabilities that dcpid needs only at start, and those that an inspector never
//! needs.

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities,
};

/// Needed by dcpid for as long as it runs (capabilities(7)): events of a CPU that comes online; the
/// kernel's symbols, read again when a module comes. Memory for the ring of that CPU, where limits
/// are low.
const RUNNING: CapabilitySet =
    CapabilitySet::PERFMON.union(CapabilitySet::SYSLOG).union(CapabilitySet::IPC_LOCK);
/// Needed by an inspector: other users' /proc/PID/maps, /proc/PID/map_files and the files that they
/// lead to.
const LOOKING: CapabilitySet = CapabilitySet::SYS_PTRACE
    .union(CapabilitySet::CHECKPOINT_RESTORE)
    .union(CapabilitySet::DAC_READ_SEARCH);
/// Needed by root to write its database, wherever it is.
const ROOTS: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::FOWNER).union(CapabilitySet::CHOWN);

/// Niceness of dcpid and its inspectors (setpriority(2); needs CAP_SYS_NICE). They take about a
/// hundredth of a CPU, but while they wait for one behind dozens of busy threads, the ring of
/// mapping records overflows and samples lose their images. Under systemd they have a share of
/// their own instead: `dcpi.slice`.
const NICENESS: i32 = -10;

/// Lets this thread, and all threads and processes that it starts, go before ordinary ones.
pub fn go_first() {
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!(%error, "the priority stays");
    }
}

/// Gives up what was only needed to load the sampler and open sockets: CAP_BPF, and of root's
/// everything that is not used, what inspectors look with above all. To be called before any thread
/// is started that stays.
pub fn give_up_unneeded() {
    keep(|permitted| {
        let running = if nix::unistd::geteuid().is_root() { RUNNING | ROOTS } else { RUNNING };
        // It stands for it where it is not there (before Linux 5.8).
        if permitted.contains(CapabilitySet::PERFMON) {
            running
        } else {
            running | CapabilitySet::SYS_ADMIN
        }
    });
}

/// Keeps what an inspector looks with, and nothing else.
pub fn keep_for_looking() {
    keep(|permitted| {
        // It stands for it where it is not there (before Linux 5.9).
        let has_own = permitted.contains(CapabilitySet::CHECKPOINT_RESTORE);
        if has_own { LOOKING } else { LOOKING | CapabilitySet::SYS_ADMIN }
    });
}

/// Gives up all capabilities in a thread that only writes files of its own; root keeps those that
/// it writes files with.
pub fn give_up_all() {
    keep(|_| if nix::unistd::geteuid().is_root() { ROOTS } else { CapabilitySet::empty() });
}

fn keep(kept: impl Fn(CapabilitySet) -> CapabilitySet) {
    let changed = capabilities(None).and_then(|held| {
        let permitted = held.permitted & kept(held.permitted);
        let effective = held.effective & permitted;
        clear_ambient_capability_set()?;
        set_capabilities(
            None,
            CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() },
        )?;
        tracing::debug!(
            "capabilities {permitted:?} are kept, {:?} given up",
            held.permitted.difference(permitted)
        );
        Ok(())
    });
    if let Err(error) = changed {
        tracing::warn!("capabilities that are not needed any more could not be given up: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_up_is_gone_for_this_thread_only() {
        let before = capabilities(None).unwrap();
        std::thread::spawn(|| {
            give_up_unneeded();
            let left = capabilities(None).unwrap();
            let gone = CapabilitySet::BPF | LOOKING;
            assert!((left.permitted & gone).is_empty(), "{left:?}");
            assert!(
                (left.permitted & !(RUNNING | ROOTS | CapabilitySet::SYS_ADMIN)).is_empty(),
                "{left:?}"
            );
            give_up_all();
            let left = capabilities(None).unwrap();
            assert!(
                (left.permitted & !ROOTS).is_empty() && left.inheritable.is_empty(),
                "{left:?}"
            );
            assert!((left.effective & !left.permitted).is_empty());
        })
        .join()
        .unwrap();
        assert_eq!(capabilities(None).unwrap(), before);
    }
}
