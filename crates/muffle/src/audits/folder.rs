//! The folder of an audit that trains: what it was, what it has spent, what it found.
//!
//! | file | what |
//! |---|---|
//! | `audit.toml` | the configuration that it trained with |
//! | `ledger.json` | what was charged; written before anything is computed |
//! | `audit.json` | what was found and what all of it cost; not there if the audit was interrupted |
//!
//! The audits of a run lie in its folder, as `audits/1`, `audits/2` and so on: what they spent
//! counts beside what the run spent, whether they were finished or not.

use super::document::AuditDocument;
use crate::Error;
use crate::config::{Auto, Config};
use crate::run::chain::Chain;
use crate::run::folder;
use crate::run::ledger_file::LEDGER;
use crate::verify::spent::{self, Spent};
use accounting::{Event, Guarantee};
use curator::Journal;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const CONFIG: &str = "audit.toml";
const FOUND: &str = "audit.json";
const AUDITS: &str = "audits";

/// The folder of an audit.
#[derive(Debug)]
pub struct AuditFolder {
    path: PathBuf,
    /// The folder of the run that is audited, if it is one.
    run: Option<PathBuf>,
}

/// What a run and all audits of it have spent together.
#[derive(Clone, Debug, PartialEq)]
pub struct Joint {
    /// What was added up, by name.
    pub of: Vec<String>,
    /// What it comes to; none if one of them has no guarantee, or they cannot be added up.
    pub price: Option<Guarantee>,
}

impl AuditFolder {
    /// A new one.
    ///
    /// # Errors
    /// If there is something in it already, or it cannot be made.
    pub fn create(path: &Path) -> Result<Self, Error> {
        match fs::read_dir(path).map(Iterator::count) {
            Ok(0) => {}
            Ok(_) => {
                return Err(Error::folder(
                    path,
                    "the folder is not empty; choose another one (--folder)",
                ));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                fs::create_dir_all(path).map_err(Error::io(path))?
            }
            Err(error) => return Err(Error::io(path)(error)),
        }
        Ok(Self { path: path.into(), run: None })
    }

    /// A new one in the folder of a run.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn within(run: &Path) -> Result<Self, Error> {
        let audits = run.join(AUDITS);
        fs::create_dir_all(&audits).map_err(Error::io(&audits))?;
        for number in 1u64.. {
            let path = audits.join(number.to_string());
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path, run: Some(run.into()) }),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io(&path)(error)),
            }
        }
        Err(Error::folder(&audits, "there are too many audits"))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where its ledger is.
    pub fn ledger(&self) -> PathBuf {
        self.path.join(LEDGER)
    }

    /// Writes down what will be done, and gives what writes the ledger from now on. Without privacy
    /// nothing is charged on the way: that it was not private is written down now.
    pub(super) fn begin(&self, config: &Config, places: usize) -> Result<Journal, Error> {
        let mut config = config.clone();
        let mut chain = Chain::new()?;
        match spent::promise(&config, places) {
            // As a number: where it is read later, the number of places is not known.
            Some((_, delta)) => config.privacy.delta = Auto::Value(delta),
            None => chain.charge(&Event::NonPrivate).map_err(Error::Ledger)?,
        }
        folder::write(&self.path.join(CONFIG), config.print().as_bytes())?;
        let path = self.ledger();
        folder::write(&path, chain.to_text()?.as_bytes())?;
        Ok(Box::new(move |ledger| {
            chain.follow(ledger)?;
            let text = chain.to_text().map_err(|failed| failed.to_string())?;
            folder::write(&path, text.as_bytes()).map_err(|failed| failed.to_string())
        }))
    }

    /// What the run, the earlier audits of it and this one have spent together; none if no run is
    /// audited. Its data have so many places.
    pub(super) fn joint(&self, own: &Spent, places: usize) -> Result<Option<Joint>, Error> {
        let Some(run) = &self.run else { return Ok(None) };
        let (mut of, mut all) = (vec!["run".to_string()], vec![Spent::of_run(run, places)?]);
        let audits = run.join(AUDITS);
        let mut folders = Vec::new();
        for entry in fs::read_dir(&audits).map_err(Error::io(&audits))? {
            folders.push(entry.map_err(Error::io(&audits))?.path());
        }
        folders.sort();
        // One that has no ledger did not begin.
        for path in folders.iter().filter(|path| **path != self.path && path.join(LEDGER).exists())
        {
            let config = Config::read(&path.join(CONFIG))?;
            of.push(name(path));
            all.push(Spent {
                ledger: spent::read(&path.join(LEDGER))?,
                promise: spent::promise(&config, places),
            });
        }
        of.push(name(&self.path));
        all.push(own.clone());
        Ok(Some(Joint { of, price: spent::joint(&all)? }))
    }

    /// Writes down what was found.
    pub(super) fn finish(&self, found: &AuditDocument) -> Result<(), Error> {
        let text = serde_json::to_string(found).map_err(Error::Encoding)?;
        folder::write(&self.path.join(FOUND), (text + "\n").as_bytes())
    }

    /// Removes it, if nothing was charged: no audit began.
    pub(super) fn discard_unspent(&self) {
        let ledger = self.ledger();
        if !ledger.exists() || spent::read(&ledger).is_ok_and(|ledger| ledger.events().is_empty()) {
            // It was empty before, so that only our own files are in it. If removing fails, the
            // reason for it matters more.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn name(path: &Path) -> String {
    format!("{AUDITS}/{}", path.file_name().unwrap_or_default().to_string_lossy())
}
