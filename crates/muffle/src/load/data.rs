//! Reads data files into records and examples: formats, limits per person, vacant places.
//!
//! Every row of a training file is a place of the data set. A row that is too long, empty or over
//! the limit of its person is a vacant place, so that the number of places, and all that follows
//! from it, does not depend on the content of rows. Only a refusal can depend on it, before
//! anything is computed: an unreadable file, a label that is not declared, a row without a person.

use crate::Error;
use crate::LoadedModel;
use crate::config::{self, Auto, Config, DroppedRows, TaskKind};
use crate::load::corpus;
use crate::load::digest::update_digest;
use crate::run::snapshot;
use curator::{Collector, Records};
use data::{
    Content, Format, Label, LabelRule, Preparation, Prepared, ReadOptions, Record, Task, TooLong,
    split_labels,
};
use engine::Example;
use model::patches::ImageShape;
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use text::SpecialTokens;

/// Rows of a file, or of the embedded corpus.
pub type Rows = Box<dyn Iterator<Item = data::Result<Record>> + Send>;

/// A part of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// The protected training data.
    Train,
    /// Evaluated during training.
    Validation,
    /// Evaluated at the end.
    Test,
}

/// Number of training records of the embedded corpus.
pub const EMBEDDED: usize = 60_000;
/// Number of validation and of test records of the embedded corpus.
const EMBEDDED_EVALUATION: usize = 500;

/// Number of rows that are prepared together, by all threads.
const CHUNK_ROWS: usize = 1024;

/// Whether the rows of a split are those of the embedded corpus.
pub(crate) fn is_embedded(config: &config::Data, split: Split) -> bool {
    config.train == "embedded"
        && match split {
            Split::Train => true,
            Split::Validation => config.validation.is_none(),
            Split::Test => config.test.is_none(),
        }
}

/// Opens the rows of a split; `None` if the configuration names no file for it.
///
/// # Errors
/// If the file cannot be read as data of its format.
pub fn rows(config: &config::Data, split: Split) -> Result<Option<Rows>, Error> {
    if is_embedded(config, split) {
        let count = if split == Split::Train { EMBEDDED } else { EMBEDDED_EVALUATION };
        return Ok(Some(embedded_rows(split, count)));
    }
    let path = match split {
        Split::Train => Some(Path::new(&config.train)),
        Split::Validation => config.validation.as_deref(),
        Split::Test => config.test.as_deref(),
    };
    let Some(path) = path else { return Ok(None) };
    let options = ReadOptions {
        text: config.text_column.clone(),
        image: config.image_column.clone(),
        label: config.label_column.clone(),
        group: config.group.clone().filter(|_| split == Split::Train),
        label_rule: config.label_rule(),
        separator: config.separator.given().copied(),
        missing: config.missing,
        image_size: image_size(&config.image_size)?,
        ..ReadOptions::default()
    };
    Ok(Some(Box::new(format(config, path)?.read(path, &options)?)))
}

/// Opens the rows of a file without their labels, which it need not have.
///
/// # Errors
/// As [`rows`].
pub fn rows_without_labels(config: &config::Data, path: &Path) -> Result<Rows, Error> {
    let format = match format(config, path) {
        // A text is enough; `jsonl` is the format that has one.
        Err(Error::Data(data::Error::Ambiguous { candidates, .. }))
            if candidates.contains(&Format::Jsonl) =>
        {
            Format::Jsonl
        }
        found => found?,
    };
    let options = ReadOptions {
        text: config.text_column.clone(),
        image: config.image_column.clone(),
        separator: config.separator.given().copied(),
        missing: config.missing,
        image_size: image_size(&config.image_size)?,
        label_rule: LabelRule::Ignored,
        ..ReadOptions::default()
    };
    Ok(Box::new(format.read(path, &options)?))
}

/// The size to which images are scaled, if one is configured.
fn image_size(size: &[usize]) -> Result<Option<[usize; 3]>, Error> {
    match size {
        [] => Ok(None),
        &[height, width, channels] => Ok(Some([height, width, channels])),
        other => Err(Error::config(
            "data.image_size",
            format!(
                "expected height, width and channels, such as [32, 32, 3]; got {} numbers",
                other.len()
            ),
        )),
    }
}

/// The format of a file, configured or detected.
///
/// # Errors
/// If the name is unknown, or the format cannot be detected.
pub fn format(config: &config::Data, path: &Path) -> Result<Format, Error> {
    match &config.format {
        Auto::Value(name) => Ok(name.parse()?),
        Auto::Auto => Ok(Format::detect(path)?),
    }
}

/// Returns the first `count` rows of a split of the embedded corpus.
fn embedded_rows(split: Split, count: usize) -> Rows {
    let record = |(index, pair): (usize, corpus::CorpusPair)| {
        let content = Content::Text {
            source: Some(pair.source),
            target: pair.target,
            references: Vec::new(),
        };
        Ok(Record { content, group: None, line: index as u64 + 1 })
    };
    Box::new(corpus::pairs(split, count).into_iter().enumerate().map(record))
}

/// Returns the public class names and the image shape that a model is built for.
///
/// # Errors
/// If the file is invalid, or rows have labels and `data.labels` is empty: labels read from private
/// records would reveal them.
pub fn labels_and_shape(config: &config::Data) -> Result<(Vec<String>, Option<ImageShape>), Error> {
    let mut rows = rows(config, Split::Train)?.into_iter().flatten();
    // The kind of the data is that of the first row with a record.
    let first = rows.find(|row| !matches!(row, Ok(Record { content: Content::Missing, .. })));
    let Some(first) = first.transpose()? else { return Ok((config.labels.clone(), None)) };
    let task = config.task()?;
    let (image, default) = match first.content {
        Content::Text { .. } => match config.task {
            Auto::Auto => return Ok((config.labels.clone(), None)),
            Auto::Value(kind) => {
                let message = format!(
                    "expected \"auto\", because data.train has no labels; got {:?}",
                    kind.name()
                );
                return Err(Error::config("data.task", message));
            }
        },
        Content::Missing => return Ok((config.labels.clone(), None)),
        Content::Labelled { .. } => (None, public_labels(config)?),
        Content::Image { height, width, channels, label, .. } => (
            Some(ImageShape { height, width, channels }),
            match label {
                Label::None | Label::Index(_) => (0..10).map(|class| class.to_string()).collect(),
                Label::Name(_) => public_labels(config)?,
            },
        ),
    };
    let labels = if config.labels.is_empty() { default } else { config.labels.clone() };
    let minimum = match task {
        Task::Classification => 2,
        Task::MultiLabel => 1,
        Task::Regression { .. } if config.labels.is_empty() => return Ok((Vec::new(), image)),
        Task::Regression { .. } => {
            let message = "expected none, because data.task is \"regression\"; got some";
            return Err(Error::config("data.labels", message));
        }
    };
    if labels.len() < minimum {
        return Err(Error::config(
            "data.labels",
            format!(
                "expected at least {minimum} classes, such as [\"0\", \"1\"], got {}; labels are \
                 not read from private records, which they would reveal",
                labels.len()
            ),
        ));
    }
    Ok((labels, image))
}

/// Reads the labels of the validation data, if it is public.
fn public_labels(config: &config::Data) -> Result<Vec<String>, Error> {
    let mut labels = BTreeSet::new();
    let are_names = config.task != Auto::Value(TaskKind::Regression);
    let are_public = config.publicity() == config::Publicity::Public;
    if config.labels.is_empty() && are_names && are_public {
        for record in rows(config, Split::Validation)?.into_iter().flatten() {
            let (Content::Labelled { label, .. }
            | Content::Image { label: Label::Name(label), .. }) = record?.content
            else {
                continue;
            };
            match config.task.or(TaskKind::Classification) {
                TaskKind::MultiLabel => labels.extend(split_labels(&label).unwrap_or_default()),
                TaskKind::Classification | TaskKind::Regression => _ = labels.insert(label),
            }
        }
    }
    Ok(labels.into_iter().collect())
}

/// Returns the exclusive upper limit on the number of tokens of a text.
///
/// The defaults for E2E and DART are those of Kim and Fan (2026).
///
/// # Errors
/// If `data.max_length` is more than the model takes, or too small for any text.
pub fn length_limit(config: &config::Data, model: &LoadedModel) -> Result<usize, Error> {
    let max_limit = model.max_tokens() + 1;
    if config.max_chunks == 0 {
        return Err(Error::config("data.max_chunks", "expected at least 1, got 0"));
    }
    // With a lower limit no text is usable: a target has at least one token after the prompt, and
    // a text that is classified one beside the special tokens.
    let min_limit = match &model.tokenizer {
        Some(_) if model.generates_text() => {
            model.preparation(&[], usize::MAX).prompt("")?.len() + 2
        }
        Some(tokenizer) => tokenizer.encode("", SpecialTokens::Add)?.len() + 2,
        None => 2,
    };
    match config.max_length {
        Auto::Value(limit) if limit < min_limit => Err(Error::config(
            "data.max_length",
            format!("expected at least {min_limit}, got {limit}"),
        )),
        Auto::Value(limit) if limit > max_limit => Err(Error::config(
            "data.max_length",
            format!(
                "expected at most {max_limit}, because the model takes {} tokens; got {limit}",
                model.max_tokens()
            ),
        )),
        Auto::Value(limit) => Ok(limit),
        Auto::Auto => {
            let default = if config.train == "embedded" {
                max_limit
            } else {
                match format(config, Path::new(&config.train))? {
                    Format::E2e => 100,
                    Format::Dart => 120,
                    _ => 257,
                }
            };
            Ok(default.min(max_limit))
        }
    }
}

/// Numbers of rows without a record.
///
/// **Not private**: shown to the holder of the data on request, and not written to any file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedCounts {
    /// Rows with too many tokens.
    pub too_long: u64,
    /// Rows with nothing to predict.
    pub empty: u64,
    /// Rows without a value that is needed. Never among those that are declared public.
    pub missing: u64,
    /// Rows over the limit of their person.
    pub over_limit: u64,
    /// Rows of which only a part is used.
    pub shortened: u64,
    /// All rows of the file.
    pub rows: u64,
}

impl DroppedCounts {
    /// Warnings about rows that are not used; without their number, unless it is declared public.
    pub(crate) fn warnings(&self, data: &config::Data, limit: usize) -> Vec<String> {
        match data.dropped_rows {
            DroppedRows::Public => {
                let dropped = self.too_long + self.empty;
                dropped_warning("data.train", dropped, self.rows, limit).into_iter().collect()
            }
            DroppedRows::Vacant if data.too_long == Auto::Value(TooLong::Drop) => vec![format!(
                "warning: rows with {limit} tokens or more are not used (data.too_long = \
                 \"drop\"); their number is private, and --show-left-out prints it"
            )],
            DroppedRows::Vacant => Vec::new(),
        }
    }
}

/// The share of rows without a record above which a warning is due.
const MAX_DROPPED_SHARE: f64 = 0.05;

/// Warns about public data of which many rows are not used.
pub(crate) fn dropped_warning(key: &str, dropped: u64, rows: u64, limit: usize) -> Option<String> {
    let share = dropped as f64 / rows as f64;
    (share > MAX_DROPPED_SHARE).then(|| {
        format!(
            "warning: {key}: {:.1} % of the rows are not used, because they are empty or have \
             {limit} tokens or more; see data.max_length and data.too_long",
            100.0 * share
        )
    })
}

/// The training data, prepared for the curator.
pub struct TrainingData {
    /// The records, with a place for each row, or for each person if rows are combined.
    ///
    /// If dropped rows are declared public, rows that are too long or empty have no place.
    pub records: Records,
    /// Numbers of rows without a record. **Not private.**
    pub dropped: DroppedCounts,
    /// SHA-256 of all places. **Not private.**
    pub digest: String,
}

/// Reads and prepares the training data. If the records have more than `max_bytes`, they are written
/// to a file in `folder`.
///
/// # Claim
/// (PROOFS.md, 13.) With `dropped_rows = "vacant"`, the number of places is the number of rows, or
/// of persons if their rows are combined. The content of a place depends on its row and, where
/// persons are named, on the other rows of the same person. No person has more than one place if
/// rows are combined, and not more than `rows_per_person` places with a record if they are separate.
/// # Why
/// Every row is pushed once, and a row without a value keeps its person. A person's limit counts
/// that person's usable rows in the order of the file.
/// # Checked by
/// `unusable_rows_do_not_change_public_files`, `the_content_of_rows_does_not_change_public_files`,
/// `places_depend_on_their_own_person_only`.
/// # Errors
/// If the file is invalid, or a row is not of the kind that the model reads. Messages do not show
/// rows. A file without usable rows is an error only if dropped rows are public.
pub fn training_data(
    config: &Config,
    preparation: &Preparation<'_>,
    folder: &Path,
    max_bytes: usize,
) -> Result<TrainingData, Error> {
    let mut collector = Collector::new(folder, max_bytes);
    let mut hasher = Sha256::new();
    let mut place_of_row = Vec::new();
    let dropped = for_each_row(config, preparation, &mut |place, example| {
        hasher.update((place as u64).to_le_bytes());
        update_digest(&mut hasher, example.as_ref());
        place_of_row.push(place);
        Ok(collector.push(example)?)
    })?;
    // The reader refuses a file without rows. Without places, all rows were removed, which happens
    // only if dropped rows are declared public.
    if collector.is_empty() {
        return Err(Error::Rows {
            place: config.data.train.clone(),
            message: format!("every row is empty or has {} tokens or more", preparation.limit),
        });
    }
    let mut records = collector.finish()?;
    if config.data.combines_rows() {
        records = records.combine_rows(&place_of_row, config.data.combine)?;
    }
    Ok(TrainingData { records, dropped, digest: snapshot::hex(&hasher.finalize()) })
}

/// Calls `push(place, example)` with every row of the training data, in the order of the file.
///
/// If rows are combined, all rows of a person have the same place; persons are numbered in the order
/// of their first rows. Otherwise every row has a place of its own.
fn for_each_row(
    config: &Config,
    preparation: &Preparation<'_>,
    push: &mut dyn FnMut(usize, Option<Example>) -> Result<(), Error>,
) -> Result<DroppedCounts, Error> {
    let data = &config.data;
    let mut rows = rows(data, Split::Train)?
        .ok_or_else(|| Error::config("data.train", "expected a file, got none"))?
        .peekable();
    let mut dropped = DroppedCounts::default();
    let mut persons: HashMap<Box<str>, Person> = HashMap::new();
    let mut next_place = 0;
    let mut push = |person: Option<&mut Person>, example: Option<Example>| {
        let mut own_place = None;
        let place = match person {
            Some(person) if data.combines_rows() => &mut person.place,
            _ => &mut own_place,
        };
        let place = *place.get_or_insert(next_place);
        next_place = next_place.max(place + 1);
        push(place, example)
    };
    while rows.peek().is_some() {
        let chunk = rows.by_ref().take(CHUNK_ROWS).collect::<data::Result<Vec<Record>>>()?;
        let prepared: Vec<_> =
            chunk.par_iter().map(|record| prepare(preparation, record, data)).collect();
        dropped.rows += chunk.len() as u64;
        for (record, prepared) in chunk.iter().zip(prepared) {
            let mut person =
                person(data, record)?.map(|name| persons.entry(name.into()).or_default());
            match prepared? {
                // Only usable rows count towards a person's limit, in the order of the file.
                Ok((example, whole)) if within_limit(data, person.as_deref_mut()) => {
                    dropped.shortened += u64::from(!whole);
                    push(person, Some(example))?;
                }
                Ok(_) => {
                    dropped.over_limit += 1;
                    push(person, None)?;
                }
                Err(unusable) => {
                    match unusable {
                        Unusable::TooLong => dropped.too_long += 1,
                        Unusable::Empty => dropped.empty += 1,
                        Unusable::Missing => dropped.missing += 1,
                    }
                    // Rows without a value are not among those that are declared public.
                    if data.dropped_rows == DroppedRows::Vacant || unusable == Unusable::Missing {
                        push(person, None)?;
                    }
                }
            }
        }
    }
    Ok(dropped)
}

/// Reads the first usable examples of the training data.
///
/// **Not private**: for attacks that the holder of the data requests.
///
/// # Errors
/// As [`training_data`], or if no row is usable.
pub fn first_examples(
    config: &Config,
    preparation: &Preparation<'_>,
    count: usize,
) -> Result<Vec<Example>, Error> {
    let mut examples = Vec::new();
    for record in rows(&config.data, Split::Train)?.into_iter().flatten() {
        if examples.len() == count {
            break;
        }
        let prepared = prepare(preparation, &record?, &config.data)?;
        examples.extend(prepared.ok().map(|(example, _)| example));
    }
    if examples.is_empty() {
        return Err(Error::Rows {
            place: config.data.train.clone(),
            message: "every row is empty or too long".into(),
        });
    }
    Ok(examples)
}

/// The person of a row, if the unit of protection is the person.
fn person<'a>(data: &config::Data, record: &'a Record) -> Result<Option<&'a str>, Error> {
    match (&data.group, &record.group) {
        (None, _) => Ok(None),
        (Some(_), Some(person)) => Ok(Some(person)),
        (Some(column), None) => Err(Error::Rows {
            place: format!("{}, line {}", data.train, record.line),
            message: format!(
                "column {column:?} (data.group) is empty; expected the name of a person"
            ),
        }),
    }
}

/// A person of the training data.
#[derive(Default)]
struct Person {
    /// Usable rows so far.
    rows: u64,
    /// The place of the combined rows, once a row has been pushed.
    place: Option<usize>,
}

/// Counts a usable row of a person. Returns whether it is within the limit.
fn within_limit(data: &config::Data, person: Option<&mut Person>) -> bool {
    let Some(person) = person else { return true };
    person.rows += 1;
    data.rows_per_person.given().is_none_or(|&limit| person.rows <= limit)
}

/// Why a row cannot be a record.
#[derive(Clone, Copy, PartialEq)]
enum Unusable {
    TooLong,
    Empty,
    Missing,
}

/// Prepares the example of a row with its views, unless it is too long or empty.
///
/// Also returns whether all of the row is used.
fn prepare(
    preparation: &Preparation<'_>,
    record: &Record,
    data: &config::Data,
) -> Result<Result<(Example, bool), Unusable>, Error> {
    let refuse = |message: &str| {
        let place = format!("{}, line {}", data.train, record.line);
        Err(Error::Rows { place, message: message.into() })
    };
    if record.content == Content::Missing {
        return Ok(Err(Unusable::Missing));
    }
    match preparation.example_of_views(record, data.views)? {
        Prepared::Example(example) => Ok(Ok((example, true))),
        Prepared::Shortened(example) => Ok(Ok((example, false))),
        Prepared::TooLong => Ok(Err(Unusable::TooLong)),
        Prepared::Empty => Ok(Err(Unusable::Empty)),
        Prepared::InvalidLabel(expected) => refuse(&format!("expected {expected}, got another")),
        Prepared::WrongKind(expected) => refuse(&format!("expected {expected}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use data::{CausalInput, LongTexts, ModelInput, Prompt};
    use engine::Input;
    use text::Tokenizer;

    /// The number of rows without a value is private, also if dropped rows are public.
    #[test]
    fn a_public_warning_does_not_count_missing_values() {
        let data = config::Data { dropped_rows: DroppedRows::Public, ..config::Data::default() };
        let warnings = |counts: DroppedCounts| counts.warnings(&data, 40);
        let few = DroppedCounts { empty: 1, rows: 100, ..DroppedCounts::default() };
        assert!(warnings(few).is_empty());
        assert!(warnings(DroppedCounts { missing: 60, ..few }).is_empty());
        let many = DroppedCounts { empty: 10, ..few };
        assert_eq!(warnings(many).len(), 1);
        assert_eq!(warnings(DroppedCounts { missing: 60, ..many }), warnings(many));
    }

    /// The place of a row, and its tokens if it is used.
    type PlacedRow = (usize, Option<Vec<u32>>);

    /// The place and the tokens of each row of a file with these rows.
    fn placed_rows(rows: &str, data: &str) -> (Vec<PlacedRow>, DroppedCounts) {
        let (rows, dropped) = read_rows(rows, data, LongTexts::DROP);
        let tokens = |(place, example): (usize, Option<Example>)| {
            (place, example.map(|example| tokens(&example)))
        };
        (rows.into_iter().map(tokens).collect(), dropped)
    }

    /// The example of each place of a file with these rows.
    fn placed_examples(rows: &str, data: &str, long_texts: LongTexts) -> Vec<Option<Example>> {
        let (rows, _) = read_rows(rows, data, long_texts);
        rows.into_iter().map(|(_, example)| example).collect()
    }

    fn read_rows(
        rows: &str,
        data: &str,
        long_texts: LongTexts,
    ) -> (Vec<(usize, Option<Example>)>, DroppedCounts) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("people.jsonl");
        std::fs::write(&path, rows).unwrap();
        let mut config =
            Config::parse(&format!("[data]\nformat = \"instructions\"\n{data}")).unwrap();
        config.data.train = path.to_string_lossy().into_owned();
        let tokenizer = Tokenizer::train(["a b c"].into_iter(), 258, &["<bos>", "<eos>"]).unwrap();
        let preparation = Preparation {
            input: ModelInput::Causal(CausalInput {
                tokenizer: &tokenizer,
                prompt: &Prompt::Paper,
                begin: 0,
                end: 1,
            }),
            task: Task::Classification,
            labels: &[],
            limit: 30,
            long_texts,
        };
        let mut all = Vec::new();
        let dropped = for_each_row(&config, &preparation, &mut |place, example| {
            all.push((place, example));
            Ok(())
        });
        (all, dropped.unwrap())
    }

    fn tokens(example: &Example) -> Vec<u32> {
        match &example.parts()[0].input {
            Input::Tokens(tokens) => tokens.clone(),
            Input::Features(_) => Vec::new(),
        }
    }

    /// The tokens of each row of a file in which every row has a place of its own.
    fn places(rows: &str, data: &str) -> (Vec<Option<Vec<u32>>>, DroppedCounts) {
        let (rows, dropped) = placed_rows(rows, data);
        assert!(rows.iter().enumerate().all(|(i, (place, _))| *place == i));
        (rows.into_iter().map(|(_, tokens)| tokens).collect(), dropped)
    }

    fn row(who: &str, text: &str) -> String {
        format!("{{\"prompt\":\"say\",\"completion\":\"{text}\",\"who\":\"{who}\"}}\n")
    }

    const PERSONS: &str = "group = \"who\"\nperson_rows = \"separate\"\nrows_per_person = 2";
    const LONG: &str = "far too many words for a model that takes thirty";

    /// For every combination of usable rows of one person: the places of the others are the same,
    /// and the person has at most two records.
    #[test]
    fn places_depend_on_their_own_person_only() {
        let file = |usable: u32| -> String {
            let own = |i: u32| row("x", if usable >> i & 1 == 1 { "good" } else { LONG });
            let other = |i: u32| row(&format!("y{}", i / 4), if i == 3 { LONG } else { "fine" });
            (0..10).map(|i| if i % 2 == 0 { own(i / 2) } else { other(i) }).collect()
        };
        let (reference, _) = places(&file(0b11111), PERSONS);
        let taken = |places: &[Option<Vec<u32>>], own: bool| -> Vec<bool> {
            places
                .iter()
                .enumerate()
                .filter(|(i, _)| (i % 2 == 0) == own)
                .map(|(_, place)| place.is_some())
                .collect()
        };
        assert_eq!(taken(&reference, false), [true, false, true, true, true]);
        for usable in 0..32u32 {
            let (places, dropped) = places(&file(usable), PERSONS);
            assert_eq!(places.len(), 10, "{usable:b}");
            assert!((1..10).step_by(2).all(|i| places[i] == reference[i]), "{usable:b}");
            let own = taken(&places, true);
            // The first two usable ones.
            let expected =
                (0..5).map(|i| usable >> i & 1 == 1 && (usable & ((1 << i) - 1)).count_ones() < 2);
            assert!(own.iter().copied().eq(expected), "{usable:b}: {own:?}");
            assert_eq!(dropped.over_limit, u64::from(usable.count_ones().saturating_sub(2)));
        }
    }

    /// If declared public, rows that are too long are removed; rows over the limit of a person are
    /// vacant places in both cases.
    #[test]
    fn rows_are_removed_only_where_that_is_public() {
        let rows =
            [row("x", "one"), row("x", LONG), row("x", "two"), row("x", "three"), row("y", "four")]
                .concat();
        let expected =
            DroppedCounts { too_long: 1, over_limit: 1, rows: 5, ..DroppedCounts::default() };
        let occupied = |data: &str| {
            let (places, dropped) = places(&rows, data);
            assert_eq!(dropped, expected);
            places.iter().map(Option::is_some).collect::<Vec<_>>()
        };
        assert_eq!(occupied(PERSONS), [true, false, true, false, true]);
        let public = format!("{PERSONS}\ndropped_rows = \"public\"");
        assert_eq!(occupied(&public), [true, true, false, true]);
    }

    /// The rows of a person have one place, wherever they are in the file. A person whose rows are
    /// all unusable keeps a place, and without a limit all usable rows are used.
    #[test]
    fn combined_rows_have_the_place_of_their_person() {
        let rows = [
            row("x", "one"),
            row("y", LONG),
            row("x", LONG),
            row("z", "two"),
            row("x", "three"),
            row("y", LONG),
            row("x", "four"),
        ]
        .concat();
        let used = |data: &str| {
            let (rows, dropped) = placed_rows(&rows, data);
            let rows: Vec<(usize, bool)> =
                rows.iter().map(|(place, tokens)| (*place, tokens.is_some())).collect();
            (rows, dropped.over_limit)
        };
        let (all, over) = used("group = \"who\"");
        let places = [0, 1, 0, 2, 0, 1, 0];
        let usable = [true, false, false, true, true, false, true];
        assert_eq!(all, places.into_iter().zip(usable).collect::<Vec<_>>());
        assert_eq!(over, 0);
        let (limited, over) = used("group = \"who\"\nrows_per_person = 2");
        let usable = [true, false, false, true, true, false, false];
        assert_eq!(limited, places.into_iter().zip(usable).collect::<Vec<_>>());
        assert_eq!(over, 1);
        // Declared public, unusable rows and persons without other rows have no place.
        let (public, _) = used("group = \"who\"\ndropped_rows = \"public\"");
        assert_eq!(public, [(0, true), (1, true), (0, true), (0, true)]);
    }

    /// Without a limit, every row of every person takes part.
    #[test]
    fn all_rows_of_persons_are_used() {
        let rows: String = (0..600).map(|i| row(&format!("p{}", i * 7 % 200), "fine")).collect();
        for unit in ["auto", "person"] {
            let data = format!("group = \"who\"\n[privacy]\nunit = \"{unit}\"");
            let (rows, dropped) = placed_rows(&rows, &data);
            assert_eq!(rows.iter().filter(|(_, tokens)| tokens.is_some()).count(), 600);
            assert_eq!(rows.iter().map(|(place, _)| place).collect::<BTreeSet<_>>().len(), 200);
            assert_eq!(dropped, DroppedCounts { rows: 600, ..DroppedCounts::default() });
        }
    }

    /// A row that is cut or divided into chunks changes its own place only.
    #[test]
    fn long_rows_change_their_own_place_only() {
        let file = |text: &str| {
            (0..9).map(|i| row("x", if i == 4 { text } else { "fine" })).collect::<String>()
        };
        let reference = placed_examples(&file("short"), "", LongTexts::default());
        for length in 1..60 {
            let places = placed_examples(&file(&"far ".repeat(length)), "", LongTexts::default());
            assert_eq!(places.len(), 9);
            for (i, (place, expected)) in places.iter().zip(&reference).enumerate() {
                assert!(place.is_some() && (i == 4 || place == expected), "{length} {i}");
            }
        }
    }

    /// The parts of one example are not the parts of several examples.
    #[test]
    fn parts_are_part_of_the_digest() {
        let digest = |places: &[Example]| {
            let mut hasher = Sha256::new();
            places.iter().for_each(|place| update_digest(&mut hasher, Some(place)));
            snapshot::hex(&hasher.finalize())
        };
        let rows = [1, 2, 3].map(|token| Example::labelled(vec![token], 0));
        let combined =
            |rows: &[Example]| Example::combined(rows.to_vec(), engine::Combination::Mean).unwrap();
        let all = [
            digest(&rows),
            digest(&[combined(&rows)]),
            digest(&[combined(&rows[..2]), rows[2].clone()]),
            digest(&[rows[0].clone(), combined(&rows[1..])]),
        ];
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 4);
    }

    /// Processes with different places are detected: the digest covers vacant places.
    #[test]
    fn vacant_places_are_part_of_the_digest() {
        let digest = |places: &[Option<Example>]| {
            let mut hasher = Sha256::new();
            places.iter().for_each(|place| update_digest(&mut hasher, place.as_ref()));
            snapshot::hex(&hasher.finalize())
        };
        let record = || Some(Example::labelled(vec![1, 2], 0));
        let all = [
            vec![record()],
            vec![record(), None],
            vec![None, record()],
            vec![None, None],
            vec![None],
        ]
        .map(|places| digest(&places));
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 5);
    }
}
