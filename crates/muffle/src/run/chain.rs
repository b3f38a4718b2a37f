//! The ledger of a run as a hash chain: a charge that is removed, edited or moved changes every
//! hash after it.
//!
//! Entries, in order: a session for each process that worked on the run, its charges, and one
//! closing when the run is over. With the run's id r, and ‖ for concatenation of fields of known
//! length,
//!
//! ```text
//! h₀     = SHA-256("muffle ledger 2" ‖ r)
//! hᵢ     = SHA-256(hᵢ₋₁ ‖ kind ‖ i ‖ SHA-256(contentᵢ))                i as 64 bits, the lowest byte first
//! content = r ‖ session id                                              kind 0, a session
//!         = r ‖ session id ‖ the event as JSON                          kind 1, a charge
//!         = r ‖ the closing as JSON                                     kind 2, the closing
//! ```
//!
//! The file holds events run-length coded, and for each session after how many charges it began.
//! All hashes follow from that and are recomputed whenever it is read. Everything in it is public:
//! it tells of charges, not of records.
//!
//! The chain has no secret. It shows that files belong together, not who wrote them: anyone who
//! rewrites all of them can compute fitting hashes. A signature ([`crate::verify::signature`]) is the
//! answer to that.

use crate::Error;
use crate::run::snapshot::hex;
use accounting::{Composition, Event, Ledger};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The version of the written form.
const VERSION: u32 = 2;

/// Charges of a run at the most: all hashes are recomputed whenever a ledger is read.
pub const MOST_CHARGES: u64 = 1 << 24;

/// The charges of a run, which process made them, and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    run_id: String,
    ledger: Ledger,
    sessions: Vec<SessionEntry>,
    closing: Option<Closing>,
    entries: u64,
    head: [u8; 32],
}

/// The beginning of a process that worked on a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionEntry {
    /// 128 random bits in hexadecimal digits.
    pub id: String,
    /// Charges that were made before it.
    pub charges: u64,
    /// The head of the chain that it started from.
    pub from: String,
}

/// The end of a run: what was released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Closing {
    /// SHA-256 of each file of weights.
    pub weights_sha256: Vec<(String, String)>,
    /// SHA-256 of the configuration, as far as it decides what is trained and charged.
    pub config_sha256: String,
    /// SHA-256 of the privacy statement in its canonical form.
    pub statement_sha256: String,
}

/// A position in a chain: what other files remember of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// Whose chain it is.
    pub run_id: String,
    /// Entries up to here.
    pub entries: u64,
    /// Charges among them.
    pub charges: u64,
    /// The hash of the last entry.
    pub head: String,
}

/// The written form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u32,
    run_id: String,
    events: Composition,
    sessions: Vec<SessionEntry>,
    closing: Option<Closing>,
    head: String,
}

/// 128 random bits from the operating system, in hexadecimal digits.
///
/// # Errors
/// If the system has none to give.
pub(crate) fn fresh_id() -> Result<String, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(hex(&bytes))
}

impl Chain {
    /// The chain of a new run, with its first session.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn new() -> Result<Self, Error> {
        let mut chain = Self::empty(fresh_id()?);
        chain.begin_session()?;
        Ok(chain)
    }

    fn empty(run_id: String) -> Self {
        let head =
            Sha256::new().chain_update("muffle ledger 2").chain_update(&run_id).finalize().into();
        Self {
            run_id,
            ledger: Ledger::new(),
            sessions: Vec::new(),
            closing: None,
            entries: 0,
            head,
        }
    }

    /// From what a file says, with all hashes recomputed.
    ///
    /// # Errors
    /// One line: what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let written: Written = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if written.version != VERSION {
            return Err(format!("version: expected {VERSION}, got {}", written.version));
        }
        let mut chain = Self::rebuild(&written.run_id, &written.events, &written.sessions)?;
        if let Some(closing) = written.closing {
            chain.close(closing)?;
        }
        if chain.head() != written.head {
            return Err(format!(
                "head: its entries give {}, got {:?}; an entry was changed",
                chain.head(),
                written.head
            ));
        }
        Ok(chain)
    }

    /// From its parts, without a closing.
    ///
    /// # Errors
    /// If a session does not start from the head that the entries before it give, or an id is
    /// malformed.
    pub fn rebuild(
        run_id: &str,
        events: &Composition,
        sessions: &[SessionEntry],
    ) -> Result<Self, String> {
        check_id("run_id", run_id)?;
        if events.len() > MOST_CHARGES {
            return Err(format!(
                "events: expected at most {MOST_CHARGES} charges, got {}",
                events.len()
            ));
        }
        let mut chain = Self::empty(run_id.into());
        let mut sessions = sessions.iter().peekable();
        for (event, count) in events.runs() {
            let mut left = *count;
            while left > 0 {
                while let Some(entry) = sessions.next_if(|entry| entry.charges <= chain.charges()) {
                    chain.resume_session(entry)?;
                }
                let until =
                    sessions.peek().map_or(u64::MAX, |entry| entry.charges - chain.charges());
                chain.charge_times(event, left.min(until))?;
                left -= left.min(until);
            }
        }
        sessions.try_for_each(|entry| chain.resume_session(entry))?;
        if chain.sessions.is_empty() {
            return Err("sessions: expected at least 1, got 0".into());
        }
        Ok(chain)
    }

    /// A session that is known, at its place.
    fn resume_session(&mut self, entry: &SessionEntry) -> Result<(), String> {
        check_id("session id", &entry.id)?;
        if entry.charges != self.charges() {
            return Err(format!(
                "session {}: expected at most {} charges before it, got {}",
                entry.id,
                self.charges(),
                entry.charges
            ));
        }
        if entry.from != self.head() {
            return Err(format!(
                "session {}: the entries before it give the head {}, it started from {:?}; an \
                 entry was changed",
                entry.id,
                self.head(),
                entry.from
            ));
        }
        if self.sessions.iter().any(|known| known.id == entry.id) {
            return Err(format!("session {}: occurs twice", entry.id));
        }
        self.extend(0, self.content().chain_update(&entry.id));
        self.sessions.push(entry.clone());
        Ok(())
    }

    /// Appends a session with an id of its own.
    ///
    /// # Errors
    /// If the system gives no randomness, or the run is over.
    pub fn begin_session(&mut self) -> Result<(), Error> {
        if self.closing.is_some() {
            return Err(Error::Ledger("the run is closed; no process can work on it".into()));
        }
        let entry = SessionEntry { id: fresh_id()?, charges: self.charges(), from: self.head() };
        self.resume_session(&entry).map_err(Error::Ledger)
    }

    /// Appends a charge of the present session.
    ///
    /// # Errors
    /// If the run is over, or there are too many.
    pub fn charge(&mut self, event: &Event) -> Result<(), String> {
        self.charge_times(event, 1)
    }

    /// Appends the charge by which `spent` is ahead.
    ///
    /// # Errors
    /// If `spent` is not the chain's ledger with one charge more.
    pub(crate) fn follow(&mut self, spent: &Ledger) -> Result<(), String> {
        let (event, _) = spent.events().runs().last().ok_or("expected a charge, got none")?;
        self.charge(event)?;
        if self.ledger() != spent {
            return Err(format!(
                "expected one charge more than the {} in the ledger, got {}",
                self.charges() - 1,
                spent.events().len()
            ));
        }
        Ok(())
    }

    pub(crate) fn charge_times(&mut self, event: &Event, count: u64) -> Result<(), String> {
        if self.closing.is_some() {
            return Err("the run is over, and takes no further charge".into());
        }
        if self.charges().checked_add(count).is_none_or(|sum| sum > MOST_CHARGES) {
            return Err(format!("expected at most {MOST_CHARGES} charges, got more"));
        }
        let session = self
            .sessions
            .last()
            .ok_or("sessions: expected one before the first charge, got none")?;
        let event_text = serde_json::to_string(event).map_err(|error| error.to_string())?;
        let content: [u8; 32] =
            self.content().chain_update(&session.id).chain_update(event_text).finalize().into();
        (0..count).for_each(|_| self.extend_by(1, content));
        self.ledger.charge(event.clone(), count).map_err(|error| error.to_string())
    }

    /// Appends the closing; after it there is nothing.
    ///
    /// # Errors
    /// If there is one.
    pub fn close(&mut self, closing: Closing) -> Result<(), String> {
        if self.closing.is_some() {
            return Err("the run is over already".into());
        }
        let text = serde_json::to_string(&closing).map_err(|error| error.to_string())?;
        self.extend(2, self.content().chain_update(text));
        self.closing = Some(closing);
        Ok(())
    }

    /// Whether a position is one of this chain.
    ///
    /// # Errors
    /// If the chain is of another run, ends before it, or has another hash there. The line begins
    /// with `whose`.
    pub fn check(&self, mark: &Mark, whose: &str) -> Result<(), String> {
        if mark.run_id != self.run_id {
            return Err(format!(
                "{whose}: expected the run {}, got {}; files of two runs were mixed",
                self.run_id, mark.run_id
            ));
        }
        if mark.entries > self.entries || mark.charges > self.charges() {
            return Err(format!(
                "the ledger has {} charges, {whose} knows of {}: an old ledger was put in its \
                 place",
                self.charges(),
                mark.charges
            ));
        }
        match self.mark_at(mark.entries) == Some(mark.clone()) {
            true => Ok(()),
            false => Err(format!(
                "the ledger's first {} charges are not those that {whose} knows of: an entry was \
                 changed, or this is the ledger of another copy of the run",
                mark.charges
            )),
        }
    }

    /// The position after so many entries.
    fn mark_at(&self, entries: u64) -> Option<Mark> {
        if entries == self.entries {
            return Some(self.mark());
        }
        // The sessions and charges that were there by then.
        let before = |entry: &&SessionEntry, index: usize| entry.charges + (index as u64) < entries;
        let sessions: Vec<SessionEntry> = self
            .sessions
            .iter()
            .enumerate()
            .filter(|(index, entry)| before(entry, *index))
            .map(|(_, entry)| entry.clone())
            .collect();
        let charges = entries.checked_sub(sessions.len() as u64)?;
        if charges > self.charges() || sessions.is_empty() {
            return None;
        }
        let (mut events, mut left) = (Composition::new(), charges);
        for (event, count) in self.ledger.events().runs() {
            events.push(event.clone(), left.min(*count)).ok()?;
            left -= left.min(*count);
        }
        Some(Self::rebuild(&self.run_id, &events, &sessions).ok()?.mark())
    }

    fn content(&self) -> Sha256 {
        Sha256::new().chain_update(&self.run_id)
    }

    fn extend(&mut self, kind: u8, content: Sha256) {
        self.extend_by(kind, content.finalize().into());
    }

    fn extend_by(&mut self, kind: u8, content: [u8; 32]) {
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

    /// What has been charged.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The processes that worked on the run, in order.
    pub fn sessions(&self) -> &[SessionEntry] {
        &self.sessions
    }

    /// What was released, if the run is over.
    pub fn closing(&self) -> Option<&Closing> {
        self.closing.as_ref()
    }

    /// The hash of the last entry, in hexadecimal digits.
    pub fn head(&self) -> String {
        hex(&self.head)
    }

    /// Charges.
    pub fn charges(&self) -> u64 {
        self.ledger.events().len()
    }

    /// The position of its last entry.
    pub fn mark(&self) -> Mark {
        Mark {
            run_id: self.run_id.clone(),
            entries: self.entries,
            charges: self.charges(),
            head: self.head(),
        }
    }

    /// As text, for `ledger.json`.
    ///
    /// # Errors
    /// If it has no written form, which does not happen.
    pub fn to_text(&self) -> Result<String, Error> {
        let written = Written {
            version: VERSION,
            run_id: self.run_id.clone(),
            events: self.ledger.events().clone(),
            sessions: self.sessions.clone(),
            closing: self.closing.clone(),
            head: self.head(),
        };
        serde_json::to_string(&written).map_err(Error::Encoding)
    }
}

fn check_id(name: &str, id: &str) -> Result<(), String> {
    match id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        true => Ok(()),
        false => Err(format!("{name}: expected 32 hexadecimal digits, got {id:?}")),
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
    fn written_and_read_it_is_the_same_and_short() {
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

    /// The formula of the module's documentation, written out.
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
        let mut head = sha(&[b"muffle ledger 2", run]);
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
            last = extend(kind, sha(&[run, ids[session], event.as_bytes()]));
        }
        assert_eq!(chain.head(), hex(&last));
    }

    /// Whatever is removed, edited or moved: the head no longer fits.
    #[test]
    fn every_change_is_found() {
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

    /// A position of the chain is recognised at every entry; one of a chain that was cut, or went
    /// another way, is not.
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
            assert!(chain.check(&other, "the checkpoint").unwrap_err().contains("another copy"));
            let other = Mark { run_id: "0".repeat(32), ..mark.clone() };
            assert!(chain.check(&other, "the checkpoint").unwrap_err().contains("two runs"));
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
        assert!(
            marks[1]
                .0
                .check(&marks[3].1, "the mark")
                .unwrap_err()
                .contains("1 charges, the mark knows of 2: an old ledger")
        );
    }
}
