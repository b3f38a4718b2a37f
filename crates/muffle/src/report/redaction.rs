//! Parts of a report that its owner hides before it is handed on.
//!
//! A page names the parts that it hides, so that `muffle verify` can compute it again without them.

use crate::Error;
use crate::report::Marking;
use crate::report::page::Page;
use std::collections::BTreeSet;
use std::fmt;

/// A part of a report that can be hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Figures, charts and samples that no guarantee covers.
    NonPrivate,
    /// Names of data, files, models and columns, owner and purpose. Also hides the configuration,
    /// which has them.
    Names,
    /// Texts that the model generated.
    Samples,
    /// The configuration file.
    Configuration,
    /// The machine.
    Environment,
}

/// All parts.
const PARTS: [Part; 5] =
    [Part::NonPrivate, Part::Names, Part::Samples, Part::Configuration, Part::Environment];

/// The text in place of a hidden name.
pub(crate) const HIDDEN: &str = "[hidden]";

/// The tag that names the hidden parts. Texts of a page cannot contain it, because they are escaped.
const TAG: (&str, &str) = ("<meta name=\"muffle-hidden\" content=\"", "\">");

impl Part {
    /// The name on the command line and in the page.
    pub fn name(self) -> &'static str {
        match self {
            Self::NonPrivate => "non-private",
            Self::Names => "names",
            Self::Samples => "samples",
            Self::Configuration => "configuration",
            Self::Environment => "environment",
        }
    }
}

/// The parts of a report that are hidden.
///
/// ```
/// use muffle::report::Redaction;
///
/// let hidden = Redaction::parse("names, samples")?;
/// assert_eq!(hidden.to_string(), "names, samples, configuration");
/// assert!(Redaction::parse("epsilon").is_err());
/// # Ok::<(), muffle::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Redaction(BTreeSet<Part>);

impl Redaction {
    /// Parses names of parts, separated by commas.
    ///
    /// # Errors
    /// If a name is unknown.
    pub fn parse(text: &str) -> Result<Self, Error> {
        Self::parse_names(text).map_err(|message| Error::config("--redact", message))
    }

    fn parse_names(text: &str) -> Result<Self, String> {
        let mut parts = BTreeSet::new();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let Some(part) = PARTS.into_iter().find(|part| part.name() == name) else {
                let known = PARTS.map(Part::name).join(", ");
                return Err(format!("expected some of {known}; got {name:?}"));
            };
            parts.insert(part);
            if part == Part::Names {
                parts.insert(Part::Configuration);
            }
        }
        Ok(Self(parts))
    }

    /// Reads which parts a page hides; none if it does not say so.
    ///
    /// # Errors
    /// If the tag is not complete, or names an unknown part.
    pub(crate) fn of_page(html: &str) -> Result<Self, String> {
        let Some((_, rest)) = html.split_once(TAG.0) else { return Ok(Self::default()) };
        let (names, _) =
            rest.split_once(TAG.1).ok_or("report.html: the tag muffle-hidden has no end")?;
        Self::parse_names(names)
            .map_err(|message| format!("report.html: the tag muffle-hidden: {message}"))
    }

    /// Whether nothing is hidden.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tag of a page that names the hidden parts; empty if there are none.
    pub(crate) fn tag(&self) -> String {
        if self.0.is_empty() { String::new() } else { format!("{}{self}{}\n", TAG.0, TAG.1) }
    }

    /// Whether a part is hidden.
    pub fn hides(&self, part: Part) -> bool {
        self.0.contains(&part)
    }

    /// The name, or a text in its place.
    pub(crate) fn name(&self, name: &str) -> String {
        if self.hides(Part::Names) { HIDDEN.into() } else { name.into() }
    }

    /// Removes the hidden parts of a page. Names are replaced where the page is built.
    pub(crate) fn apply(&self, mut page: Page) -> Page {
        if self.hides(Part::NonPrivate) {
            page.figures.retain(|figure| figure.marking == Marking::Public);
            page.charts.retain(|panel| panel.marking == Marking::Public);
            page.samples.retain(|sample| sample.marking == Marking::Public);
        }
        if self.hides(Part::Samples) {
            page.samples.clear();
        }
        if self.hides(Part::Configuration) {
            page.configuration.clear();
        }
        if self.hides(Part::Environment) {
            page.sections.retain(|section| section.title != super::ENVIRONMENT);
        }
        page.hidden = self.clone();
        page
    }
}

/// The names of the parts, separated by commas.
impl fmt::Display for Redaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|part| part.name()).collect();
        f.write_str(&names.join(", "))
    }
}
