//! What one row of a data file says, before tokenizing.

use crate::error::{Error, Result};
use std::fmt;

/// The most bytes of references that [`merge_by_source`] holds for one source.
const MOST_REFERENCES: usize = 16 << 20;

/// One row.
#[derive(Clone, PartialEq)]
pub struct Record {
    /// What it says.
    pub content: Content,
    /// The person it belongs to, if the data say so. One person can own many rows.
    pub group: Option<String>,
    /// The line of the file on which it begins, or the place of an image in its file; both are
    /// counted from 1.
    pub line: u64,
}

/// What a row says.
#[derive(Clone, PartialEq)]
pub enum Content {
    /// Text to be predicted.
    Text {
        /// What is given, if anything.
        source: Option<String>,
        /// What is to be predicted. It can be empty: DART has such a text.
        target: String,
        /// All good answers, if the data were put together with [`merge_by_source`]; otherwise none, and
        /// the target is the only one.
        references: Vec<String>,
    },
    /// A text of a class.
    Labelled {
        /// The text.
        text: String,
        /// The name of the class.
        label: String,
    },
    /// A picture of a class.
    Image {
        /// From 0 to 1, row after row, channels last.
        pixels: Vec<f32>,
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// 1 for grey, 3 for red, green and blue.
        channels: usize,
        /// The class.
        label: u32,
    },
}

/// For evaluation: puts consecutive records with the same source (and group) into one, whose
/// references are all their targets and whose target is the first of them.
///
/// E2E has several texts for a meaning representation, DART several annotations for a set of
/// triples; a generated text is compared with all of them. What has no source is never put
/// together. Not for training: there every row stays a record of its own.
pub fn merge_by_source<I: Iterator<Item = Result<Record>>>(records: I) -> MergeBySource<I> {
    MergeBySource { records, ahead: None }
}

/// See [`merge_by_source`].
pub struct MergeBySource<I> {
    records: I,
    /// What was read beyond the last record of a source.
    ahead: Option<Result<Record>>,
}

impl<I: Iterator<Item = Result<Record>>> Iterator for MergeBySource<I> {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut record = match self.ahead.take().or_else(|| self.records.next())? {
            Ok(record) => record,
            refused => return Some(refused),
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
                    // A reference takes its own bytes and a place in the list.
                    bytes += references[before..]
                        .iter()
                        .map(|text| text.len() + size_of::<String>())
                        .sum::<usize>();
                    if bytes > MOST_REFERENCES {
                        return Some(Err(Error::References {
                            line: record.line,
                            limit: MOST_REFERENCES,
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

/// A record is private: it does not print.
impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Record(…)")
    }
}

/// A record is private: it does not print.
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

    fn shape(records: Vec<Result<Record>>) -> Vec<(u64, String, Vec<String>)> {
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
    fn consecutive_records_with_one_source_become_one() {
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
        assert_eq!(shape(rows), expected);
        assert_eq!(shape(vec![]), []);
    }

    #[test]
    fn no_source_and_other_groups_stay_apart() {
        assert_eq!(shape(vec![row(None, "1", None, 1), row(None, "2", None, 2)]).len(), 2);
        assert_eq!(
            shape(vec![row(Some("a"), "1", Some("x"), 1), row(Some("a"), "2", Some("y"), 2)]).len(),
            2
        );
    }

    #[test]
    fn a_refusal_comes_after_the_records_before_it() {
        let refused = || Err(Error::UnknownFormat { got: String::new() });
        let mut merged = merge_by_source(vec![row(Some("a"), "1", None, 1), refused()].into_iter());
        assert!(matches!(
            (merged.next(), merged.next(), merged.next()),
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
    fn it_does_not_print() {
        let record = row(Some("secret"), "secret", Some("secret"), 7).unwrap();
        assert_eq!(format!("{record:?} {:?}", record.content), "Record(…) Content(…)");
    }
}
