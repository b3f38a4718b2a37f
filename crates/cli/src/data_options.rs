//! Options that say how data files are read.

use clap::Args;
use muffle::config::{Auto, Data};
use muffle::data::{Format, Missing, Separator};

/// How data files are read: changes to the section `[data]`.
#[derive(Args)]
pub(crate) struct DataOptions {
    #[arg(long, value_name = "NAME", help = format_help(), value_parser = format)]
    format: Option<Format>,
    /// The column of the text: its name, or its number in a table
    #[arg(long, value_name = "NAME")]
    text_column: Option<String>,
    /// The column of the paths of images, relative to the file that lists them
    #[arg(long, value_name = "NAME", conflicts_with = "text_column")]
    image_column: Option<String>,
    /// The column of the label
    #[arg(long, value_name = "NAME")]
    label_column: Option<String>,
    /// The separator of the cells of CSV: , ; | or tab [default: that of the header]
    #[arg(long, value_name = "CHARACTER")]
    separator: Option<Separator>,
    /// What happens to rows without a value in one of these columns: error, or skip
    #[arg(long, value_name = "error|skip", value_parser = missing)]
    missing: Option<Missing>,
}

fn format_help() -> String {
    let names = Format::ALL.map(|format| format.name()).join(", ");
    format!("The format of the data: {names} [default: detected]")
}

fn format(name: &str) -> Result<Format, String> {
    name.parse().map_err(|error: muffle::data::Error| error.to_string())
}

fn missing(name: &str) -> Result<Missing, String> {
    match name {
        "error" => Ok(Missing::Error),
        "skip" => Ok(Missing::Skip),
        _ => Err(format!("expected error or skip, got {name:?}")),
    }
}

impl DataOptions {
    /// Changes the keys for which an option is given.
    pub(crate) fn apply(&self, data: &mut Data) {
        if let Some(format) = self.format {
            data.format = Auto::Value(format.name().into());
        }
        for (key, option) in [
            (&mut data.text_column, &self.text_column),
            (&mut data.image_column, &self.image_column),
            (&mut data.label_column, &self.label_column),
        ] {
            if option.is_some() {
                key.clone_from(option);
            }
        }
        if let Some(separator) = self.separator {
            data.separator = Auto::Value(separator);
        }
        if let Some(missing) = self.missing {
            data.missing = missing;
        }
    }
}
