//! The records of a data set, each in its own place.

use crate::spill::Spill;
use engine::{Combination, Example};
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
    /// The rows of each place; none if every row is a place.
    groups: Option<Groups>,
    /// Places added by [`and_places`](Self::and_places), after all others.
    added: Vec<Option<Example>>,
}

/// Rows by place.
struct Groups {
    /// The rows of all places, place by place, each in the order of the rows.
    rows: Vec<usize>,
    /// The first index of each place in `rows`, and the number of all rows at the end.
    offsets: Vec<usize>,
    combination: Combination,
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
        Self { places: Places::Memory(places), groups: None, added: Vec::new() }
    }

    pub(crate) fn spilled(spill: Spill) -> Self {
        Self { places: Places::File(spill), groups: None, added: Vec::new() }
    }

    /// Combines rows into one record for each person: row i belongs to the place `place_of_row[i]`.
    ///
    /// # Claim
    /// The record of a place is a function of the rows of that place alone. It is one example, so
    /// its gradient, over all rows, is clipped once: the sensitivity of a sum to all rows of a
    /// person is that of one record. A place without usable rows is vacant.
    /// # Checked by
    /// `a_place_combines_its_rows`, `the_rows_of_a_person_are_clipped_together`.
    /// # Errors
    /// If the places are not those of all rows, or a place has no row, or places were added before.
    pub fn combine_rows(
        self,
        place_of_row: &[usize],
        combination: Combination,
    ) -> Result<Self, Refused> {
        let count = place_of_row.iter().max().map_or(0, |last| last + 1);
        if self.places() != place_of_row.len() || self.groups.is_some() || !self.added.is_empty() {
            return Err(Refused::Query("expected a place for each row, once".into()));
        }
        // By counting: `offsets[p + 1]` is the number of rows of the places up to p.
        let mut offsets = vec![0; count + 1];
        place_of_row.iter().for_each(|&place| offsets[place + 1] += 1);
        if offsets[1..].contains(&0) {
            return Err(Refused::Query("expected a row for each place".into()));
        }
        (0..count).for_each(|place| offsets[place + 1] += offsets[place]);
        let mut next = offsets.clone();
        let mut rows = vec![0; place_of_row.len()];
        for (row, &place) in place_of_row.iter().enumerate() {
            rows[next[place]] = row;
            next[place] += 1;
        }
        Ok(Self { groups: Some(Groups { rows, offsets, combination }), ..self })
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
        self.groups.as_ref().map_or_else(|| self.rows(), |groups| groups.offsets.len() - 1)
    }

    /// Returns the number of rows.
    fn rows(&self) -> usize {
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
        let Some(groups) = &self.groups else { return self.row(place) };
        let rows = &groups.rows[groups.offsets[place]..groups.offsets[place + 1]];
        let mut parts = Vec::with_capacity(rows.len());
        for &row in rows {
            parts.extend(self.row(row)?.map(Cow::into_owned));
        }
        Ok(Example::combined(parts, groups.combination).map(Cow::Owned))
    }

    /// Returns the example of a row; `None` if it cannot be used.
    fn row(&self, row: usize) -> Result<Option<Cow<'_, Example>>, Refused> {
        match &self.places {
            Places::Memory(rows) => Ok(rows[row].as_ref().map(Cow::Borrowed)),
            Places::File(spill) => Ok(spill.at(row)?.map(Cow::Owned)),
        }
    }
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Records({} places)", self.places())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(token: u32) -> Option<Example> {
        Some(Example::labelled(vec![token], 0))
    }

    /// Rows keep their order; unusable rows and rows of other places are not part of a record.
    #[test]
    fn a_place_combines_its_rows() {
        let rows = vec![row(1), row(2), None, row(4), None, row(6)];
        let records = Records::with_vacancies(rows)
            .combine_rows(&[0, 1, 0, 0, 2, 1], Combination::Sum)
            .unwrap()
            .and_places(vec![row(9)]);
        assert_eq!(records.places(), 4);
        let expected = |tokens: &[u32]| {
            Example::combined(tokens.iter().filter_map(|&t| row(t)), Combination::Sum)
        };
        for (place, tokens) in [&[1, 4][..], &[2, 6], &[]].into_iter().enumerate() {
            let found = records.at(place).unwrap().map(Cow::into_owned);
            assert!(found == expected(tokens), "{place}");
        }
        assert!(records.at(3).unwrap().map(Cow::into_owned) == row(9));
    }

    #[test]
    fn places_that_do_not_fit_the_rows_are_refused() {
        let records = || Records::with_vacancies(vec![row(1), None]);
        let combine =
            |records: Records, places: &[usize]| records.combine_rows(places, Combination::Mean);
        assert!(combine(records(), &[0, 0]).is_ok());
        assert!(combine(records(), &[0]).is_err());
        assert!(combine(records(), &[0, 0, 0]).is_err());
        assert!(combine(records(), &[0, 2]).is_err());
        assert!(combine(records().and_places(vec![None]), &[0, 0, 0]).is_err());
        assert!(combine(combine(records(), &[0, 1]).unwrap(), &[0, 1]).is_err());
    }
}
