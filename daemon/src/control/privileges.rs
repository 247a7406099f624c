//! Gives up the privileges that dcpid needs only at start.

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities,
};

/// Capabilities that dcpid needs for as long as it runs (capabilities(7)): for events of a CPU that
/// comes online, and memory for its ring where limits are low; for other users' /proc/PID/maps and
/// /proc/PID/map_files and the files behind them; and for the kernel's symbols, which are read
/// again when a module comes.
const RUNNING: CapabilitySet = CapabilitySet::PERFMON
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::CHECKPOINT_RESTORE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::SYSLOG)
    .union(CapabilitySet::IPC_LOCK);
/// Capabilities with which root writes its database, wherever that is.
const ROOTS: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::FOWNER).union(CapabilitySet::CHOWN);

/// Gives up the capabilities that only loading the sampler and opening sockets needed: CAP_BPF, and
/// for root all that are not used. To be called before any thread is started that stays.
pub fn give_up_unneeded() {
    keep(|permitted| {
        let running = if nix::unistd::geteuid().is_root() { RUNNING | ROOTS } else { RUNNING };
        // CAP_SYS_ADMIN stands for both where they do not exist.
        let has_own =
            permitted.contains(CapabilitySet::PERFMON | CapabilitySet::CHECKPOINT_RESTORE);
        if has_own { running } else { running | CapabilitySet::SYS_ADMIN }
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
            assert!(!left.permitted.contains(CapabilitySet::BPF));
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
