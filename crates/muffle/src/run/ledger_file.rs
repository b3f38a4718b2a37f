//! The ledger of a run on the disk: `ledger.json`, and a mark in the sealed folder that says how
//! far ledger and sampler were.
//!
//! Each charge is written to the ledger first and to the mark second, and both are on the disk
//! before anything is computed. A kill between the two leaves a ledger that is ahead of the mark,
//! which resumes; a ledger that is behind it was put there by something else, and is refused. Where
//! the sampler must be remembered, each draw is written to its file first and to the mark second,
//! for the same reason.
//!
//! # Claim
//! A run is resumed only with all charges that were made before anything was computed, unless
//! ledger *and* mark were replaced.
//!
//! # Why
//! `charge` returns after the mark of that charge is on the disk, and the curator computes only
//! after it. `open` refuses a ledger that does not contain the mark.
//!
//! # Checked by
//! `a_ledger_behind_its_mark_is_refused`, `an_older_ledger_is_refused`, `killed_at_every_write`

use crate::Error;
use crate::run::chain::{Chain, Closing, Mark};
use crate::run::folder::{self, Folder};
use accounting::{Event, Ledger};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// The names of the files.
pub(crate) const LEDGER: &str = "ledger.json";
pub(crate) const MARK: &str = "sealed/mark.json";

/// The chain of a run and where it is written.
#[derive(Debug)]
pub(crate) struct LedgerFile {
    ledger: PathBuf,
    mark: PathBuf,
    chain: Mutex<Chain>,
    /// Lots that were drawn, as far as they are remembered over an interruption.
    draws: AtomicU64,
}

/// What is in the mark's file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SealedMark {
    /// How far the ledger was.
    pub(crate) ledger: Mark,
    /// Lots that were drawn, as far as they are remembered over an interruption.
    pub(crate) draws: u64,
}

impl SealedMark {
    /// Reads it.
    ///
    /// # Errors
    /// If it is gone or damaged.
    pub(crate) fn read(folder: &Folder) -> Result<Self, Error> {
        let at = |what: &str| Error::format(&folder.join(MARK), what);
        let text = folder.read(MARK)?.ok_or_else(|| {
            at("it is gone, so that an old ledger could not be told from the present one")
        })?;
        serde_json::from_str(&text).map_err(|error| at(&format!("damaged: {error}")))
    }
}

impl LedgerFile {
    /// Of a new run. Nothing is written yet.
    pub(crate) fn new(folder: &Folder) -> Result<Self, Error> {
        Ok(Self::with(folder, Chain::new()?))
    }

    /// Of a run that was interrupted.
    ///
    /// # Errors
    /// If the ledger or its mark is gone or damaged, or the ledger does not contain the mark.
    pub(crate) fn open(folder: &Folder) -> Result<Self, Error> {
        let at = |what: &str| Error::format(&folder.join(LEDGER), what);
        let text =
            folder.read(LEDGER)?.ok_or_else(|| at("it is gone, and with it what was spent"))?;
        let chain = Chain::parse(&text)
            .map_err(|what| at(&format!("what was spent cannot be read: {what}")))?;
        let mark = SealedMark::read(folder)?;
        chain.check(&mark.ledger, "the sealed mark").map_err(|what| at(&what))?;
        let file = Self::with(folder, chain);
        file.draws.store(mark.draws, Ordering::Relaxed);
        Ok(file)
    }

    fn with(folder: &Folder, chain: Chain) -> Self {
        Self {
            ledger: folder.join(LEDGER),
            mark: folder.join(MARK),
            chain: Mutex::new(chain),
            draws: AtomicU64::new(0),
        }
    }

    /// Writes the ledger, then the mark.
    pub(crate) fn write(&self) -> Result<(), Error> {
        self.put(&self.locked())
    }

    fn put(&self, chain: &Chain) -> Result<(), Error> {
        folder::write(&self.ledger, chain.to_text()?.as_bytes())?;
        self.put_mark(chain)
    }

    fn put_mark(&self, chain: &Chain) -> Result<(), Error> {
        let mark = SealedMark { ledger: chain.mark(), draws: self.draws() };
        let text = serde_json::to_string(&mark).map_err(Error::Encoding)?;
        folder::write(&self.mark, text.as_bytes())
    }

    /// Lots that were drawn, as far as they are remembered over an interruption.
    pub(crate) fn draws(&self) -> u64 {
        self.draws.load(Ordering::Relaxed)
    }

    /// Remembers that so many lots were drawn; the sampler's file knows already.
    pub(crate) fn drawn(&self, draws: u64) -> Result<(), Error> {
        self.draws.store(draws, Ordering::Relaxed);
        self.put_mark(&self.locked())
    }

    /// Appends a session for this process, and writes it.
    pub(crate) fn begin_session(&self) -> Result<(), Error> {
        let mut chain = self.locked();
        chain.begin_session()?;
        self.put(&chain)
    }

    /// Appends the charge by which `spent` is ahead, and writes it.
    ///
    /// # Errors
    /// If `spent` is not the chain's ledger with one charge more, or the disk refuses.
    pub(crate) fn follow(&self, spent: &Ledger) -> Result<(), String> {
        let mut chain = self.locked();
        chain.follow(spent)?;
        self.put(&chain).map_err(|failed| failed.to_string())
    }

    /// Appends the closing and writes it; if the run was closed before, looks whether it is the
    /// same.
    ///
    /// # Errors
    /// If it is another, or the disk refuses.
    pub(crate) fn close(&self, closing: Closing) -> Result<(), Error> {
        let mut chain = self.locked();
        match chain.closing() {
            Some(known) if *known == closing => {}
            Some(_) => {
                return Err(Error::format(
                    &self.ledger,
                    "the run was closed with other weights, configuration or statement than it \
                     has now; end it with the muffle that closed it",
                ));
            }
            None => chain.close(closing).map_err(Error::Ledger)?,
        }
        // Written in any case: an interruption may have come before the mark.
        self.put(&chain)
    }

    /// Without privacy nothing is charged on the way: all steps are charged when the run is over.
    /// Written with the closing.
    pub(crate) fn charge_steps(&self, steps: u64) -> Result<(), Error> {
        let mut chain = self.locked();
        if chain.closing().is_some() {
            return Ok(());
        }
        chain.charge_times(&Event::NonPrivate, steps).map_err(Error::Ledger)
    }

    /// The present position.
    pub(crate) fn mark(&self) -> Mark {
        self.locked().mark()
    }

    /// The chain as it is now.
    pub(crate) fn chain(&self) -> Chain {
        self.locked().clone()
    }

    fn locked(&self) -> MutexGuard<'_, Chain> {
        // A thread that panicked while it held the lock has at most made a charge that is not
        // written: never too few.
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
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::create(&place.path().join("run")).unwrap();
        let file = LedgerFile::new(&folder).unwrap();
        file.write().unwrap();
        (place, folder, file)
    }

    fn charge(file: &LedgerFile) -> Result<(), String> {
        let mut spent = file.chain().ledger().clone();
        spent.charge(event(), 1).unwrap();
        file.follow(&spent)
    }

    #[test]
    fn a_ledger_behind_its_mark_is_refused() {
        let (_keep, folder, file) = run();
        charge(&file).unwrap();
        let old = folder.read(LEDGER).unwrap().unwrap();
        let old_mark = folder.read(MARK).unwrap().unwrap();
        charge(&file).unwrap();
        let new = folder.read(LEDGER).unwrap().unwrap();
        assert_eq!(LedgerFile::open(&folder).unwrap().chain(), file.chain());
        folder.write(LEDGER, &old).unwrap();
        let refused = LedgerFile::open(&folder).unwrap_err().to_string();
        assert!(
            refused.contains("the ledger has 1 charges, the sealed mark knows of 2: an old ledger"),
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
            assert!(
                LedgerFile::open(&folder).unwrap_err().to_string().contains("mark.json: damaged")
            );
        }
        std::fs::remove_file(folder.join(MARK)).unwrap();
        assert!(
            LedgerFile::open(&folder).unwrap_err().to_string().contains("mark.json: it is gone")
        );
    }

    #[test]
    fn only_the_next_charge_is_followed() {
        let (_keep, _folder, file) = run();
        let mut two = Ledger::new();
        two.charge(event(), 2).unwrap();
        assert!(file.follow(&two).is_err());
        assert!(file.follow(&Ledger::new()).is_err());
    }

    /// ResumeState at any operation of a charge: what is read afterwards has the charge, or it was
    /// not reported as made.
    #[test]
    fn an_interrupted_charge_resumes_and_is_never_lost() {
        for operation in 0.. {
            let (_keep, folder, file) = run();
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
        let (_keep, folder, file) = run();
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
        assert!(charge(&again).unwrap_err().contains("over"));
        assert!(again.begin_session().is_err());
        again.charge_steps(5).unwrap();
        assert_eq!(again.chain().charges(), 1);
    }
}
