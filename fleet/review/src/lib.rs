//! The weekly review of a fleet: its report as data ([`report`]), with what people say about
//! prices, owners and findings ([`settings`]), as JSON ([`json`]), text ([`text`]) and page
//! ([`page`]).
#![forbid(unsafe_code)]

// The reports of one host spell names out by the same rules. Their crate needs all that reads code;
// this one needs this file alone.
#[path = "../../../analysis/report/src/escape.rs"]
mod escape;
pub mod json;
pub mod page;
mod quantity;
pub mod report;
pub mod settings;
mod table;
pub mod tax;
pub mod text;

pub use report::Report;
pub use settings::{Settings, SettingsError, Watched};
