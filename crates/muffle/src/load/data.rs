//! From files to records and examples: formats, persons with several rows, rows that hold no
//! record.
//!
//! Every row of a training file is a place of the data set. A row that is too long, empty or beyond
//! its person's limit is a vacant place, so that the number of places, and all that follows from
//! it, does not depend on what rows say. What can still depend on it is a refusal, before anything
//! is computed: a file that cannot be read, a label that is not declared, a person who is not
//! named.

use crate::Error;
use crate::LoadedModel;
use crate::config::{self, Auto, Config, DroppedRows};
use crate::load::corpus::{self, Part};
use crate::run::snapshot;
use curator::{Collector, Records};
use data::{Content, Format, Preparation, Prepared, ReadOptions, Record};
use engine::{Example, Input, Target};
use model::patches::ImageShape;
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

/// Rows of a file, or of the embedded corpus.
pub type Rows = Box<dyn Iterator<Item = data::Result<Record>> + Send>;

/// Which part of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// People's.
    Train,
    /// What the model is looked at with on the way.
    Validation,
    /// What it is judged by.
    Test,
}

/// Records of the embedded corpus.
pub const EMBEDDED: usize = 60_000;
const EMBEDDED_EVALUATION: usize = 500;

/// Rows that are prepared at a time, by all threads.
const AT_ONCE: usize = 1024;

/// Bytes of examples that are held in memory; more go to a file.
const MEMORY: usize = 32 << 20;

/// The rows of a part; `None` if the configuration names no such file.
///
/// # Errors
/// If the file is no good.
pub fn rows(config: &config::Data, which: Split) -> Result<Option<Rows>, Error> {
    let path = match which {
        Split::Train if config.train == "embedded" => {
            return Ok(Some(embedded(Part::Train, EMBEDDED)));
        }
        Split::Train => Some(Path::new(&config.train)),
        Split::Validation if config.validation.is_none() && config.train == "embedded" => {
            return Ok(Some(embedded(Part::Validation, EMBEDDED_EVALUATION)));
        }
        Split::Test if config.test.is_none() && config.train == "embedded" => {
            return Ok(Some(embedded(Part::Test, EMBEDDED_EVALUATION)));
        }
        Split::Validation => config.validation.as_deref(),
        Split::Test => config.test.as_deref(),
    };
    let Some(path) = path else { return Ok(None) };
    let options = ReadOptions {
        text: config.text_column.clone(),
        label: config.label_column.clone(),
        group: config.group.clone().filter(|_| which == Split::Train),
        ..ReadOptions::default()
    };
    Ok(Some(Box::new(format(config, path)?.read(path, &options)?)))
}

/// The format of a file: given, or told from it.
///
/// # Errors
/// If there is none of this name, or it cannot be told.
pub fn format(config: &config::Data, path: &Path) -> Result<Format, Error> {
    match &config.format {
        Auto::Value(name) => Ok(name.parse()?),
        Auto::Auto => Ok(Format::detect(path)?),
    }
}

fn embedded(part: Part, count: usize) -> Rows {
    let record = |(index, pair): (usize, corpus::Pair)| {
        let content = Content::Text {
            source: Some(pair.source),
            target: pair.target,
            references: Vec::new(),
        };
        Ok(Record { content, group: None, line: index as u64 + 1 })
    };
    Box::new(corpus::pairs(part, count).into_iter().enumerate().map(record))
}

/// What must be known of the data before a model can be made: the public names of classes, and the
/// sides of images.
///
/// # Errors
/// If the file is invalid, or there are labels and data.labels does not list them: reading them
/// from private records would reveal the records.
pub fn survey(config: &config::Data) -> Result<(Vec<String>, Option<ImageShape>), Error> {
    let first = match rows(config, Split::Train)?.and_then(|mut rows| rows.next()) {
        Some(record) => record?,
        None => return Ok((config.labels.clone(), None)),
    };
    let (image, usual) = match first.content {
        Content::Text { .. } => return Ok((config.labels.clone(), None)),
        Content::Labelled { .. } => (None, public_labels(config)?),
        Content::Image { height, width, channels, .. } => (
            Some(ImageShape { height, width, channels }),
            (0..10).map(|class| class.to_string()).collect(),
        ),
    };
    let labels = if config.labels.is_empty() { usual } else { config.labels.clone() };
    if labels.len() < 2 {
        return Err(Error::config(
            "data.labels: list the classes, for example [\"0\", \"1\"]; they cannot be read off \
             people's records, which would tell of who is there",
        ));
    }
    Ok((labels, image))
}

/// The labels of validation data, if it is public.
fn public_labels(config: &config::Data) -> Result<Vec<String>, Error> {
    let mut labels = BTreeSet::new();
    if config.labels.is_empty() && config.publicity() == config::Publicity::Public {
        for record in rows(config, Split::Validation)?.into_iter().flatten() {
            if let Content::Labelled { label, .. } = record?.content {
                labels.insert(label);
            }
        }
    }
    Ok(labels.into_iter().collect())
}

/// Texts must be shorter than this many tokens. The lengths for E2E and DART are those of Kim and
/// Fan (2026).
///
/// # Errors
/// If more is asked for than the model takes.
pub fn limit(config: &config::Data, subject: &LoadedModel) -> Result<usize, Error> {
    let most = subject.longest() + 1;
    // With fewer no text at all could be used: a text that is continued has a token that is given
    // and one that is predicted.
    let least = if subject.writes() { 3 } else { 2 };
    match config.max_length {
        Auto::Value(limit) if limit < least => {
            Err(Error::config(format!("data.max_length: at least {least} expected, got {limit}")))
        }
        Auto::Value(limit) if limit > most => Err(Error::config(format!(
            "data.max_length: the model takes {} tokens, so at most {most} expected, got {limit}",
            subject.longest()
        ))),
        Auto::Value(limit) => Ok(limit),
        Auto::Auto => {
            let usual = if config.train == "embedded" {
                most
            } else {
                match format(config, Path::new(&config.train))? {
                    Format::E2e => 100,
                    Format::Dart => 120,
                    _ => 257,
                }
            };
            Ok(usual.min(most))
        }
    }
}

/// How many rows hold no record. **Not private**: for the holder of the data, shown only where that
/// is asked for, and not put into any file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// With too many tokens.
    pub too_long: u64,
    /// With nothing to predict.
    pub empty: u64,
    /// Beyond the most that one person may have.
    pub beyond: u64,
}

/// People's records, ready for the curator.
pub struct People {
    /// The records: a place for each row, or, if that was declared public, for each row that is
    /// neither too long nor empty.
    pub records: Records,
    /// The rows without a record. **Not private.**
    pub left_out: LeftOut,
    /// SHA-256 of all places. **Not private.**
    pub digest: String,
}

/// People's records. `folder` is where they may lie if they are many.
///
/// # Claim
/// (PROOFS.md, 13.) With `dropped_rows = "vacant"`, the number of places is the number of rows, and
/// what is in a place depends on its row and, where persons are named, on the other rows of the
/// same person. No person has more than `rows_per_person` places with a record.
/// # Why
/// Every row is pushed once. A person's limit counts that person's usable rows in the order of the
/// file.
/// # Checked by
/// `a_row_that_cannot_be_used_is_not_seen`, `what_a_person_says_is_not_seen`,
/// `places_depend_on_their_own_person_only`.
/// # Errors
/// If the file is no good, or a row is not what the model reads. Messages do not show rows. That
/// there is no usable row at all is an error only where this is public.
pub fn people(
    config: &Config,
    preparation: &Preparation<'_>,
    folder: &Path,
) -> Result<People, Error> {
    let mut collector = Collector::new(folder, MEMORY);
    let mut sum = Sha256::new();
    let left_out = places(config, preparation, &mut |place| {
        digest(&mut sum, place.as_ref());
        Ok(collector.push(place)?)
    })?;
    // A file without rows is refused by its reader: there are places, unless rows were removed,
    // which is public then.
    if collector.is_empty() {
        return Err(Error::Rows {
            place: config.data.train.clone(),
            message: format!("every row is empty or has {} tokens or more", preparation.limit),
        });
    }
    Ok(People { records: collector.finish()?, left_out, digest: snapshot::hex(&sum.finalize()) })
}

/// Hands over every place of the training data, in the order of the file.
fn places(
    config: &Config,
    preparation: &Preparation<'_>,
    take: &mut dyn FnMut(Option<Example>) -> Result<(), Error>,
) -> Result<LeftOut, Error> {
    let data = &config.data;
    let mut rows =
        rows(data, Split::Train)?.ok_or_else(|| Error::config("data.train: no file"))?.peekable();
    let mut left_out = LeftOut::default();
    let mut persons: HashMap<Box<str>, u64> = HashMap::new();
    while rows.peek().is_some() {
        let some = rows.by_ref().take(AT_ONCE).collect::<data::Result<Vec<Record>>>()?;
        let prepared: Vec<_> =
            some.par_iter().map(|record| example(preparation, record, &data.train)).collect();
        for (record, prepared) in some.iter().zip(prepared) {
            let person = person(data, record)?;
            match prepared? {
                // Only usable rows count towards a person's limit, in the order of the file.
                Ok(example) if admitted(data, person, &mut persons) => take(Some(example))?,
                Ok(_) => {
                    left_out.beyond += 1;
                    take(None)?;
                }
                Err(without) => {
                    match without {
                        Without::TooLong => left_out.too_long += 1,
                        Without::Empty => left_out.empty += 1,
                    }
                    if data.dropped_rows == DroppedRows::Vacant {
                        take(None)?;
                    }
                }
            }
        }
    }
    Ok(left_out)
}

/// Adds a place to a digest: an example with the lengths of its parts, or a length that no example
/// has.
fn digest(sum: &mut Sha256, place: Option<&Example>) {
    let Some(example) = place else { return sum.update(u64::MAX.to_le_bytes()) };
    let mut numbers = |numbers: &mut dyn ExactSizeIterator<Item = u32>| {
        sum.update((numbers.len() as u64).to_le_bytes());
        numbers.for_each(|number| sum.update(number.to_le_bytes()));
    };
    match &example.input {
        Input::Tokens(tokens) => numbers(&mut tokens.iter().copied()),
        Input::Features(values) => numbers(&mut values.iter().map(|x| x.to_bits())),
    }
    match &example.target {
        Target::Next(tokens) => numbers(&mut tokens.iter().copied()),
        Target::Class(class) => numbers(&mut std::iter::once(*class)),
    }
}

/// The first usable examples of the training data. **Not private**: for attacks that the holder of
/// the data asks for.
///
/// # Errors
/// As [`people`], or if no row can be used.
pub fn first(
    config: &Config,
    preparation: &Preparation<'_>,
    count: usize,
) -> Result<Vec<Example>, Error> {
    let mut examples = Vec::new();
    for record in rows(&config.data, Split::Train)?.into_iter().flatten() {
        if examples.len() == count {
            break;
        }
        examples.extend(example(preparation, &record?, &config.data.train)?.ok());
    }
    if examples.is_empty() {
        return Err(Error::Rows {
            place: config.data.train.clone(),
            message: "no row can be used".into(),
        });
    }
    Ok(examples)
}

/// The person that a row belongs to, if persons are what is protected.
fn person<'a>(data: &config::Data, record: &'a Record) -> Result<Option<&'a str>, Error> {
    match (&data.group, &record.group) {
        (None, _) => Ok(None),
        (Some(_), Some(person)) => Ok(Some(person)),
        (Some(column), None) => Err(Error::Rows {
            place: format!("{}, line {}", data.train, record.line),
            message: format!("column {column:?}: expected the name of a person, got nothing"),
        }),
    }
}

/// Whether a usable row of a person is within the person's limit.
fn admitted(
    data: &config::Data,
    person: Option<&str>,
    persons: &mut HashMap<Box<str>, u64>,
) -> bool {
    let Some(person) = person else { return true };
    let count = persons.entry(person.into()).or_default();
    *count += 1;
    *count <= data.rows_per_person
}

/// Why a row holds no record.
enum Without {
    TooLong,
    Empty,
}

fn example(
    preparation: &Preparation<'_>,
    record: &Record,
    file: &str,
) -> Result<Result<Example, Without>, Error> {
    let refuse = |what: &str| {
        Err(Error::Rows { place: format!("{file}, line {}", record.line), message: what.into() })
    };
    match preparation.example(record)? {
        Prepared::Example(example) => Ok(Ok(example)),
        Prepared::TooLong => Ok(Err(Without::TooLong)),
        Prepared::Empty => Ok(Err(Without::Empty)),
        Prepared::UnknownLabel => refuse("a label that is not among data.labels"),
        Prepared::WrongKind(expected) => {
            refuse(&format!("expected {expected}, which is what the model reads"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use data::ModelInput;
    use text::Tokenizer;

    /// Of each place of a file, the tokens of its record.
    fn of_file(rows: &str, data: &str) -> (Vec<Option<Vec<u32>>>, LeftOut) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("people.jsonl");
        std::fs::write(&path, rows).unwrap();
        let mut config =
            Config::parse(&format!("[data]\nformat = \"instructions\"\n{data}")).unwrap();
        config.data.train = path.to_string_lossy().into_owned();
        let tokenizer = Tokenizer::train(["a b c"].into_iter(), 258, &["<bos>", "<eos>"]).unwrap();
        let preparation = Preparation {
            input: ModelInput::Causal { tokenizer: &tokenizer, begin: 0, end: 1 },
            labels: &[],
            limit: 30,
        };
        let mut all = Vec::new();
        let left_out = places(&config, &preparation, &mut |place| {
            all.push(place.map(|example| {
                if let Input::Tokens(tokens) = example.input { tokens } else { Vec::new() }
            }));
            Ok(())
        });
        (all, left_out.unwrap())
    }

    fn row(who: &str, text: &str) -> String {
        format!("{{\"prompt\":\"say\",\"completion\":\"{text}\",\"who\":\"{who}\"}}\n")
    }

    const PERSONS: &str = "group = \"who\"\nrows_per_person = 2";
    const LONG: &str = "far too many words for a model that takes thirty";

    /// Every way in which one person's five rows can be usable or not: the places of the others are
    /// the same, and the person has two records at most.
    #[test]
    fn places_depend_on_their_own_person_only() {
        let file = |usable: u32| -> String {
            let own = |i: u32| row("x", if usable >> i & 1 == 1 { "good" } else { LONG });
            let other = |i: u32| row(&format!("y{}", i / 4), if i == 3 { LONG } else { "fine" });
            (0..10).map(|i| if i % 2 == 0 { own(i / 2) } else { other(i) }).collect()
        };
        let (usual, _) = of_file(&file(0b11111), PERSONS);
        let taken = |places: &[Option<Vec<u32>>], own: bool| -> Vec<bool> {
            places
                .iter()
                .enumerate()
                .filter(|(i, _)| (i % 2 == 0) == own)
                .map(|(_, place)| place.is_some())
                .collect()
        };
        assert_eq!(taken(&usual, false), [true, false, true, true, true]);
        for usable in 0..32u32 {
            let (places, left_out) = of_file(&file(usable), PERSONS);
            assert_eq!(places.len(), 10, "{usable:b}");
            assert!((1..10).step_by(2).all(|i| places[i] == usual[i]), "{usable:b}");
            let own = taken(&places, true);
            // The first two usable ones.
            let expected =
                (0..5).map(|i| usable >> i & 1 == 1 && (usable & ((1 << i) - 1)).count_ones() < 2);
            assert!(own.iter().copied().eq(expected), "{usable:b}: {own:?}");
            assert_eq!(left_out.beyond, u64::from(usable.count_ones().saturating_sub(2)));
        }
    }

    /// Declared public, rows that are too long are removed; those beyond a person's limit are
    /// vacant all the same.
    #[test]
    fn rows_are_removed_only_where_that_is_public() {
        let rows =
            [row("x", "one"), row("x", LONG), row("x", "two"), row("x", "three"), row("y", "four")]
                .concat();
        let (places, left_out) = of_file(&rows, PERSONS);
        assert_eq!(
            places.iter().map(Option::is_some).collect::<Vec<_>>(),
            [true, false, true, false, true]
        );
        assert_eq!(left_out, LeftOut { too_long: 1, empty: 0, beyond: 1 });
        let (places, left_out) = of_file(&rows, &format!("{PERSONS}\ndropped_rows = \"public\""));
        assert_eq!(
            places.iter().map(Option::is_some).collect::<Vec<_>>(),
            [true, true, false, true]
        );
        assert_eq!(left_out, LeftOut { too_long: 1, empty: 0, beyond: 1 });
    }

    /// Processes that hold other places notice: a vacant one is part of the digest.
    #[test]
    fn vacant_places_are_part_of_the_digest() {
        let of = |places: &[Option<Example>]| {
            let mut sum = Sha256::new();
            places.iter().for_each(|place| digest(&mut sum, place.as_ref()));
            snapshot::hex(&sum.finalize())
        };
        let record = || Some(Example::labelled(vec![1, 2], 0));
        let all = [
            vec![record()],
            vec![record(), None],
            vec![None, record()],
            vec![None, None],
            vec![None],
        ]
        .map(|places| of(&places));
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 5);
    }
}
