//! The records of a data set, each in its own place.

use crate::spill::Spill;
use engine::Example;
use protocol::Refused;
use std::borrow::Cow;

/// The records of a data set. Other crates cannot read them back.
///
/// # Claim
/// (PROOFS.md, 13.) The number of places is public; whether a place holds a record, and which, is
/// not. Neighbouring data sets have the same number of places, and differ in what one place (or the
/// places of one person) holds.
///
/// # Why
/// A row that cannot be used keeps its place, vacant. Lots are drawn over places, and the sampling
/// rate, the divisor, δ and the number of steps are computed from their number.
///
/// # Checked by
/// `unusable_rows_do_not_change_public_files`, `the_content_of_rows_does_not_change_public_files`,
/// `places_come_back_from_the_file_as_they_went_in`.
///
/// ```
/// use curator::Records;
/// use engine::Example;
///
/// let rows = vec![Some(Example::features(vec![0.5], 1)), None];
/// assert_eq!(Records::with_vacancies(rows).places(), 2);
/// ```
pub struct Records {
    places: Places,
    /// Places added by [`and_places`](Self::and_places), after all others.
    added: Vec<Option<Example>>,
}

enum Places {
    Memory(Vec<Option<Example>>),
    /// In an unnamed temporary file.
    File(Spill),
}

impl Records {
    /// Creates one place for each record.
    pub fn new(examples: Vec<Example>) -> Self {
        Self::with_vacancies(examples.into_iter().map(Some).collect())
    }

    /// Creates places of which some may be vacant.
    ///
    /// A row that cannot be used is a vacant place, and so is a record that a neighbouring data set
    /// lacks, or a canary that is left out.
    pub fn with_vacancies(places: Vec<Option<Example>>) -> Self {
        Self { places: Places::Memory(places), added: Vec::new() }
    }

    pub(crate) fn spilled(spill: Spill) -> Self {
        Self { places: Places::File(spill), added: Vec::new() }
    }

    /// Adds places after the others, each with a record or vacant. Audits add canaries this way.
    #[must_use]
    pub fn and_places(mut self, places: Vec<Option<Example>>) -> Self {
        self.added.extend(places);
        self
    }

    /// Returns the number of places, which is public.
    pub fn places(&self) -> usize {
        self.read_places() + self.added.len()
    }

    /// Returns the number of places without the added ones.
    fn read_places(&self) -> usize {
        match &self.places {
            Places::Memory(places) => places.len(),
            Places::File(spill) => spill.len(),
        }
    }

    /// Returns the record in a place; `None` if the place is vacant.
    pub(crate) fn at(&self, place: usize) -> Result<Option<Cow<'_, Example>>, Refused> {
        if let Some(index) = place.checked_sub(self.read_places()) {
            return Ok(self.added[index].as_ref().map(Cow::Borrowed));
        }
        match &self.places {
            Places::Memory(places) => Ok(places[place].as_ref().map(Cow::Borrowed)),
            Places::File(spill) => Ok(spill.at(place)?.map(Cow::Owned)),
        }
    }
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Records({} places)", self.places())
    }
}
