//! What can be asked of dcpid, by whom, and what it answers.

pub mod client_rights;
pub mod metrics;
pub mod privileges;
pub mod socket;
pub mod status_parts;
pub mod status_text;
pub mod watches;
