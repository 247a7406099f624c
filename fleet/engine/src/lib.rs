//! SQL over the tables of a store: Apache DataFusion in this process, or a cluster of Apache
//! Ballista, which takes the same text.
//!
//! An engine knows the tables that were registered, each as the files that manifests list: it lists
//! nothing, and opens the files of the weeks that are asked for only.
#![forbid(unsafe_code)]

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use datafusion::catalog::{MemTable, TableProvider};
use datafusion::datasource::empty::EmptyTable;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::error::DataFusionError;
use datafusion::execution::context::SQLOptions;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{DataFrame, SessionConfig, SessionContext};
use futures_util::StreamExt as _;
use store::{FileEntry, Store, StoreError};
use tables::{Columns, Row, Table, TableError};

#[cfg(feature = "ballista")]
pub mod cluster;

/// A directory that no store has.
const NOTHING: &str = "nothing/";

/// Why a question was not answered.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine refused or failed.
    #[error("{}", first_line(.0))]
    Sql(#[from] Box<DataFusionError>),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The answer has other columns than were expected.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The address is none of an engine, or this program was built without it.
    #[error("{0}")]
    Address(String),
    /// A part of a cluster could not run.
    #[error("{0}")]
    Cluster(String),
}

impl From<DataFusionError> for EngineError {
    fn from(error: DataFusionError) -> Self {
        Self::Sql(Box::new(error))
    }
}

/// The first line of what an engine says.
fn first_line(error: &DataFusionError) -> String {
    let text = error.strip_backtrace();
    text.lines().next().unwrap_or_default().trim_end_matches('.').to_owned()
}

/// An SQL engine with tables of a store.
pub struct Engine {
    context: SessionContext,
    store: Store,
    /// The scheduler to which plans are sent.
    scheduler: Option<String>,
}

impl Engine {
    /// An engine in this process. It uses about this much memory for sorting and grouping, and then
    /// the disk ($TMPDIR).
    ///
    /// # Errors
    /// [`EngineError::Sql`].
    pub fn local(store: &Store, memory_bytes: usize) -> Result<Self, EngineError> {
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(FairSpillPool::new(memory_bytes)))
            .build_arc()?;
        let context = SessionContext::new_with_config_rt(config(), runtime);
        Ok(Self { context, store: store.clone(), scheduler: None })
    }

    /// The engine of an address: `local`, or `df://HOST:PORT`, the scheduler of a cluster.
    ///
    /// # Errors
    /// [`EngineError::Address`], [`EngineError::Sql`].
    pub fn at(address: &str, store: &Store, memory_bytes: usize) -> Result<Self, EngineError> {
        match address.split_once("://") {
            None if address == "local" => Self::local(store, memory_bytes),
            #[cfg(feature = "ballista")]
            Some(("df", of)) => {
                let (context, scheduler) = (cluster::context(of)?, Some(of.to_owned()));
                Ok(Self { context, store: store.clone(), scheduler })
            }
            #[cfg(not(feature = "ballista"))]
            Some(("df", _)) => Err(EngineError::Address(
                "this dcpi-fleet was built without Ballista; build it with --features ballista"
                    .to_owned(),
            )),
            _ => Err(EngineError::Address(format!(
                "no engine at {address}: local, or df://HOST:PORT"
            ))),
        }
    }

    /// Makes a table of these files, also in the place of another of that name.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn register<'a>(
        &self,
        table: Table,
        name: &str,
        files: impl IntoIterator<Item = &'a FileEntry>,
    ) -> Result<(), EngineError> {
        let schema = tables::schema(table);
        let mut urls = Vec::new();
        for file in files {
            let (url, objects) = self.store.url(&file.key)?;
            self.context.register_object_store(&url, objects);
            urls.push(ListingTableUrl::parse(url)?);
        }
        if urls.is_empty() && self.scheduler.is_some() {
            // A plan that is sent loses the columns of what is empty; a directory has a schema.
            urls.push(ListingTableUrl::parse(self.store.url(NOTHING)?.0)?);
        }
        let table: Arc<dyn TableProvider> = if urls.is_empty() {
            Arc::new(EmptyTable::new(schema))
        } else {
            let options = ListingOptions::new(Arc::new(ParquetFormat::default()))
                .with_file_extension(".parquet");
            let config = ListingTableConfig::new_with_multi_paths(urls)
                .with_listing_options(options)
                .with_schema(schema);
            Arc::new(ListingTable::try_new(config)?)
        };
        self.context.deregister_table(name)?;
        self.context.register_table(name, table)?;
        Ok(())
    }

    /// Makes a table of rows in memory, for an engine in this process.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn register_rows<R: Row>(&self, name: &str, rows: &[R]) -> Result<(), EngineError> {
        let batch = tables::batch(rows)?;
        let table = MemTable::try_new(tables::schema(R::TABLE), vec![vec![batch]])?;
        self.context.deregister_table(name)?;
        self.context.register_table(name, Arc::new(table))?;
        Ok(())
    }

    /// The answer to a question, in batches. The text may ask, and change nothing.
    ///
    /// # Errors
    /// [`EngineError::Sql`].
    pub async fn batches(&self, sql: &str) -> Result<Vec<RecordBatch>, EngineError> {
        let asked = self.asked(sql).await?;
        #[cfg(feature = "ballista")]
        if let Some(scheduler) = &self.scheduler {
            return cluster::collect(asked, scheduler).await;
        }
        Ok(asked.collect().await?)
    }

    /// Gives the answer to a question batch by batch, as it comes, until `each` wants no more: an
    /// answer may be longer than memory.
    ///
    /// # Errors
    /// [`EngineError`].
    pub async fn each(
        &self,
        sql: &str,
        mut each: impl FnMut(&RecordBatch) -> bool,
    ) -> Result<(), EngineError> {
        let mut stream = self.asked(sql).await?.execute_stream().await?;
        while let Some(batch) = stream.next().await {
            if !each(&batch?) {
                break;
            }
        }
        Ok(())
    }

    async fn asked(&self, sql: &str) -> Result<DataFrame, EngineError> {
        let options = SQLOptions::new()
            .with_allow_ddl(false)
            .with_allow_dml(false)
            .with_allow_statements(false);
        Ok(self.context.sql_with_options(sql, options).await?)
    }

    /// The answer to a question, as rows of a table.
    ///
    /// # Errors
    /// [`EngineError`].
    pub async fn rows<R: Row>(&self, sql: &str) -> Result<Vec<R>, EngineError> {
        let mut rows = Vec::new();
        for batch in self.batches(sql).await? {
            rows.extend(Columns::of(&batch)?.to_rows::<R>()?);
        }
        Ok(rows)
    }
}

fn config() -> SessionConfig {
    // Tables have names in small letters, and texts compare by their bytes.
    SessionConfig::new().with_information_schema(true)
}
