//! The weekly review: a week closed, and its report as data, text, JSON and page.
#![forbid(unsafe_code)]
