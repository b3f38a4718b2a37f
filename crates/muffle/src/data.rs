//! From files to records and examples: formats, people with several rows, what is left out.

use crate::config::{self, Auto, Config};
use crate::corpus::{self, Part};
use crate::{Failed, Subject, snapshot};
use curator::{Collector, Records};
use model::patches::Grid;
use model::{Example, Input, Target};
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use tasks::{Content, Format, Options, Preparation, Prepared, Record};

/// Rows of a file, or of the embedded corpus.
pub type Rows = Box<dyn Iterator<Item = tasks::Result<Record>> + Send>;

/// Which rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
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
pub fn rows(config: &config::Data, which: Which) -> Result<Option<Rows>, Failed> {
    let path = match which {
        Which::Train if config.train == "embedded" => return Ok(Some(embedded(Part::Train, EMBEDDED))),
        Which::Train => Some(Path::new(&config.train)),
        Which::Validation if config.validation.is_none() && config.train == "embedded" => {
            return Ok(Some(embedded(Part::Validation, EMBEDDED_EVALUATION)));
        }
        Which::Test if config.test.is_none() && config.train == "embedded" => return Ok(Some(embedded(Part::Test, EMBEDDED_EVALUATION))),
        Which::Validation => config.validation.as_deref(),
        Which::Test => config.test.as_deref(),
    };
    let Some(path) = path else { return Ok(None) };
    let options = Options {
        text: config.text_column.clone(),
        label: config.label_column.clone(),
        group: config.group.clone().filter(|_| which == Which::Train),
        ..Options::default()
    };
    Ok(Some(Box::new(format(config, path)?.read(path, &options)?)))
}

/// The format of a file: given, or told from it.
///
/// # Errors
/// If there is none of this name, or it cannot be told.
pub fn format(config: &config::Data, path: &Path) -> Result<Format, Failed> {
    match &config.format {
        Auto::Value(name) => Ok(name.parse()?),
        Auto::Auto => Ok(Format::sniff(path)?),
    }
}

fn embedded(part: Part, count: usize) -> Rows {
    let record = |(index, pair): (usize, corpus::Pair)| {
        let content = Content::Text { source: Some(pair.source), target: pair.target, references: Vec::new() };
        Ok(Record { content, group: None, line: index as u64 + 1 })
    };
    Box::new(corpus::pairs(part, count).into_iter().enumerate().map(record))
}

/// What must be known of the data before a model can be made: the public names of classes, and the sides of images.
///
/// # Errors
/// If the file is no good, or there are labels and nobody said which: reading them off people's records would tell who is there.
pub fn survey(config: &config::Data) -> Result<(Vec<String>, Option<Grid>), Failed> {
    let first = match rows(config, Which::Train)?.and_then(|mut rows| rows.next()) {
        Some(record) => record?,
        None => return Ok((config.labels.clone(), None)),
    };
    let (image, usual) = match first.content {
        Content::Text { .. } => return Ok((config.labels.clone(), None)),
        Content::Labelled { .. } => (None, public_labels(config)?),
        Content::Image { height, width, channels, .. } => {
            (Some(Grid { height, width, channels }), (0..10).map(|class| class.to_string()).collect())
        }
    };
    let labels = if config.labels.is_empty() { usual } else { config.labels.clone() };
    if labels.len() < 2 {
        return Err(Failed::Input(
            "data.labels: list the classes, for example [\"0\", \"1\"]; they cannot be read off people's records, which would tell of who is there".into(),
        ));
    }
    Ok((labels, image))
}

/// The labels of validation data, if it is public.
fn public_labels(config: &config::Data) -> Result<Vec<String>, Failed> {
    let mut labels = BTreeSet::new();
    if config.labels.is_empty() && config.publicity() == config::Publicity::Public {
        for record in rows(config, Which::Validation)?.into_iter().flatten() {
            if let Content::Labelled { label, .. } = record?.content {
                labels.insert(label);
            }
        }
    }
    Ok(labels.into_iter().collect())
}

/// Texts must be shorter than this many tokens. The lengths for E2E and DART are those of Kim and Fan (2026).
///
/// # Errors
/// If more is asked for than the model takes.
pub fn limit(config: &config::Data, subject: &Subject) -> Result<usize, Failed> {
    let most = subject.longest() + 1;
    match config.max_length {
        Auto::Value(limit) if limit < 2 => Err(Failed::Input(format!("data.max_length: at least 2 expected, got {limit}"))),
        Auto::Value(limit) if limit > most => Err(Failed::Input(format!(
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

/// How many rows were left out. **Of people's rows these are not private**: they are for whoever holds the data, and are not put into any file.
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
    /// The records.
    pub records: Records,
    /// What is not among them.
    pub left_out: LeftOut,
    /// SHA-256 of all of them, in their places. **Not private.**
    pub digest: String,
}

/// People's records. `folder` is where they may lie if they are many.
///
/// # Errors
/// If the file is no good, or a row is not what the model reads. Messages do not show rows.
pub fn people(config: &Config, preparation: &Preparation<'_>, folder: &Path) -> Result<People, Failed> {
    let data = &config.data;
    let rows = rows(data, Which::Train)?.ok_or_else(|| Failed::Input("data.train: no file".into()))?;
    let mut collector = Collector::new(folder, MEMORY);
    let (mut left_out, mut sum) = (LeftOut::default(), Sha256::new());
    let mut persons: HashMap<Box<str>, u64> = HashMap::new();
    let mut rows = rows.peekable();
    while rows.peek().is_some() {
        let some = rows.by_ref().take(AT_ONCE).collect::<tasks::Result<Vec<Record>>>()?;
        let prepared: Vec<_> = some.par_iter().map(|record| example(preparation, record, &data.train)).collect();
        for (record, prepared) in some.iter().zip(prepared) {
            match prepared? {
                // Only rows that take part count, in the order of the file.
                Ok(example) if admitted(data, record, &mut persons)? => {
                    digest(&mut sum, &example);
                    collector.push(example)?;
                }
                Ok(_) => left_out.beyond += 1,
                Err(Without::TooLong) => left_out.too_long += 1,
                Err(Without::Empty) => left_out.empty += 1,
            }
        }
    }
    if collector.is_empty() {
        return Err(Failed::Input(format!("{}: every row is empty or has {} tokens or more", data.train, preparation.limit)));
    }
    Ok(People { records: collector.finish()?, left_out, digest: snapshot::hex(&sum.finalize()) })
}

/// Adds an example to a digest, with the lengths of its parts.
fn digest(sum: &mut Sha256, example: &Example) {
    let mut numbers = |numbers: &mut dyn ExactSizeIterator<Item = u32>| {
        sum.update((numbers.len() as u64).to_le_bytes());
        numbers.for_each(|number| sum.update(number.to_le_bytes()));
    };
    match &example.input {
        Input::Tokens(tokens) => numbers(&mut tokens.iter().copied()),
        Input::Numbers(values) => numbers(&mut values.iter().map(|x| x.to_bits())),
    }
    match &example.target {
        Target::Next(tokens) => numbers(&mut tokens.iter().copied()),
        Target::Class(class) => numbers(&mut std::iter::once(*class)),
    }
}

/// The first examples of people's records, for checks that need a few.
///
/// # Errors
/// As [`people`].
pub fn first(config: &Config, preparation: &Preparation<'_>, count: usize) -> Result<Vec<Example>, Failed> {
    let mut examples = Vec::new();
    for record in rows(&config.data, Which::Train)?.into_iter().flatten() {
        if examples.len() == count {
            break;
        }
        examples.extend(example(preparation, &record?, &config.data.train)?.ok());
    }
    if examples.is_empty() {
        return Err(Failed::Input(format!("{}: no row can be used", config.data.train)));
    }
    Ok(examples)
}

fn admitted(data: &config::Data, record: &Record, persons: &mut HashMap<Box<str>, u64>) -> Result<bool, Failed> {
    if data.group.is_none() {
        return Ok(true);
    }
    let Some(person) = &record.group else {
        return Err(Failed::Input(format!("{}, line {}: nobody is named whose row it is", data.train, record.line)));
    };
    let count = persons.entry(person.as_str().into()).or_default();
    *count += 1;
    Ok(*count <= data.rows_per_person)
}

/// Why a row is left out.
enum Without {
    TooLong,
    Empty,
}

fn example(preparation: &Preparation<'_>, record: &Record, file: &str) -> Result<Result<Example, Without>, Failed> {
    let refuse = |what: &str| Err(Failed::Input(format!("{file}, line {}: {what}", record.line)));
    match preparation.example(record)? {
        Prepared::Example(example) => Ok(Ok(example)),
        Prepared::TooLong => Ok(Err(Without::TooLong)),
        Prepared::Empty => Ok(Err(Without::Empty)),
        Prepared::UnknownLabel => refuse("a label that is not among data.labels"),
        Prepared::Unfit(expected) => refuse(&format!("expected {expected}, which is what the model reads")),
    }
}
