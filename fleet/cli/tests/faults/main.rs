//! Ingesters and closers whose store fails, whose programs are killed, and whose input is hostile:
//! nothing is lost or counted twice.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::expect_used)]

mod epochs;
mod faulty;
mod hostile;
mod processes;
mod requests;
mod sums;
mod weeks_of_a_fleet;

/// Runs on threads whose stacks hold plans of questions that were not optimised, as the program.
fn run<T: Send + 'static, W: Future<Output = T>>(work: impl FnOnce() -> W + Send + 'static) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .thread_stack_size(16 << 20)
        .build()
        .unwrap();
    let thread = std::thread::Builder::new().stack_size(64 << 20);
    thread.spawn(move || runtime.block_on(work())).unwrap().join().unwrap()
}
