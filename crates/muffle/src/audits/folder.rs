//! The folder of an audit that trains: configuration, ledger and result.
//!
//! | file | content |
//! |---|---|
//! | `audit.toml` | the configuration of the training run |
//! | `ledger.json` | all charges; written before anything is computed |
//! | `audit.json` | the result and the cost; missing if the audit was interrupted |
//!
//! The audits of a run are in its folder, as `audits/1`, `audits/2` and so on. Their charges are
//! added to those of the run, whether they were finished or not.

use super::document::AuditDocument;
use crate::Error;
use crate::config::{Auto, Config};
use crate::run::chain::Chain;
use crate::run::folder;
use crate::run::ledger_file::LEDGER;
use crate::verify::spent::{self, Spent};
use accounting::{Event, Guarantee, Ledger};
use curator::Journal;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const CONFIG: &str = "audit.toml";
const RESULT: &str = "audit.json";
const AUDITS: &str = "audits";

/// The folder of an audit.
#[derive(Debug)]
pub struct AuditFolder {
    path: PathBuf,
    /// The folder of the audited run, if a run is audited.
    run: Option<PathBuf>,
}

/// The joint cost of a run and all audits of it.
#[derive(Clone, Debug, PartialEq)]
pub struct JointCost {
    /// The names of the ledgers that were added up.
    pub of: Vec<String>,
    /// The cost; `None` if one of them has no guarantee, or their units differ.
    pub price: Option<Guarantee>,
}

impl AuditFolder {
    /// Creates the folder of a new audit.
    ///
    /// # Errors
    /// If the folder is not empty, or cannot be created.
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

    /// Creates the folder of a new audit in the folder of a run.
    ///
    /// # Errors
    /// If it cannot be created.
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
        Err(Error::folder(&audits, "too many audits"))
    }

    /// Opens the folder of an audit that trains: within that of the audited run, if one is
    /// audited; otherwise `folder`, or `default` if it is not given.
    ///
    /// # Errors
    /// If a run is audited with other data, or with a folder elsewhere; or as
    /// [`create`](Self::create).
    pub fn choose(
        audited: &Path,
        folder: Option<&Path>,
        config: &Config,
        default: impl FnOnce() -> PathBuf,
    ) -> Result<Self, Error> {
        if !audited.is_dir() {
            return Self::create(&folder.map_or_else(default, Path::to_path_buf));
        }
        if folder.is_some() {
            return Err(Error::Audit(format!(
                "folder (--folder): expected none, because the audits of a run are in its folder \
                 ({}/audits), where their costs are added up",
                audited.display()
            )));
        }
        // Costs are added up for the same data and the same unit only.
        if Config::read(&audited.join("config.toml"))?.data != config.data {
            return Err(Error::Audit(format!(
                "[data]: expected the section of the run in {}, got another; audit a RUN.toml \
                 instead",
                audited.display()
            )));
        }
        Self::within(audited)
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the ledger.
    pub fn ledger(&self) -> PathBuf {
        self.path.join(LEDGER)
    }

    /// Writes configuration and ledger. Returns the journal, which writes the ledger after each
    /// charge.
    ///
    /// Without privacy the journal gets no charges; one non-private event is written now.
    pub(super) fn begin(&self, config: &Config, places: usize) -> Result<Journal, Error> {
        let mut config = config.clone();
        let mut chain = Chain::new()?;
        match spent::promise(&config, places) {
            // The default depends on the number of places, which a later reader does not know.
            Some((_, delta)) => config.privacy.delta = Auto::Value(delta),
            None => chain.charge(&Event::NonPrivate)?,
        }
        folder::write(&self.path.join(CONFIG), config.print().as_bytes())?;
        let path = self.ledger();
        folder::write(&path, chain.to_text()?.as_bytes())?;
        let mut write = move |ledger: &Ledger| -> Result<(), Error> {
            chain.append_next(ledger)?;
            folder::write(&path, chain.to_text()?.as_bytes())
        };
        Ok(Box::new(move |ledger| write(ledger).map_err(|error| error.to_string())))
    }

    /// The joint cost of the run, its earlier audits and this one; `None` if no run is audited.
    ///
    /// `places` is the number of places of the run's data.
    pub(super) fn joint(&self, own: &Spent, places: usize) -> Result<Option<JointCost>, Error> {
        let Some(run) = &self.run else { return Ok(None) };
        let (mut names, mut runs) = (vec!["run".to_string()], vec![Spent::of_run(run, places)?]);
        let audits = run.join(AUDITS);
        let mut folders = Vec::new();
        for entry in fs::read_dir(&audits).map_err(Error::io(&audits))? {
            folders.push(entry.map_err(Error::io(&audits))?.path());
        }
        folders.sort();
        // An audit without a ledger did not start.
        for path in folders.iter().filter(|path| **path != self.path && path.join(LEDGER).exists())
        {
            let config = Config::read(&path.join(CONFIG))?;
            names.push(audit_name(path));
            runs.push(Spent::of_config(spent::read(&path.join(LEDGER))?, &config, places));
        }
        names.push(audit_name(&self.path));
        runs.push(own.clone());
        Ok(Some(JointCost { of: names, price: spent::joint(&runs)? }))
    }

    /// Writes the result.
    pub(super) fn finish(&self, result: &AuditDocument) -> Result<(), Error> {
        let text = serde_json::to_string(result).map_err(Error::Encoding)?;
        folder::write(&self.path.join(RESULT), (text + "\n").as_bytes())
    }

    /// Removes the folder if nothing was charged.
    pub(super) fn discard_unspent(&self) {
        let ledger = self.ledger();
        if !ledger.exists() || spent::read(&ledger).is_ok_and(|ledger| ledger.events().is_empty()) {
            // It was empty before, so that only our own files are in it. If removing fails, the
            // error that led here matters more.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// The name of an audit in the list of ledgers.
fn audit_name(path: &Path) -> String {
    format!("{AUDITS}/{}", path.file_name().unwrap_or_default().to_string_lossy())
}
