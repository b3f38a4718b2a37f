//! The ledger of a run on disk: `ledger.json`, and the sealed mark, which holds the positions of
//! ledger and sampler.
//!
//! Each charge is written to the ledger first and to the mark second, and both are on disk before
//! anything is computed. A kill between the two leaves a ledger that is ahead of the mark; the run
//! can be resumed. A ledger that is behind the mark was replaced from outside and is refused. Where
//! the state of the sampler is saved, each draw is written to its file first and to the mark
//! second, for the same reason.
//!
//! # Claim
//! A run is resumed only with all charges that were made before anything was computed, unless
//! ledger *and* mark were replaced.
//!
//! # Why
//! [`LedgerFile::append_next`] returns after the mark of that charge is on disk, and the curator
//! computes only after it. [`LedgerFile::open`] refuses a ledger that does not contain the mark.
//!
//! # Checked by
//! `a_ledger_behind_its_mark_is_refused`, `an_older_ledger_is_refused`, `killed_at_every_write`

use crate::Error;
use crate::run::chain::{Chain, Closing, Mark};
use crate::run::folder::{self, Folder};
use accounting::{Composition, Event, Ledger};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// The path of the ledger in the folder of a run.
pub(crate) const LEDGER: &str = "ledger.json";
/// The path of the sealed mark in the folder of a run.
pub(crate) const MARK: &str = "sealed/mark.json";

/// The chain of a run and the files that hold it.
#[derive(Debug)]
pub(crate) struct LedgerFile {
    ledger: PathBuf,
    mark: PathBuf,
    chain: Mutex<Chain>,
    /// Number of lots drawn, if the state of the sampler is saved; otherwise 0.
    draws: AtomicU64,
}

/// The content of `sealed/mark.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SealedMark {
    /// The position of the ledger.
    pub(crate) ledger: Mark,
    /// Number of lots drawn, if the state of the sampler is saved; otherwise 0.
    pub(crate) draws: u64,
}

impl SealedMark {
    /// Reads the sealed mark of a run.
    ///
    /// # Errors
    /// If it is missing or damaged.
    pub(crate) fn read(folder: &Folder) -> Result<Self, Error> {
        let path = folder.join(MARK);
        let text = folder.read(MARK)?.ok_or_else(|| {
            Error::format(&path, "missing; without it an older ledger cannot be detected")
        })?;
        serde_json::from_str(&text).map_err(Error::json(&path))
    }
}

impl LedgerFile {
    /// Creates the ledger of a new run. Nothing is written yet.
    pub(crate) fn new(folder: &Folder) -> Result<Self, Error> {
        Ok(Self::from_chain(folder, Chain::new()?))
    }

    /// Opens the ledger of an interrupted run.
    ///
    /// # Errors
    /// If the ledger or its mark is missing or damaged, or the ledger does not contain the mark.
    pub(crate) fn open(folder: &Folder) -> Result<Self, Error> {
        let path = folder.join(LEDGER);
        let text = folder
            .read(LEDGER)?
            .ok_or_else(|| Error::format(&path, "missing; the charges of the run are unknown"))?;
        let chain = Chain::parse(&text).map_err(Error::ledger(&path))?;
        let mark = SealedMark::read(folder)?;
        chain.check(&mark.ledger, "the sealed mark").map_err(Error::ledger(&path))?;
        let file = Self::from_chain(folder, chain);
        file.draws.store(mark.draws, Ordering::Relaxed);
        Ok(file)
    }

    fn from_chain(folder: &Folder, chain: Chain) -> Self {
        Self {
            ledger: folder.join(LEDGER),
            mark: folder.join(MARK),
            chain: Mutex::new(chain),
            draws: AtomicU64::new(0),
        }
    }

    /// Writes the ledger, then the mark.
    pub(crate) fn write(&self) -> Result<(), Error> {
        self.write_chain(&self.lock())
    }

    fn write_chain(&self, chain: &Chain) -> Result<(), Error> {
        folder::write(&self.ledger, chain.to_text()?.as_bytes())?;
        self.write_mark(chain)
    }

    fn write_mark(&self, chain: &Chain) -> Result<(), Error> {
        let mark = SealedMark { ledger: chain.mark(), draws: self.draws() };
        let text = serde_json::to_string(&mark).map_err(Error::Encoding)?;
        folder::write(&self.mark, text.as_bytes())
    }

    /// Number of lots drawn, if the state of the sampler is saved; otherwise 0.
    pub(crate) fn draws(&self) -> u64 {
        self.draws.load(Ordering::Relaxed)
    }

    /// Writes the number of lots drawn into the mark, after the sampler's file has it.
    pub(crate) fn set_draws(&self, draws: u64) -> Result<(), Error> {
        self.draws.store(draws, Ordering::Relaxed);
        self.write_mark(&self.lock())
    }

    /// Appends a session for this process, and writes it.
    pub(crate) fn begin_session(&self) -> Result<(), Error> {
        let mut chain = self.lock();
        chain.begin_session()?;
        self.write_chain(&chain)
    }

    /// Appends the last charge of `spent`, which has one more than the chain, and writes it.
    ///
    /// # Errors
    /// If `spent` is not the chain's ledger with one charge more, or it cannot be written.
    pub(crate) fn append_next(&self, spent: &Ledger) -> Result<(), Error> {
        let mut chain = self.lock();
        chain.append_next(spent)?;
        self.write_chain(&chain)
    }

    /// Appends the closing and writes it. A run that is closed already must have the same closing.
    ///
    /// # Errors
    /// If the run has another closing, or it cannot be written.
    pub(crate) fn close(&self, closing: Closing) -> Result<(), Error> {
        let mut chain = self.lock();
        match chain.closing() {
            Some(known) if *known == closing => {}
            Some(_) => {
                return Err(Error::format(
                    &self.ledger,
                    "the run was closed with other weights, configuration or statement than it \
                     has now; finish it with the version of muffle that closed it",
                ));
            }
            None => chain.close(closing)?,
        }
        // Written even if it was closed: an interruption may have come before the mark was written.
        self.write_chain(&chain)
    }

    /// Charges all steps of a run without privacy, at its end; written with the closing.
    pub(crate) fn charge_non_private_steps(&self, steps: u64) -> Result<(), Error> {
        let mut chain = self.lock();
        if chain.closing().is_some() {
            return Ok(());
        }
        Ok(chain.charge_times(&Event::NonPrivate, steps)?)
    }

    /// Charges the events of a plan that are not charged yet; written with the closing.
    pub(crate) fn charge_remaining(&self, planned: &Composition) -> Result<(), Error> {
        let mut chain = self.lock();
        if chain.closing().is_some() {
            return Ok(());
        }
        let mut charged: Vec<(Event, u64)> = chain.ledger().events().runs().to_vec();
        for (event, count) in planned.runs() {
            let mut missing = *count;
            for (_, made) in charged.iter_mut().filter(|(other, _)| other == event) {
                let covered = missing.min(*made);
                (missing, *made) = (missing - covered, *made - covered);
            }
            chain.charge_times(event, missing)?;
        }
        Ok(())
    }

    /// The position of the last entry.
    pub(crate) fn mark(&self) -> Mark {
        self.lock().mark()
    }

    /// A copy of the chain.
    pub(crate) fn chain(&self) -> Chain {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Chain> {
        // A thread that panicked while it held the lock has at most made a charge that is not
        // written: the chain has too many charges, never too few.
        self.chain.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::disk::fault;
    use accounting::{SamplingRate, Sigma};

    fn event() -> Event {
        Event::poisson(SamplingRate::new(0.25).unwrap(), Sigma::new(1.0).unwrap())
    }

    fn run() -> (tempfile::TempDir, Folder, LedgerFile) {
        let temporary = tempfile::tempdir().unwrap();
        let folder = Folder::create(&temporary.path().join("run")).unwrap();
        let file = LedgerFile::new(&folder).unwrap();
        file.write().unwrap();
        (temporary, folder, file)
    }

    fn charge(file: &LedgerFile) -> Result<(), Error> {
        let mut spent = file.chain().ledger().clone();
        spent.charge(event(), 1).unwrap();
        file.append_next(&spent)
    }

    #[test]
    fn a_ledger_behind_its_mark_is_refused() {
        let (_temporary, folder, file) = run();
        charge(&file).unwrap();
        let old = folder.read(LEDGER).unwrap().unwrap();
        let old_mark = folder.read(MARK).unwrap().unwrap();
        charge(&file).unwrap();
        let new = folder.read(LEDGER).unwrap().unwrap();
        assert_eq!(LedgerFile::open(&folder).unwrap().chain(), file.chain());
        folder.write(LEDGER, &old).unwrap();
        let refused = LedgerFile::open(&folder).unwrap_err().to_string();
        assert!(
            refused.contains("the ledger has 1 charges, but the sealed mark was written after 2"),
            "{refused}"
        );
        // Ahead of the mark: what a kill between the two leaves.
        folder.write(LEDGER, &new).unwrap();
        folder.write(MARK, &old_mark).unwrap();
        assert_eq!(LedgerFile::open(&folder).unwrap().chain().charges(), 2);
        // As many charges, made by another process: another copy of the folder.
        folder.write(LEDGER, &old).unwrap();
        let copy = LedgerFile::open(&folder).unwrap();
        copy.begin_session().unwrap();
        charge(&copy).unwrap();
        folder
            .write(
                MARK,
                &serde_json::to_string(&SealedMark { ledger: file.mark(), draws: 0 }).unwrap(),
            )
            .unwrap();
        assert!(LedgerFile::open(&folder).unwrap_err().to_string().contains("another copy"));
        for damaged in ["", "{}", "{\"run_id\":\"x\"}"] {
            folder.write(MARK, damaged).unwrap();
            let refused = LedgerFile::open(&folder).unwrap_err().to_string();
            assert!(refused.contains("mark.json: invalid JSON"), "{refused}");
        }
        std::fs::remove_file(folder.join(MARK)).unwrap();
        let refused = LedgerFile::open(&folder).unwrap_err().to_string();
        assert!(refused.contains("mark.json: missing"), "{refused}");
    }

    #[test]
    fn only_a_ledger_with_one_more_charge_is_accepted() {
        let (_temporary, _folder, file) = run();
        let mut two = Ledger::new();
        two.charge(event(), 2).unwrap();
        assert!(file.append_next(&two).is_err());
        assert!(file.append_next(&Ledger::new()).is_err());
    }

    /// After an interruption at any operation of a charge, the ledger has the charge, or the charge
    /// was not reported as made.
    #[test]
    fn an_interrupted_charge_resumes_and_is_never_lost() {
        for operation in 0.. {
            let (_temporary, folder, file) = run();
            charge(&file).unwrap();
            fault::fail_from(Some(operation));
            let made = charge(&file).is_ok();
            fault::fail_from(None);
            let again = LedgerFile::open(&folder).unwrap();
            assert!(again.chain().charges() >= if made { 2 } else { 1 }, "{operation}");
            again.begin_session().unwrap();
            charge(&again).unwrap();
            assert!(LedgerFile::open(&folder).is_ok());
            if made {
                assert!(operation >= 10, "{operation}");
                break;
            }
        }
    }

    #[test]
    fn a_run_is_closed_once() {
        let (_temporary, folder, file) = run();
        charge(&file).unwrap();
        let closing = |weights: &str| Closing {
            weights_sha256: vec![("w".into(), weights.into())],
            config_sha256: "c".into(),
            statement_sha256: "s".into(),
        };
        file.close(closing("a")).unwrap();
        let again = LedgerFile::open(&folder).unwrap();
        again.close(closing("a")).unwrap();
        assert!(again.close(closing("b")).unwrap_err().to_string().contains("other weights"));
        assert!(charge(&again).unwrap_err().to_string().contains("over"));
        assert!(again.begin_session().is_err());
        again.charge_non_private_steps(5).unwrap();
        assert_eq!(again.chain().charges(), 1);
    }
}
