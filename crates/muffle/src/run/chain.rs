//! The ledger of a run as a hash chain.
//!
//! A charge that is removed, edited or moved changes every hash after it.
//!
//! Entries, in order: a session for each process that worked on the run, its charges, and one
//! closing when the run is over. With the run's id r, and ‖ for concatenation of fields of known
//! length,
//!
//! ```text
//! h₀      = SHA-256("muffle ledger 3" ‖ r)
//! hᵢ      = SHA-256(hᵢ₋₁ ‖ kind ‖ i ‖ SHA-256(contentᵢ))      i as 64 bits, little-endian
//! content = r ‖ session id ‖ the date of its start             kind 0, a session
//!         = r ‖ session id ‖ the event as JSON                kind 1, a charge
//!         = r ‖ the closing as JSON                           kind 2, the closing
//! ```
//!
//! `ledger.json` holds the events, run-length coded, and for each session the number of charges
//! before it. All hashes follow from these and are recomputed whenever the file is read. Everything
//! in the file is public: charges do not depend on records.
//!
//! The chain has no secret. It shows that files belong together, not who wrote them: anyone who
//! rewrites all of them can compute matching hashes. A signature ([`crate::verify::signature`])
//! prevents that.

use crate::run::date::{is_date, today};
use crate::run::snapshot::hex;
use accounting::{Composition, Event, Ledger};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The version of `ledger.json`.
const VERSION: u32 = 3;

/// The maximum number of charges of a run: all hashes are recomputed whenever a ledger is read.
pub const MAX_CHARGES: u64 = 1 << 24;

/// An error of a hash-chained ledger.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// The text is not JSON of the expected structure, or an entry has no JSON form.
    #[error("invalid JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The file has another version.
    #[error("version: expected {VERSION}, got {0}")]
    Version(u32),
    /// An id of a run or a session is malformed.
    #[error("{field}: expected 32 hexadecimal digits, got {id:?}")]
    Id {
        /// Which id.
        field: &'static str,
        /// The text in its place.
        id: String,
    },
    /// A date is malformed.
    #[error("session {id}: expected a date such as 2026-01-31, got {date:?}")]
    Date {
        /// The id of the session.
        id: String,
        /// The text in its place.
        date: String,
    },
    /// There are more charges than a chain can have.
    #[error("events: expected at most {MAX_CHARGES} charges, got {0}")]
    TooManyCharges(u64),
    /// Charges need a session before them.
    #[error("sessions: expected at least 1, got 0")]
    NoSession,
    /// A session states another number of charges before it than there are.
    #[error("session {id}: expected {expected} charges before it, got {got}")]
    SessionCharges {
        /// The id of the session.
        id: String,
        /// The number of charges before it.
        expected: u64,
        /// The stated number.
        got: u64,
    },
    /// A session states another head than the entries before it give.
    #[error(
        "session {id}: the entries before it give the head {expected}, it started from {got:?}; \
         an entry was changed"
    )]
    SessionHead {
        /// The id of the session.
        id: String,
        /// The recomputed head.
        expected: String,
        /// The stated head.
        got: String,
    },
    /// Two sessions have the same id.
    #[error("session {0}: occurs twice")]
    DuplicateSession(String),
    /// The stated head is not the recomputed one.
    #[error("{field}: the entries give {expected}, got {got:?}; an entry was changed")]
    Head {
        /// The field that states the head.
        field: &'static str,
        /// The recomputed head.
        expected: String,
        /// The stated head.
        got: String,
    },
    /// The chain is closed and cannot be extended.
    #[error("the run is over: its ledger is closed and takes no further entry")]
    Closed,
    /// A ledger is not the chain's ledger with one more charge.
    #[error("expected one charge more than the {charges} in the ledger, got {got}")]
    NotNext {
        /// Charges in the chain.
        charges: u64,
        /// Charges in the other ledger.
        got: u64,
    },
    /// A position belongs to the chain of another run.
    #[error("{holder}: expected the run {expected}, got {got}; files of two runs were mixed")]
    OtherRun {
        /// The file that holds the position.
        holder: &'static str,
        /// The id of the run.
        expected: String,
        /// The run id of the position.
        got: String,
    },
    /// The chain ends before a position: it was replaced by an older one.
    #[error(
        "the ledger has {got} charges, but {holder} was written after {expected}: the ledger was \
         replaced by an older one"
    )]
    OlderLedger {
        /// The file that holds the position.
        holder: &'static str,
        /// Charges at the position.
        expected: u64,
        /// Charges in the ledger.
        got: u64,
    },
    /// The chain has another hash at a position.
    #[error(
        "the first {charges} charges of the ledger are not those of {holder}: an entry was \
         changed, or this is the ledger of another copy of the run"
    )]
    OtherEntries {
        /// The file that holds the position.
        holder: &'static str,
        /// Charges at the position.
        charges: u64,
    },
    /// A charge was refused.
    #[error(transparent)]
    Accounting(#[from] accounting::Error),
    /// The operating system gives no randomness for an id.
    #[error("the operating system gives no randomness: {0}")]
    Randomness(#[from] getrandom::Error),
}

/// The hash-chained ledger of a run: sessions, charges and the closing.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    run_id: String,
    ledger: Ledger,
    sessions: Vec<SessionEntry>,
    closing: Option<Closing>,
    entries: u64,
    head: [u8; 32],
}

/// The entry of a process that worked on a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionEntry {
    /// 128 random bits in hexadecimal digits.
    pub id: String,
    /// Number of charges before it.
    pub charges: u64,
    /// The head of the chain before it.
    pub from: String,
    /// The date of its start (UTC), by the clock of the machine.
    pub started: String,
}

/// The last entry of a finished run: hashes of what was released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Closing {
    /// SHA-256 of each file of weights.
    pub weights_sha256: Vec<(String, String)>,
    /// SHA-256 of the configuration, without performance and evaluation settings.
    pub config_sha256: String,
    /// SHA-256 of the privacy statement in its canonical form.
    pub statement_sha256: String,
}

/// A position in a chain, stored in the files that were written at it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// The id of the run.
    pub run_id: String,
    /// Number of entries up to here.
    pub entries: u64,
    /// Number of charges among them.
    pub charges: u64,
    /// The hash of the last entry.
    pub head: String,
}

/// The content of `ledger.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LedgerDocument {
    version: u32,
    run_id: String,
    events: Composition,
    sessions: Vec<SessionEntry>,
    closing: Option<Closing>,
    head: String,
}

/// The version of a `ledger.json`.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Draws 128 random bits from the operating system, as hexadecimal digits.
///
/// # Errors
/// If the system gives no randomness.
pub(crate) fn new_id() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(hex(&bytes))
}

impl Chain {
    /// Creates the chain of a new run, with its first session.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn new() -> Result<Self, ChainError> {
        let mut chain = Self::empty(new_id()?);
        chain.begin_session()?;
        Ok(chain)
    }

    fn empty(run_id: String) -> Self {
        let head =
            Sha256::new().chain_update("muffle ledger 3").chain_update(&run_id).finalize().into();
        Self {
            run_id,
            ledger: Ledger::new(),
            sessions: Vec::new(),
            closing: None,
            entries: 0,
            head,
        }
    }

    /// Parses the text of `ledger.json` and recomputes all hashes.
    ///
    /// # Errors
    /// If it is not valid JSON, or its entries contradict each other or the stated hashes.
    pub fn parse(text: &str) -> Result<Self, ChainError> {
        // Another version has other fields.
        let Versioned { version } = serde_json::from_str(text)?;
        if version != VERSION {
            return Err(ChainError::Version(version));
        }
        let document: LedgerDocument = serde_json::from_str(text)?;
        let mut chain = Self::rebuild(&document.run_id, &document.events, &document.sessions)?;
        if let Some(closing) = document.closing {
            chain.close(closing)?;
        }
        chain.check_head("head", &document.head)?;
        Ok(chain)
    }

    /// Rebuilds a chain from its events and sessions, without a closing.
    ///
    /// # Errors
    /// If a session does not start from the head that the entries before it give, or an id or a date
    /// is malformed.
    pub fn rebuild(
        run_id: &str,
        events: &Composition,
        sessions: &[SessionEntry],
    ) -> Result<Self, ChainError> {
        check_id("run_id", run_id)?;
        if events.len() > MAX_CHARGES {
            return Err(ChainError::TooManyCharges(events.len()));
        }
        let mut chain = Self::empty(run_id.into());
        let mut sessions = sessions.iter().peekable();
        for (event, count) in events.runs() {
            let mut remaining = *count;
            while remaining > 0 {
                while let Some(entry) = sessions.next_if(|entry| entry.charges <= chain.charges()) {
                    chain.push_session(entry)?;
                }
                let until_session =
                    sessions.peek().map_or(u64::MAX, |entry| entry.charges - chain.charges());
                chain.charge_times(event, remaining.min(until_session))?;
                remaining -= remaining.min(until_session);
            }
        }
        sessions.try_for_each(|entry| chain.push_session(entry))?;
        if chain.sessions.is_empty() {
            return Err(ChainError::NoSession);
        }
        Ok(chain)
    }

    /// Appends a session that was read from a file, if it fits the entries before it.
    fn push_session(&mut self, entry: &SessionEntry) -> Result<(), ChainError> {
        let id = entry.id.clone();
        check_id("session id", &id)?;
        if entry.charges != self.charges() {
            let (expected, got) = (self.charges(), entry.charges);
            return Err(ChainError::SessionCharges { id, expected, got });
        }
        if entry.from != self.head() {
            let (expected, got) = (self.head(), entry.from.clone());
            return Err(ChainError::SessionHead { id, expected, got });
        }
        if self.sessions.iter().any(|known| known.id == id) {
            return Err(ChainError::DuplicateSession(id));
        }
        if !is_date(&entry.started) {
            return Err(ChainError::Date { id, date: entry.started.clone() });
        }
        self.extend(0, self.content_hasher().chain_update(&entry.id).chain_update(&entry.started));
        self.sessions.push(entry.clone());
        Ok(())
    }

    /// Appends a session with a new id.
    ///
    /// # Errors
    /// If the system gives no randomness, or the chain is closed.
    pub fn begin_session(&mut self) -> Result<(), ChainError> {
        if self.closing.is_some() {
            return Err(ChainError::Closed);
        }
        let (charges, from) = (self.charges(), self.head());
        let entry = SessionEntry { id: new_id()?, charges, from, started: today() };
        self.push_session(&entry)
    }

    /// Appends a charge of the last session.
    ///
    /// # Errors
    /// If the chain is closed, or would have more than [`MAX_CHARGES`] charges.
    pub fn charge(&mut self, event: &Event) -> Result<(), ChainError> {
        self.charge_times(event, 1)
    }

    /// Appends the last charge of `spent`, which has all charges of the chain and one more.
    ///
    /// # Errors
    /// If `spent` is not the chain's ledger with one charge more.
    pub(crate) fn append_next(&mut self, spent: &Ledger) -> Result<(), ChainError> {
        let not_next = ChainError::NotNext { charges: self.charges(), got: spent.events().len() };
        let Some((event, _)) = spent.events().runs().last() else { return Err(not_next) };
        self.charge(event)?;
        if self.ledger() != spent {
            return Err(not_next);
        }
        Ok(())
    }

    /// Appends `count` charges of the last session.
    pub(crate) fn charge_times(&mut self, event: &Event, count: u64) -> Result<(), ChainError> {
        if self.closing.is_some() {
            return Err(ChainError::Closed);
        }
        let charges = self.charges().saturating_add(count);
        if charges > MAX_CHARGES {
            return Err(ChainError::TooManyCharges(charges));
        }
        let session = self.sessions.last().ok_or(ChainError::NoSession)?;
        let event_text = serde_json::to_string(event)?;
        let content: [u8; 32] = self
            .content_hasher()
            .chain_update(&session.id)
            .chain_update(event_text)
            .finalize()
            .into();
        (0..count).for_each(|_| self.extend_with_digest(1, content));
        Ok(self.ledger.charge(event.clone(), count)?)
    }

    /// Appends the closing, which is the last entry.
    ///
    /// # Errors
    /// If the chain is closed already.
    pub fn close(&mut self, closing: Closing) -> Result<(), ChainError> {
        if self.closing.is_some() {
            return Err(ChainError::Closed);
        }
        let text = serde_json::to_string(&closing)?;
        self.extend(2, self.content_hasher().chain_update(text));
        self.closing = Some(closing);
        Ok(())
    }

    /// Checks that a position is one of this chain. `holder` names the file that holds it.
    ///
    /// # Errors
    /// If the chain is of another run, ends before the position, or has another hash there.
    pub fn check(&self, mark: &Mark, holder: &'static str) -> Result<(), ChainError> {
        if mark.run_id != self.run_id {
            let (expected, got) = (self.run_id.clone(), mark.run_id.clone());
            return Err(ChainError::OtherRun { holder, expected, got });
        }
        if mark.entries > self.entries || mark.charges > self.charges() {
            let (expected, got) = (mark.charges, self.charges());
            return Err(ChainError::OlderLedger { holder, expected, got });
        }
        match self.mark_at(mark.entries) == Some(mark.clone()) {
            true => Ok(()),
            false => Err(ChainError::OtherEntries { holder, charges: mark.charges }),
        }
    }

    /// Checks that a stated head is the recomputed one. `field` names where it is stated.
    pub(crate) fn check_head(&self, field: &'static str, stated: &str) -> Result<(), ChainError> {
        if self.head() == stated {
            return Ok(());
        }
        Err(ChainError::Head { field, expected: self.head(), got: stated.into() })
    }

    /// Recomputes the position after the first `entries` entries; `None` if there is none.
    fn mark_at(&self, entries: u64) -> Option<Mark> {
        if entries == self.entries {
            return Some(self.mark());
        }
        // The sessions among these entries.
        let is_within =
            |entry: &&SessionEntry, index: usize| entry.charges + (index as u64) < entries;
        let sessions: Vec<SessionEntry> = self
            .sessions
            .iter()
            .enumerate()
            .filter(|(index, entry)| is_within(entry, *index))
            .map(|(_, entry)| entry.clone())
            .collect();
        let charges = entries.checked_sub(sessions.len() as u64)?;
        if charges > self.charges() || sessions.is_empty() {
            return None;
        }
        let (mut events, mut remaining) = (Composition::new(), charges);
        for (event, count) in self.ledger.events().runs() {
            events.push(event.clone(), remaining.min(*count)).ok()?;
            remaining -= remaining.min(*count);
        }
        Some(Self::rebuild(&self.run_id, &events, &sessions).ok()?.mark())
    }

    /// Starts the hash of an entry's content, which begins with the id of the run.
    fn content_hasher(&self) -> Sha256 {
        Sha256::new().chain_update(&self.run_id)
    }

    /// Appends an entry. Its kind is 0, 1 or 2, as in the documentation of the module.
    fn extend(&mut self, kind: u8, content: Sha256) {
        self.extend_with_digest(kind, content.finalize().into());
    }

    /// Appends an entry with the given digest of its content.
    fn extend_with_digest(&mut self, kind: u8, content: [u8; 32]) {
        self.entries += 1;
        let hash = Sha256::new()
            .chain_update(self.head)
            .chain_update([kind])
            .chain_update(self.entries.to_le_bytes())
            .chain_update(content);
        self.head = hash.finalize().into();
    }

    /// The id of the run.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// All charges.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The sessions of the run, one for each process, in order.
    pub fn sessions(&self) -> &[SessionEntry] {
        &self.sessions
    }

    /// The closing, if the run is finished.
    pub fn closing(&self) -> Option<&Closing> {
        self.closing.as_ref()
    }

    /// The hash of the last entry, in hexadecimal digits.
    pub fn head(&self) -> String {
        hex(&self.head)
    }

    /// The number of charges.
    pub fn charges(&self) -> u64 {
        self.ledger.events().len()
    }

    /// The position of the last entry.
    pub fn mark(&self) -> Mark {
        Mark {
            run_id: self.run_id.clone(),
            entries: self.entries,
            charges: self.charges(),
            head: self.head(),
        }
    }

    /// The text of `ledger.json`.
    ///
    /// # Errors
    /// If an entry has no JSON form, which does not happen.
    pub fn to_text(&self) -> Result<String, ChainError> {
        let document = LedgerDocument {
            version: VERSION,
            run_id: self.run_id.clone(),
            events: self.ledger.events().clone(),
            sessions: self.sessions.clone(),
            closing: self.closing.clone(),
            head: self.head(),
        };
        Ok(serde_json::to_string(&document)?)
    }
}

fn check_id(field: &'static str, id: &str) -> Result<(), ChainError> {
    match id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        true => Ok(()),
        false => Err(ChainError::Id { field, id: id.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use accounting::{SamplingRate, Sigma};
    use serde_json::{Value, json};

    fn event(sigma: f64) -> Event {
        Event::poisson(SamplingRate::new(0.25).unwrap(), Sigma::new(sigma).unwrap())
    }

    fn closing() -> Closing {
        Closing {
            weights_sha256: vec![("w".into(), "00".into())],
            config_sha256: "11".into(),
            statement_sha256: "22".into(),
        }
    }

    /// Two sessions without a charge between them, two kinds of charges, a session after the last
    /// charge.
    fn chain() -> Chain {
        let mut chain = Chain::new().unwrap();
        (0..3).for_each(|_| chain.charge(&event(1.0)).unwrap());
        chain.begin_session().unwrap();
        chain.begin_session().unwrap();
        (0..2).for_each(|_| chain.charge(&event(1.0)).unwrap());
        chain.charge(&event(2.0)).unwrap();
        chain.begin_session().unwrap();
        chain
    }

    fn value(chain: &Chain) -> Value {
        serde_json::from_str(&chain.to_text().unwrap()).unwrap()
    }

    #[test]
    fn chains_round_trip_and_are_compact() {
        let mut chain = chain();
        assert_eq!(Chain::parse(&chain.to_text().unwrap()).unwrap(), chain);
        assert_eq!(
            value(&chain)["events"].as_array().unwrap().len(),
            2,
            "charges of several sessions are coded as one run"
        );
        chain.close(closing()).unwrap();
        assert_eq!(Chain::parse(&chain.to_text().unwrap()).unwrap(), chain);
        assert!(
            chain.charge(&event(1.0)).is_err()
                && chain.begin_session().is_err()
                && chain.close(closing()).is_err()
        );
        let mut long = Chain::new().unwrap();
        let empty = long.to_text().unwrap().len();
        (0..5000).for_each(|_| long.charge(&event(1.0)).unwrap());
        assert!(long.to_text().unwrap().len() < empty + 100);
    }

    /// Computes the formula of the module's documentation independently.
    #[test]
    fn the_hashes_are_the_documented_ones() {
        let chain = chain();
        let sha = |parts: &[&[u8]]| -> Vec<u8> { Sha256::digest(parts.concat()).to_vec() };
        let run = chain.run_id().as_bytes();
        let text = |sigma: f64| {
            format!(
                r#"{{"gaussian":{{"lots":{{"poisson":{{"rate":0.25}}}},"release":[[{sigma:.1},1]]}}}}"#
            )
        };
        let mut head = sha(&[b"muffle ledger 3", run]);
        let mut entry = 0u64;
        let mut extend = |kind: u8, content: Vec<u8>| {
            entry += 1;
            head = sha(&[&head, &[kind], &entry.to_le_bytes(), &content]);
            head.clone()
        };
        let ids: Vec<&[u8]> =
            chain.sessions().iter().map(|session| session.id.as_bytes()).collect();
        let (one, two, mut last) = (text(1.0), text(2.0), Vec::new());
        for (kind, session, event) in [
            (0, 0, ""),
            (1, 0, &one),
            (1, 0, &one),
            (1, 0, &one),
            (0, 1, ""),
            (0, 2, ""),
            (1, 2, &one),
            (1, 2, &one),
            (1, 2, &two),
            (0, 3, ""),
        ] {
            let started = if kind == 0 { &*chain.sessions()[session].started } else { "" };
            last = extend(kind, sha(&[run, ids[session], started.as_bytes(), event.as_bytes()]));
        }
        assert_eq!(chain.head(), hex(&last));
    }

    /// A ledger of another version is named as such, whatever its fields.
    #[test]
    fn other_versions_are_named() {
        let mut old = value(&chain());
        old["version"] = json!(2);
        old["sessions"][0].as_object_mut().unwrap().remove("started");
        assert!(matches!(Chain::parse(&old.to_string()), Err(ChainError::Version(2))));
    }

    #[test]
    fn dates_are_checked() {
        for date in ["2026-1-3", "", "2026-02-30", "+12345-01-01", "-001-01-01", "2026-01-03 "] {
            let mut chain = Chain::new().unwrap();
            let entry = SessionEntry {
                id: "1".repeat(32),
                charges: 0,
                from: chain.head(),
                started: date.into(),
            };
            assert!(matches!(chain.push_session(&entry), Err(ChainError::Date { .. })), "{date}");
        }
    }

    /// After any entry is removed, edited or moved, the head no longer matches.
    #[test]
    fn every_change_is_detected() {
        let mut closed = chain();
        closed.close(closing()).unwrap();
        for chain in [chain(), closed] {
            let whole = value(&chain);
            let refused = |change: &dyn Fn(&mut Value)| {
                let mut other = whole.clone();
                change(&mut other);
                assert_ne!(other, whole);
                let refused = Chain::parse(&other.to_string());
                assert!(refused.is_err(), "{other:#}");
            };
            refused(&|v| v["events"][0][1] = json!(4));
            refused(&|v| v["events"][0][1] = json!(6));
            refused(&|v| v["events"][0][1] = json!(u64::MAX));
            refused(&|v| v["events"].as_array_mut().unwrap().swap(0, 1));
            refused(&|v| drop(v["events"].as_array_mut().unwrap().pop()));
            refused(&|v| v["events"][1][0]["gaussian"]["release"][0][0] = json!(2.5));
            refused(&|v| v["events"] = json!([]));
            refused(&|v| v["run_id"] = json!("0".repeat(32)));
            refused(&|v| v["run_id"] = json!("short"));
            refused(&|v| v["head"] = json!("0".repeat(64)));
            refused(&|v| v["version"] = json!(1));
            refused(&|v| v["note"] = json!(1));
            for index in 0..4 {
                refused(&|v| drop(v["sessions"].as_array_mut().unwrap().remove(index)));
                refused(&|v| v["sessions"][index]["id"] = json!("0".repeat(32)));
                refused(&|v| v["sessions"][index]["from"] = json!("0".repeat(64)));
                refused(&|v| v["sessions"][index]["started"] = json!("2020-01-01"));
                refused(&|v| {
                    v["sessions"][index]["charges"] =
                        json!(whole["sessions"][index]["charges"].as_u64().unwrap() + 1)
                });
            }
            refused(&|v| v["sessions"] = json!([]));
            refused(&|v| v["sessions"].as_array_mut().unwrap().swap(1, 2));
            if whole["closing"].is_null() {
                refused(&|v| v["closing"] = serde_json::to_value(closing()).unwrap());
            } else {
                refused(&|v| v["closing"] = Value::Null);
                refused(&|v| v["closing"]["weights_sha256"][0][1] = json!("01"));
                refused(&|v| v["closing"]["config_sha256"] = json!("01"));
                refused(&|v| v["closing"]["statement_sha256"] = json!("01"));
            }
        }
    }

    /// A position of the chain is recognised at every entry.
    ///
    /// One of a chain that is shorter or has other entries is not.
    #[test]
    fn positions_are_recognised() {
        let mut chain = Chain::new().unwrap();
        let mut marks = vec![(chain.clone(), chain.mark())];
        let step = |chain: &mut Chain, marks: &mut Vec<(Chain, Mark)>, session: bool| {
            if session {
                chain.begin_session().unwrap();
            } else {
                chain.charge(&event(1.0)).unwrap();
            }
            marks.push((chain.clone(), chain.mark()));
        };
        for session in [false, false, true, true, false, false, true] {
            step(&mut chain, &mut marks, session);
        }
        for (index, (_, mark)) in marks.iter().enumerate() {
            for (later, (known, _)) in marks.iter().enumerate() {
                assert_eq!(
                    known.check(mark, "the checkpoint").is_ok(),
                    index <= later,
                    "{index} {later}"
                );
            }
            let other = Mark { head: "0".repeat(64), ..mark.clone() };
            let refused = chain.check(&other, "the checkpoint").unwrap_err();
            assert!(refused.to_string().contains("another copy"));
            let other = Mark { run_id: "0".repeat(32), ..mark.clone() };
            let refused = chain.check(&other, "the checkpoint").unwrap_err();
            assert!(refused.to_string().contains("two runs"));
            let other = Mark { charges: mark.charges + 1, ..mark.clone() };
            assert!(chain.check(&other, "the checkpoint").is_err());
        }
        // Two copies of one folder, each resumed: the same charges, and heads that differ.
        let (mut a, mut b) = (marks[2].0.clone(), marks[2].0.clone());
        for copy in [&mut a, &mut b] {
            copy.begin_session().unwrap();
            copy.charge(&event(1.0)).unwrap();
        }
        assert_eq!(a.ledger(), b.ledger());
        assert_ne!(a.head(), b.head());
        assert!(
            a.check(&b.mark(), "the checkpoint").is_err()
                && b.check(&a.mark(), "the checkpoint").is_err()
        );
        let refused = marks[1].0.check(&marks[3].1, "the mark").unwrap_err();
        assert!(matches!(refused, ChainError::OlderLedger { expected: 2, got: 1, .. }));
    }
}
