//! Options that several commands have.

use clap::Args;
use store::{Store, Week};

/// The store.
#[derive(Args, Clone, Debug)]
pub struct InStore {
    /// The store: a directory, or s3://BUCKET/PREFIX, gs://..., az://...
    #[arg(long, value_name = "URL", env = "DCPI_FLEET_STORE", hide_env_values = true)]
    store: String,
}

impl InStore {
    /// Opens the store.
    ///
    /// # Errors
    /// One line, with the next step.
    pub fn open(&self) -> Result<Store, String> {
        Store::at(&self.store).map_err(|error| match error {
            store::StoreError::Address(why) => why,
            error => format!("no store in {}: {error}; make the directory", self.store),
        })
    }
}

/// A week of the store.
#[derive(Args, Clone, Debug)]
pub struct OfWeek {
    /// The week, such as 2026-W47 [default: the last that has ended]
    #[arg(long, value_name = "WEEK")]
    week: Option<Week>,
}

impl OfWeek {
    /// The week.
    pub fn get(&self) -> Week {
        self.week.unwrap_or_else(|| Week::of(now_s()).before(1))
    }
}

/// Where questions are answered.
#[derive(Args, Clone, Debug)]
pub struct OnEngine {
    /// The SQL engine: local, or df://HOST:PORT, the scheduler of a Ballista cluster
    #[arg(long, value_name = "ENGINE", default_value = "local")]
    pub engine: String,
    /// Memory that the local engine uses for what it sorts and groups, before it uses $TMPDIR, MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024,
          value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    memory: u64,
}

impl OnEngine {
    /// The memory in bytes.
    pub fn memory_bytes(&self) -> usize {
        usize::try_from(self.memory << 20).unwrap_or(usize::MAX)
    }
}

/// Seconds since 1970 UTC.
pub fn now_s() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(now.unwrap_or_default().as_secs()).unwrap_or_default()
}
