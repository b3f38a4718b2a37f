//! Records: the content of one row of a data file, before tokenization.

use crate::error::{Error, Result};
use std::fmt;

/// Largest number of bytes of references that [`merge_by_source`] holds for one source.
const MAX_REFERENCE_BYTES: usize = 16 << 20;

/// One row of a data file.
///
/// ```
/// use data::{Content, Record};
///
/// let content = Content::Labelled { text: "fine".into(), label: "good".into() };
/// let record = Record { content, group: Some("user 7".into()), line: 1 };
/// assert_eq!(record.group.as_deref(), Some("user 7"));
/// ```
#[derive(Clone, PartialEq)]
pub struct Record {
    /// The content.
    pub content: Content,
    /// The group (person) that owns the row, if the data have groups. A group can own many rows.
    pub group: Option<String>,
    /// The first line of the row, or its index in a file without lines, counted from 1.
    pub line: u64,
}

/// The content of a row.
#[derive(Clone, PartialEq)]
pub enum Content {
    /// A text to predict.
    Text {
        /// The text given to the model, if any.
        source: Option<String>,
        /// The text to predict. It can be empty: DART has such a row.
        target: String,
        /// All good answers, if the data were put together with [`merge_by_source`]; otherwise
        /// none, and the target is the only one.
        references: Vec<String>,
    },
    /// A text with a class.
    Labelled {
        /// The text.
        text: String,
        /// The name of the class.
        label: String,
    },
    /// An image with a class.
    Image {
        /// Values from 0 to 1, row by row, channels last.
        pixels: Vec<f32>,
        /// The number of rows.
        height: usize,
        /// The number of columns.
        width: usize,
        /// 1 for grey, 3 for RGB.
        channels: usize,
        /// The class.
        label: Label,
    },
    /// A row without a required value, if such rows are skipped. Its place stays vacant.
    Missing,
}

/// The label of an image.
#[derive(Clone, PartialEq, Eq)]
pub enum Label {
    /// The label was not read.
    None,
    /// The index of the class.
    Index(u32),
    /// The name of the class, or what else labels are.
    Name(String),
}

/// Merges consecutive records with the same source and group, for evaluation.
///
/// The references of the merged record are all targets, and its target is the first of them. E2E
/// has several texts for a meaning representation, DART several annotations for a set of triples; a
/// generated text is compared with all of them. Records without a source are not merged. Not for
/// training: there every row is a record of its own.
pub fn merge_by_source<I: Iterator<Item = Result<Record>>>(records: I) -> MergeBySource<I> {
    MergeBySource { records, ahead: None }
}

/// See [`merge_by_source`].
pub struct MergeBySource<I> {
    records: I,
    /// The record after the last one of a source, already read.
    ahead: Option<Result<Record>>,
}

impl<I: Iterator<Item = Result<Record>>> Iterator for MergeBySource<I> {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut record = match self.ahead.take().or_else(|| self.records.next())? {
            Ok(record) => record,
            error => return Some(error),
        };
        let Content::Text { source, target, references } = &mut record.content else {
            return Some(Ok(record));
        };
        if references.is_empty() {
            references.push(target.clone());
        }
        if source.is_none() {
            return Some(Ok(record));
        }
        let mut bytes: usize = references.iter().map(String::len).sum();
        loop {
            match self.records.next() {
                Some(Ok(Record {
                    content: Content::Text { source: next, target, references: more },
                    group,
                    ..
                })) if next == *source && group == record.group => {
                    let before = references.len();
                    references.extend(if more.is_empty() { vec![target] } else { more });
                    // A reference takes its own bytes and an entry of the list.
                    bytes += references[before..]
                        .iter()
                        .map(|text| text.len() + size_of::<String>())
                        .sum::<usize>();
                    if bytes > MAX_REFERENCE_BYTES {
                        return Some(Err(Error::References {
                            line: record.line,
                            limit: MAX_REFERENCE_BYTES,
                        }));
                    }
                }
                ahead => {
                    self.ahead = ahead;
                    return Some(Ok(record));
                }
            }
        }
    }
}

impl<I> fmt::Debug for MergeBySource<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MergeBySource(…)")
    }
}

/// Records are private: `Debug` prints no content.
impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Record(…)")
    }
}

/// Records are private: `Debug` prints no content.
impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Label(…)")
    }
}

/// Records are private: `Debug` prints no content.
impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Content(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(source: Option<&str>, target: &str, group: Option<&str>, line: u64) -> Result<Record> {
        let content = Content::Text {
            source: source.map(Into::into),
            target: target.into(),
            references: Vec::new(),
        };
        Ok(Record { content, group: group.map(Into::into), line })
    }

    fn merged(records: Vec<Result<Record>>) -> Vec<(u64, String, Vec<String>)> {
        merge_by_source(records.into_iter())
            .map(|record| {
                let Record { content: Content::Text { target, references, .. }, line, .. } =
                    record.unwrap()
                else {
                    unreachable!()
                };
                (line, target, references)
            })
            .collect()
    }

    #[test]
    fn consecutive_records_with_equal_sources_are_merged() {
        let rows = vec![
            row(Some("a"), "1", None, 1),
            row(Some("a"), "2", None, 2),
            row(Some("b"), "3", None, 3),
            row(Some("a"), "4", None, 4),
        ];
        let expected = [(1, "1", vec!["1", "2"]), (3, "3", vec!["3"]), (4, "4", vec!["4"])];
        let expected = expected.map(|(line, target, all)| {
            (line, target.to_owned(), all.into_iter().map(String::from).collect::<Vec<_>>())
        });
        assert_eq!(merged(rows), expected);
        assert_eq!(merged(vec![]), []);
    }

    #[test]
    fn records_without_source_or_of_different_groups_are_not_merged() {
        assert_eq!(merged(vec![row(None, "1", None, 1), row(None, "2", None, 2)]).len(), 2);
        assert_eq!(
            merged(vec![row(Some("a"), "1", Some("x"), 1), row(Some("a"), "2", Some("y"), 2)])
                .len(),
            2
        );
    }

    #[test]
    fn errors_come_after_the_records_before_them() {
        let error = || Err(Error::UnknownFormat { got: String::new() });
        let mut iter = merge_by_source(vec![row(Some("a"), "1", None, 1), error()].into_iter());
        assert!(matches!(
            (iter.next(), iter.next(), iter.next()),
            (Some(Ok(_)), Some(Err(_)), None)
        ));
    }

    #[test]
    fn references_are_bounded() {
        let text = "x".repeat(1 << 20);
        let endless = std::iter::repeat_with(|| row(Some("a"), &text, None, 1));
        assert!(matches!(
            merge_by_source(endless).next(),
            Some(Err(Error::References { line: 1, .. }))
        ));
    }

    #[test]
    fn debug_output_has_no_content() {
        let record = row(Some("secret"), "secret", Some("secret"), 7).unwrap();
        assert_eq!(format!("{record:?} {:?}", record.content), "Record(…) Content(…)");
    }
}
