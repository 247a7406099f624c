//! Times of functions from 3 ns to 3 ms, for benchmarks of one's own code.
#![forbid(unsafe_code)]
