//! `dcpi-fleet push`: from a database to a store in a cloud, where `dcpi push` cannot go.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::Args;
use names::procedures::Places;
use names::sent;
use profiledb::{Database, DbError, FORMAT, Outgoing, code_files, outgoing, outgoing_place};
use store::{Key, Put, Store};

use crate::out::{complain, counted, say};
use crate::store_option::InStore;

/// `dcpi-fleet push`.
#[derive(Args, Debug)]
#[command(after_help = "\
The same epochs under the same keys as dcpi push puts, which needs a directory or a receiver; this \
command also reaches s3://, gs:// and az://. Run it where the credentials may be: on each host, or \
on one that collects databases (dcpi copy). What leaves is what leaves by default with dcpi push. \
Each epoch is put once; the store is asked for those that it has.")]
pub struct Push {
    /// The database's directory
    #[arg(long, value_name = "DIR", default_value = "/var/lib/dcpi")]
    from: PathBuf,
    #[command(flatten)]
    store: InStore,
    /// Without code, symbols and line numbers of programs
    #[arg(long)]
    without_code: bool,
}

/// # Errors
/// One line, with the next step.
pub async fn run(args: &Push) -> Result<bool, String> {
    let store = args.store.open()?;
    let database = Database::open(&args.from)
        .map_err(|error| format!("{error}; name a database with --from"))?;
    let places = Places::with_debug_roots(Vec::new());
    let mut pushed = Pushed { store: &store, epochs: 0, code: 0, is_sound: true, places };
    pushed.put(&Key::Format, Bytes::from_static(FORMAT)).await?;
    for host in database.hosts().map_err(|error| error.to_string())? {
        pushed.host(&database, &host, args.without_code).await?;
    }
    let (epochs, code) = (counted(pushed.epochs, "epoch"), counted(pushed.code, "image"));
    say!("{}: {epochs}, code of {code}", store.shown());
    Ok(pushed.is_sound)
}

struct Pushed<'a> {
    store: &'a Store,
    epochs: u64,
    code: u64,
    is_sound: bool,
    /// Where names of procedures are, beside the database.
    places: Places,
}

impl Pushed<'_> {
    async fn host(
        &mut self,
        database: &Database,
        host: &str,
        without_code: bool,
    ) -> Result<(), String> {
        let mut images = BTreeSet::new();
        for id in database.epochs(host).map_err(|error| error.to_string())? {
            let epoch = match database.epoch(host, &id) {
                Err(DbError::NoSuchEpoch { .. }) => continue,
                epoch => epoch.map_err(|error| error.to_string())?,
            };
            let place = outgoing_place(host, &id).map_err(|error| error.to_string())?;
            let key = key(&format!("raw/{place}"))?;
            if epoch.meta().ended_unix_s.is_none() || self.has(&key).await? {
                continue;
            }
            images.extend(epoch.images().map_err(|error| error.to_string())?.into_keys());
            let names = match without_code {
                true => BTreeMap::new(),
                false => sent::symbols(&epoch, &self.places).unwrap_or_default(),
            };
            match outgoing(&epoch, &Outgoing::default(), &names) {
                Ok(object) => match self.put(&key, object.into()).await? {
                    Put::Stored => self.epochs += 1,
                    Put::WasThere => {}
                    Put::Another => {
                        self.is_sound = false;
                        complain!(
                            "epoch {id} of {host} is not put: the store has another of that name, \
                             from another machine; give each a name of its own (dcpid --host)"
                        );
                    }
                },
                Err(error) => {
                    self.is_sound = false;
                    complain!("epoch {id} of {host} is not put: {error}");
                }
            }
        }
        if without_code {
            return Ok(());
        }
        for file in code_files(database, host, &images).map_err(|error| error.to_string())? {
            let key = key(&format!("raw/code/{}", file.name()))?;
            if self.has(&key).await? {
                continue;
            }
            let mut bytes = Vec::new();
            let code = file.open(database, host).ok().flatten();
            match code.map(|mut code| code.read_to_end(&mut bytes)) {
                Some(Ok(_)) => {
                    self.code += u64::from(self.put(&key, bytes.into()).await? == Put::Stored);
                }
                None | Some(Err(_)) => self.is_sound = false,
            }
        }
        Ok(())
    }

    async fn has(&self, key: &Key) -> Result<bool, String> {
        self.store.has(key).await.map_err(|error| self.failed(&error.to_string()))
    }

    async fn put(&self, key: &Key, object: Bytes) -> Result<Put, String> {
        self.store.put(key, object).await.map_err(|error| self.failed(&error.to_string()))
    }

    fn failed(&self, why: &str) -> String {
        format!(
            "{} does not take profiles: {why}; what was put stays, run it again",
            self.store.shown()
        )
    }
}

fn key(text: &str) -> Result<Key, String> {
    Key::parse(text).ok_or_else(|| format!("{} is no key of a store", Path::new(text).display()))
}
