//! The columns of a table or keys of a JSON object that a record is made of.

use super::{LabelRule, Missing, ReadOptions, quoted};
use crate::error::{Error, Result};
use std::path::Path;

/// What a column is used for.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Role {
    Text,
    Image,
    Label,
    Group,
}

impl Role {
    /// The default names, in the order in which they are tried.
    pub(super) fn names(self) -> &'static [&'static str] {
        match self {
            Self::Text => &["sentence", "text", "content"],
            Self::Image => &["image", "image_path", "file_name", "path"],
            Self::Label => &["label", "class", "target"],
            Self::Group => &[],
        }
    }

    /// The key of a configuration that names the column.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Text => "data.text_column",
            Self::Image => "data.image_column",
            Self::Label => "data.label_column",
            Self::Group => "data.group",
        }
    }

    /// The name in the options.
    pub(super) fn given(self, options: &ReadOptions) -> Option<&str> {
        match self {
            Self::Text => options.text.as_deref(),
            Self::Image => options.image.as_deref(),
            Self::Label => options.label.as_deref(),
            Self::Group => options.group.as_deref(),
        }
    }

    /// The error for a file without the column.
    ///
    /// `got` describes the columns that exist.
    pub(super) fn absent(self, options: &ReadOptions, path: &Path, got: String) -> Error {
        let expected = match self.given(options) {
            Some(given) => quoted(&[given]),
            None => quoted(self.names()),
        };
        let role = match self {
            Self::Text => "text",
            Self::Image => "image",
            Self::Label => "label",
            Self::Group => "group",
        };
        Error::NoColumn { path: path.into(), role, key: self.key(), expected, got }
    }
}

/// The columns of a table.
pub(super) struct Columns {
    /// The column of the text or image.
    pub(super) content: Column,
    /// Whether the content is an image.
    pub(super) image: bool,
    /// The column of the label.
    pub(super) label: Option<Column>,
    /// The column of the group.
    pub(super) group: Option<Column>,
}

/// One column.
pub(super) struct Column {
    /// Its index.
    pub(super) at: usize,
    /// Its name, or "column" and its number.
    pub(super) name: String,
}

impl Column {
    /// Allows a row without a value in the column, or returns the error.
    ///
    /// The row is at this line, or at this row of a file without lines: `unit` says which.
    pub(super) fn missing(
        &self,
        options: &ReadOptions,
        path: &Path,
        unit: &'static str,
        line: u64,
    ) -> Result<()> {
        match options.missing {
            Missing::Skip => Ok(()),
            Missing::Error => {
                let (path, column) = (path.into(), self.name.clone());
                Err(Error::MissingCell { path, unit, line, column })
            }
        }
    }

    /// The error for a row without a group.
    pub(super) fn missing_group(&self, path: &Path, unit: &'static str, line: u64) -> Error {
        Error::MissingGroup { path: path.into(), unit, line, column: self.name.clone() }
    }
}

/// The first row of a table, or the names of its columns.
pub(super) struct Header<'h> {
    /// The cells of the first row.
    pub(super) cells: &'h [&'h str],
    /// Whether the cells are certainly names.
    pub(super) certain: bool,
    /// The file.
    pub(super) path: &'h Path,
    /// The options of the reader.
    pub(super) options: &'h ReadOptions,
}

/// The index of a column, and whether the first row names it.
#[derive(Clone, Copy)]
struct ColumnMatch {
    at: usize,
    named: bool,
}

impl Header<'_> {
    /// The columns, and whether the first row is a header.
    ///
    /// A label is optional if the cells are certainly names.
    ///
    /// # Claim
    /// (PROOFS.md, 13.) Unless the file is refused, which columns are read, and whether the first
    /// row is a record, follow from the options alone and not from the content of a record.
    /// # Why
    /// A column is found by its name or by its number. If one that is read is found by its name,
    /// the first row is a header, and a file without the name is refused. If all are numbers, there
    /// is no header, and cells are not compared with numbers.
    /// # Checked by
    /// `the_first_row_of_a_table_without_a_header_is_a_row`.
    pub(super) fn columns(&self) -> Result<(Columns, bool)> {
        let [text, image, label, group] =
            [Role::Text, Role::Image, Role::Label, Role::Group].map(|role| self.find(role));
        // Unless the image is asked for, a text takes precedence.
        let is_image = self.options.image.is_some() || text.is_none() && image.is_some();
        let (role, content) = if is_image { (Role::Image, image) } else { (Role::Text, text) };
        let ignores_labels = self.options.label_rule == LabelRule::Ignored;
        let read = [
            (role, content),
            (Role::Label, label.filter(|_| !ignores_labels)),
            (Role::Group, group),
        ];
        let named = read.iter().filter_map(|(_, found)| *found).any(|found| found.named);
        let header = self.certain || named;
        for role in [Role::Text, Role::Image, Role::Label, Role::Group] {
            let found = [text, image, label, group][role as usize];
            if found.is_none() && role.given(self.options).is_some() {
                return Err(self.absent(role, header));
            }
        }
        let first = ColumnMatch { at: 0, named: false };
        let (content, label) = match (content, label) {
            (Some(content), _) if ignores_labels => (content, None),
            (None, None) if ignores_labels && self.cells.len() == 1 => (first, None),
            (Some(content), Some(label)) => (content, Some(label)),
            (Some(content), None) if self.certain && !is_image => (content, None),
            (None, _) => return Err(self.absent(role, header)),
            (_, None) => return Err(self.absent(Role::Label, header)),
        };
        if !header {
            self.refuse_default_names(&read)?;
        }
        let column = |found: ColumnMatch| Column {
            at: found.at,
            name: match self.cells.get(found.at) {
                Some(name) if header => name.trim().into(),
                _ => format!("column {}", found.at + 1),
            },
        };
        let columns = Columns {
            content: column(content),
            image: is_image,
            label: label.map(column),
            group: group.map(column),
        };
        Ok((columns, header))
    }

    /// Refuses a first row with a default name in a column that is given by its number.
    fn refuse_default_names(&self, read: &[(Role, Option<ColumnMatch>)]) -> Result<()> {
        for (role, found) in read {
            let cell =
                found.and_then(|found| self.cells.get(found.at)).map_or("", |cell| cell.trim());
            if let Some(name) = role.names().iter().find(|name| cell.eq_ignore_ascii_case(name)) {
                let (path, key) = (self.path.into(), role.key());
                return Err(Error::NumberedHeader { path, key, name });
            }
        }
        Ok(())
    }

    /// Whether one of the cells is the text or image, and another the label.
    pub(super) fn is_known(&self) -> bool {
        let named = |role| self.find(role).is_some_and(|found| found.named);
        (named(Role::Text) || named(Role::Image)) && named(Role::Label)
    }

    fn find(&self, role: Role) -> Option<ColumnMatch> {
        let place = |name: &str| {
            let matches = |cell: &&str| cell.trim().eq_ignore_ascii_case(name.trim());
            self.cells.iter().position(matches).map(|at| ColumnMatch { at, named: true })
        };
        let Some(given) = role.given(self.options) else {
            return role.names().iter().find_map(|name| place(name));
        };
        let number = given.parse::<usize>().ok();
        let numbered = || {
            let at = number?.checked_sub(1).filter(|at| *at < self.cells.len())?;
            Some(ColumnMatch { at, named: false })
        };
        // A number is a name only if the cells are certainly names: a record may contain it.
        if self.certain || number.is_none() { place(given).or_else(numbered) } else { numbered() }
    }

    /// The error for a column that is not found. The names of a header are shown, a row is not.
    fn absent(&self, role: Role, header: bool) -> Error {
        let got = match (header, self.cells.len()) {
            (true, _) => listed(self.cells),
            (false, 1) => "1 column without a known name (see data.separator)".into(),
            (false, count) => format!("{count} columns without a known name"),
        };
        role.absent(self.options, self.path, got)
    }
}

/// Largest number of names of columns in a message, and of characters of a name.
const MAX_LISTED: usize = 20;
const MAX_NAME: usize = 40;

/// Names of columns, for a message.
pub(super) fn listed(names: &[impl AsRef<str>]) -> String {
    let short =
        |name: &str| format!("{:?}", name.trim().chars().take(MAX_NAME).collect::<String>());
    let shown: Vec<String> =
        names.iter().take(MAX_LISTED).map(|name| short(name.as_ref())).collect();
    let more = match names.len().saturating_sub(MAX_LISTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("the columns {}{more}", shown.join(", "))
}

/// Whether a cell of a table has no value.
pub(super) fn is_missing(cell: &str) -> bool {
    matches!(cell.trim(), "" | "NA" | "N/A" | "#N/A" | "<NA>" | "NaN" | "nan" | "NULL" | "null")
}
