//! Room for the rtld-audit library (`LD_AUDIT`, rtld-audit(7)) that will tell the daemon of each object the dynamic loader maps.
//!
//! There is nothing in it yet, on purpose: the daemon learns of mappings from the kernel's MMAP2 records and from /proc, and every test
//! passes without it. What it must become is stated here so that nobody mistakes the folder for the feature: code that runs inside
//! strangers' processes, so it never fails, waits, allocates, prints or panics, and the daemon trusts what it says only after checking it.
#![no_std]
#![forbid(unsafe_code)]
