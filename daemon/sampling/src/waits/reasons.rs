//! Classifies waits by the kernel procedures in which the thread left the CPU.

use model::Wait;

/// Begins of names of the kernel's procedures (Linux 5.10 to 6.18), and what a thread in them waits
/// for. The first rule that any frame fulfils decides: a page fault that reads a file is a page
/// fault, a pipe's lock is a pipe.
const RULES: [(Wait, &[&str]); 13] = [
    (
        Wait::PageFault,
        &["asm_exc_page_fault", "do_user_addr_fault", "exc_page_fault", "do_mem_abort", "el0_da"],
    ),
    (Wait::Futex, &["futex_", "do_futex", "__futex"]),
    (Wait::Poll, &["ep_poll", "do_epoll", "do_sys_poll", "do_poll", "do_select", "io_cqring_wait"]),
    (
        Wait::Timer,
        &["hrtimer_nanosleep", "do_nanosleep", "common_nsleep", "__x64_sys_clock_nanosleep"],
    ),
    (Wait::Pipe, &["pipe_read", "pipe_write", "anon_pipe_", "pipe_wait", "fifo_open"]),
    (
        Wait::Socket,
        &["sock_", "__sock", "unix_", "tcp_", "inet_", "__skb_wait", "skb_", "netlink_", "udp_"],
    ),
    (Wait::Child, &["do_wait", "kernel_wait4", "__do_wait"]),
    (
        Wait::Signal,
        &[
            "do_sigtimedwait",
            "sigsuspend",
            "do_signal_stop",
            "ptrace_stop",
            "get_signal",
            "__x64_sys_pause",
        ],
    ),
    (Wait::Terminal, &["n_tty_", "tty_"]),
    (
        Wait::Disk,
        &[
            "io_schedule",
            "folio_wait",
            "wait_on_page",
            "bit_wait_io",
            "submit_bio",
            "blk_",
            "jbd2_",
            "wait_on_buffer",
            "filemap_",
        ],
    ),
    (
        Wait::KernelLock,
        &[
            "__mutex_lock",
            "mutex_lock",
            "rwsem_",
            "down_read",
            "down_write",
            "down",
            "rt_mutex",
            "__down",
        ],
    ),
    (Wait::Poll, &["poll_schedule_timeout"]),
    (Wait::Timer, &["schedule_timeout"]),
];

/// The reason for a wait, by the kernel procedures in which the thread left the CPU.
pub fn reason<'a>(frames: impl Iterator<Item = &'a str> + Clone) -> Wait {
    let is_in = |begins: &[&str]| {
        frames.clone().any(|frame| begins.iter().any(|begin| frame.starts_with(begin)))
    };
    RULES.iter().find(|(_, begins)| is_in(begins)).map_or(Wait::Other, |(wait, _)| *wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_named_by_the_procedures_it_is_in() {
        for (frames, expected) in [
            (&["__schedule", "schedule", "futex_do_wait", "do_futex"][..], Wait::Futex),
            (
                &[
                    "__schedule",
                    "io_schedule",
                    "folio_wait_bit_common",
                    "filemap_fault",
                    "do_user_addr_fault",
                    "asm_exc_page_fault",
                ],
                Wait::PageFault,
            ),
            (&["__schedule", "io_schedule", "folio_wait_bit_common", "filemap_read"], Wait::Disk),
            (&["__schedule", "schedule", "anon_pipe_read", "vfs_read"], Wait::Pipe),
            (&["__schedule", "do_nanosleep", "hrtimer_nanosleep"], Wait::Timer),
            (&["__schedule", "schedule_timeout", "unix_stream_read_generic"], Wait::Socket),
            (&["__schedule", "schedule_hrtimeout_range", "do_sys_poll"], Wait::Poll),
            (&["__schedule", "do_wait", "kernel_wait4"], Wait::Child),
            (&["__schedule", "worker_thread", "kthread"], Wait::Other),
            (&[], Wait::Other),
        ] {
            assert_eq!(reason(frames.iter().copied()), expected, "{frames:?}");
        }
    }
}
